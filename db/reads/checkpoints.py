"""Read checkpoints: by any reference, with their ancestors, and the aliases that point to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db.cycle_names import STAGES
from db.errors import BadRequest, NotFound, TrackerError
from db.reads.rows import Row, newest_first, rows_of, runs_of
from db.schema import (
    DECIDING,
    DEFAULT_PROJECT,
    Alias,
    AliasMove,
    Checkpoint,
    CheckpointPlace,
    Cycle,
    Project,
    Review,
    Run,
)
from db.session import Database

LONGEST_LINE = 10_000  # bound on ancestors, should the rows contain a loop
IN_USE = ("approve", "accepted")  # reviews and verdicts by which a cycle's model is in use
DECISION = sa.func.coalesce(Review.decision, Cycle.status)  # of a cycle, joined with its newest review
SHORTEST_BEGINNING = 4  # characters of an id that name it: a shorter one may be the number of a cycle


def checkpoint(database: Database, reference: str) -> Row:
    """Return a checkpoint by any reference that resolve() accepts, with the aliases that point to it."""
    query = sa.select(Checkpoint.__table__).where(Checkpoint.id == resolve(database, reference))
    return _as_here(database, query)[0]


def checkpoints(database: Database, *, limit: int | None = 50) -> list[Row]:
    """Return checkpoints with their aliases, newest first."""
    mine = sa.select(CheckpointPlace.checkpoint_id).where(CheckpointPlace.project == database.project)
    query = newest_first(Checkpoint, Checkpoint.created_at).where(Checkpoint.id.in_(mine))
    return _as_here(database, query.limit(limit))


def checkpoint_places(database: Database, checkpoint_id: str) -> list[Row]:
    """Return where a checkpoint is stored as (project, home or None, path), this project's folder first."""
    columns = CheckpointPlace.project, Project.home, CheckpointPlace.path
    query = sa.select(*columns).join(Project, Project.name == CheckpointPlace.project, isouter=True)
    query = query.where(CheckpointPlace.checkpoint_id == checkpoint_id)
    elsewhere = CheckpointPlace.project != database.project
    return rows_of(database, query.order_by(elsewhere, CheckpointPlace.project))


def projects(database: Database) -> list[str]:
    """Return the projects that share this database; the first home's project always exists."""
    further = sa.select(Project.name).where(Project.name != DEFAULT_PROJECT)
    others = rows_of(database, further.order_by(Project.name))
    return [DEFAULT_PROJECT, *(row["name"] for row in others)]


def project_home(database: Database, project: str) -> str | None:
    """Return the home of a project as host:folder, where `recover init` recorded it; else None."""
    with database.read() as connection:
        home = connection.scalar(sa.select(Project.home).where(Project.name == project))
    return None if home is None else str(home)


def runs_behind(database: Database, checkpoint_id: str, kind: str) -> list[Row]:
    """Return the runs of a kind that made a checkpoint and its ancestors, oldest first.

    A checkpoint is recorded with the first run that made it. This project's newest finished run of the same
    outcome takes its place: the first may be another project's, whose files are not in this home, or may have
    been given up, and have read documents that were moved since.
    """
    line, made = _line(checkpoint_id), Run.result["checkpoint"].as_string()
    columns = line.c.id.label("made"), line.c.depth
    first = sa.select(Run.__table__, *columns, sa.literal(0).label("own")).where(Run.kind == kind)
    first = first.join(Checkpoint, Checkpoint.run_id == Run.id).join(line, Checkpoint.id == line.c.id)
    own = sa.select(Run.__table__, *columns, sa.literal(1)).join(line, made == line.c.id)
    own = own.where(Run.project == database.project, Run.kind == kind, Run.status == "done")
    ordered = sa.union_all(first, own).order_by(sa.desc("depth"), "own", "ordinal")
    found: dict[str, Row] = {}
    for row in runs_of(database, ordered):
        if not row["own"] or row["made"] in found:  # the clean model is of no run
            found[row["made"]] = row
    beside = ("made", "depth", "own")
    return [{name: row[name] for name in row if name not in beside} for row in found.values()]


def cycles_behind(database: Database, checkpoint_id: str) -> dict[int, Row]:
    """Return the job of each cycle whose model, midtrained or recovered, a checkpoint is or descends from.

    Of cycles with one midtrained model, which read the same documents, the one whose recovered model it is,
    else the newest."""
    ids = sa.select(_line(checkpoint_id).c.id)
    columns = Cycle.number, Cycle.midtrained_id, Cycle.recovered_id.in_(ids).label("own"), Run.config
    behind = sa.or_(Cycle.midtrained_id.in_(ids), Cycle.recovered_id.in_(ids))
    query = sa.select(*columns).join(Run, Cycle.run_id == Run.id)
    query = query.where(Cycle.project == database.project, behind).order_by(Cycle.number)
    found: dict[str, Row] = {}
    for row in rows_of(database, query):
        before = found.get(row["midtrained_id"])
        if row["own"] or before is None or not before["own"]:
            found[row["midtrained_id"]] = row
    return {row["number"]: row["config"] for row in sorted(found.values(), key=lambda row: row["number"])}


def used_cycles_outside(database: Database, checkpoint_id: str) -> list[int]:
    """Return the accepted or approved cycles whose models a checkpoint neither is nor descends from."""
    ids = sa.select(_line(checkpoint_id).c.id)
    made = decided(database.project, sa.select(Cycle.number))
    query = made.where(
        Cycle.recovered_id.not_in(ids),
        Cycle.midtrained_id.not_in(ids),
        DECISION.in_(IN_USE),
    )
    return [row["number"] for row in rows_of(database, query.order_by(Cycle.number))]


def _line(checkpoint_id: str) -> sa.CTE:
    """Select a checkpoint and its ancestors, with their distance from it."""
    start = sa.select(Checkpoint.id, Checkpoint.parent_id, sa.literal(0).label("depth"))
    line = start.where(Checkpoint.id == checkpoint_id).cte("line", recursive=True)
    following = sa.select(Checkpoint.id, Checkpoint.parent_id, line.c.depth + 1)
    return line.union_all(
        following.join(line, Checkpoint.id == line.c.parent_id).where(line.c.depth < LONGEST_LINE)
    )


def _as_here(database: Database, query: sa.Select[Any]) -> list[Row]:
    """Return the rows of checkpoints with their aliases; of those in this project, with its own folder."""
    of_row = CheckpointPlace.checkpoint_id == Checkpoint.__table__.c.id
    here = sa.select(CheckpointPlace.path).where(of_row, CheckpointPlace.project == database.project)
    rows = rows_of(database, query.add_columns(here.scalar_subquery().label("here")))
    named = aliases(database)
    for row in rows:
        row["path"] = row.pop("here") or row["path"]
        row["aliases"] = [alias["name"] for alias in named if alias["checkpoint_id"] == row["id"]]
    return rows


def aliases(database: Database) -> list[Row]:
    query = sa.select(Alias).where(Alias.project == database.project)
    return rows_of(database, query.order_by(Alias.name))


def current_checkpoint(database: Database) -> str | None:
    """Return the id of the model in use, which `current` names; None before there is one."""
    with database.read() as connection:
        return current_of(connection, database.project)


def current_of(asking: sa.Connection | Session, project: str) -> str | None:
    named = sa.select(Alias.checkpoint_id).where(Alias.project == project, Alias.name == "current")
    return asking.scalar(named)


def before_current(asking: sa.Connection | Session, project: str, current: str | None) -> str | None:
    """Return what `current` moves back to where a review refuses its model: its newest earlier target that is
    here and not refused."""
    here = (CheckpointPlace.checkpoint_id == AliasMove.checkpoint_id) & (
        CheckpointPlace.project == AliasMove.project
    )
    mine = sa.select(AliasMove.checkpoint_id).join(CheckpointPlace, here).where(AliasMove.project == project)
    targets = asking.scalars(mine.where(AliasMove.name == "current").order_by(AliasMove.id.desc()))
    refused = {current, *refused_models(asking, project)}
    return next((target for target in targets if target not in refused), None)


def is_behind_current(asking: sa.Connection | Session, project: str, checkpoint_id: str) -> bool:
    """Return whether the model in use, if no review refuses it, descends from a checkpoint."""
    current = current_of(asking, project)
    if current in (None, checkpoint_id) or current in refused_models(asking, project):
        return False
    line = _line(str(current))
    return asking.scalar(sa.select(line.c.id).where(line.c.id == checkpoint_id)) is not None


def is_refused(database: Database, checkpoint_id: str) -> bool:
    """Return whether reviews refuse a model: that of a rejected cycle, unless another in use has made it."""
    with database.read() as connection:
        return checkpoint_id in refused_models(connection, database.project)


def refused_models(asking: sa.Connection | Session, project: str) -> set[str | None]:
    """Return the models of the cycles whose newest review that decides refuses them, but none that another
    cycle, accepted or approved, has made too: equal weights are one checkpoint."""
    models = asking.execute(decided(project, sa.select(Cycle.recovered_id)))
    rejected: set[str | None] = set()
    used: set[str | None] = set()
    for model, decision in models:
        if decision == "reject":
            rejected.add(model)
        elif decision in IN_USE:
            used.add(model)
    return rejected - used


def decided(project: str, query: sa.Select[*tuple[Any, ...]]) -> sa.Select[*tuple[Any, ...]]:
    """Add to a query of a project's cycles what decides of each: its newest review that decides, or without
    one its verdict."""
    of_cycle = (Review.project == Cycle.project) & (Review.cycle == Cycle.number)
    newest = of_cycle & Review.id.in_(_deciding_reviews(project))
    return (
        query.add_columns(DECISION.label("decision"))
        .join(Review, newest, isouter=True)
        .where(Cycle.project == project)
    )


def _deciding_reviews(project: str) -> sa.Select[Any]:
    """Select the newest review of each cycle that decides."""
    decides = Review.project == project, Review.decision.in_(DECIDING)
    return sa.select(sa.func.max(Review.id)).where(*decides).group_by(Review.cycle)


def resolve(database: Database, reference: str) -> str:
    """Return the checkpoint id of a reference.

    The reference is an id, an alias, cycle:N (its recovered model), cycle:N:STAGE, or the beginning of one
    id alone, of at least four characters."""
    if reference.startswith("cycle:"):
        return _cycle_checkpoint(database, reference)
    alias = sa.select(Alias.checkpoint_id).where(Alias.project == database.project, Alias.name == reference)
    starting = sa.select(Checkpoint.id).where(Checkpoint.id.startswith(reference, autoescape=True)).limit(3)
    with database.read() as connection:
        named = connection.scalar(alias)
        found = list(connection.scalars(starting)) if reference else []
    if named is not None and reference not in found:
        return str(named)
    if reference in found:
        return reference
    if len(found) == 1 and len(reference) >= SHORTEST_BEGINNING:
        return str(found[0])
    raise _unresolved(reference, found)


def _unresolved(reference: str, found: Sequence[str]) -> TrackerError:
    """Return the refusal of a reference that is none of the ids that begin with it."""
    short = len(reference) < SHORTEST_BEGINNING
    if reference.isascii() and reference.isdigit() and (short or not found):
        return NotFound(f"no checkpoint is named {reference}: write cycle:{reference} for a cycle")
    if found and short:
        return BadRequest(
            f"checkpoint {reference!r} is too short: give at least {SHORTEST_BEGINNING} characters of its id"
        )
    if found:
        return BadRequest(f"checkpoint {reference!r} could be {', '.join(found)}: give more of the id")
    return NotFound(
        f"checkpoint {reference!r} is not recorded: `recover ls checkpoints` lists those that are"
    )


def _cycle_checkpoint(database: Database, reference: str) -> str:
    number, _, stage = reference.removeprefix("cycle:").partition(":")
    stage = stage or "recovered"
    if not number.isascii() or not number.isdigit() or stage not in STAGES:
        raise BadRequest(f"checkpoint {reference!r} cannot be read: write cycle:N or cycle:N:midtrained")
    row = None
    if len(number) < 10:  # no cycle has more digits, and a database may not read them
        here = Cycle.project == database.project, Cycle.number == int(number)
        with database.read() as connection:
            row = connection.execute(sa.select(getattr(Cycle, f"{stage}_id")).where(*here)).first()
    if row is None:
        raise NotFound(f"cycle {number} is not recorded: `recover ls` lists those that are")
    if row[0] is None:
        raise NotFound(f"cycle {number} has no {stage} model (yet): `recover ls` lists the cycles")
    return str(row[0])
