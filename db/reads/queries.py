"""Read the tracker's rows as plain JSON-able dicts, newest first.

A page starts after the last row of the previous one (`before=`, `after=`), never at an offset, so that the
hundredth page costs as much as the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from db.errors import BadRequest, NotFound
from db.reads.changes import live_version, stalled, structure_version
from db.reads.curves import last_values, latest_metrics, metric_names, metric_series
from db.reads.cycles import cycle, cycles, knowledge_kept, recovered_fraction
from db.reads.flips import compared, flips, ledger, ledger_items, paired_suites, pairs
from db.reads.readonly import select
from db.reads.stages import ItemFilter, cycle_numbers, flip_counts, side_by_side, stage_scores
from db.schema import (
    DEFAULT_PROJECT,
    Alias,
    AliasMove,
    Base,
    Checkpoint,
    CheckpointPlace,
    Cycle,
    Document,
    Item,
    Project,
    Review,
    Run,
    Score,
)
from db.session import Database

__all__ = [
    "ItemFilter",
    "alias_moves",
    "aliases",
    "checkpoint",
    "checkpoint_places",
    "checkpoints",
    "compared",
    "cycle",
    "cycle_numbers",
    "cycles",
    "cycles_behind",
    "document_totals",
    "documents",
    "flip_counts",
    "flips",
    "items",
    "knowledge_kept",
    "last_values",
    "latest_metrics",
    "ledger",
    "ledger_items",
    "lineage",
    "live_version",
    "metric_names",
    "metric_series",
    "paired_suites",
    "pairs",
    "projects",
    "recovered_fraction",
    "resolve",
    "reviews",
    "run",
    "runs",
    "runs_behind",
    "score",
    "scores",
    "scores_under",
    "select",
    "side_by_side",
    "stage_scores",
    "structure_version",
    "unfinished_runs",
]

LONGEST_LINE = 10_000  # bound on ancestors, should the rows contain a loop

CONDITIONS = "conditions"  # in the details of a score: hash of all that decides it, beside the checkpoint
RECORDED_IN = "recorded_in"  # in the details of a score that was measured in another run

Row = dict[str, Any]


# Runs ------------------------------------------------------------------------------------------------------


def run(database: Database, run_id: str) -> Row:
    rows = _run_rows(database, sa.select(Run).where(Run.id == run_id))
    return _only(rows, f"run {run_id} is not recorded: `recover ls runs` lists those that are")


def runs(
    database: Database,
    *,
    kind: str | None = None,
    status: str | None = None,
    parent: str | None = None,
    parents: Sequence[str] | None = None,
    before: str | None = None,
    limit: int = 50,
) -> list[Row]:
    """Return runs, newest first; `before` is the id of the previous page's last run."""
    query = _page(Run, Run.ordinal, before).where(Run.project == database.project).limit(limit)
    for column, value in ((Run.kind, kind), (Run.status, status), (Run.parent_id, parent)):
        query = query if value is None else query.where(column == value)
    return _run_rows(database, query if parents is None else query.where(Run.parent_id.in_(parents)))


def unfinished_runs(database: Database) -> list[Row]:
    """Return the runs that `recover resume` may continue: without a parent and not done, newest first."""
    mine = Run.project == database.project, Run.parent_id.is_(None), Run.status != "done"
    query = _page(Run, Run.ordinal, None).where(*mine)
    return _run_rows(database, query)


def documents(
    database: Database, run_id: str, *, status: str | None = None, after: str = "", limit: int = 1000
) -> list[Row]:
    """Return a run's corpus manifest by path, optionally of one status; `after` is the last path seen."""
    query = sa.select(Document).where(Document.run_id == run_id, Document.path > after)
    query = query if status is None else query.where(Document.status == status)
    return _rows(database, query.order_by(Document.path).limit(limit))


def document_totals(database: Database, run_id: str) -> dict[str, Row]:
    """Return the number of documents and tokens of a run's corpus by status (read, skipped)."""
    columns = Document.status, sa.func.count().label("n"), sa.func.sum(Document.tokens).label("tokens")
    query = sa.select(*columns).where(Document.run_id == run_id).group_by(Document.status)
    return {row["status"]: row for row in _rows(database, query)}


# Checkpoints -----------------------------------------------------------------------------------------------


def checkpoint(database: Database, reference: str) -> Row:
    """Return a checkpoint by any reference that resolve() accepts, with the aliases that point to it."""
    row = _rows(database, sa.select(Checkpoint).where(Checkpoint.id == resolve(database, reference)))[0]
    return row | {
        "aliases": [alias["name"] for alias in aliases(database) if alias["checkpoint_id"] == row["id"]]
    }


def checkpoints(database: Database, *, before: str | None = None, limit: int = 50) -> list[Row]:
    """Return checkpoints, newest first; `before` is the id of the previous page's last checkpoint."""
    mine = sa.select(CheckpointPlace.checkpoint_id).where(CheckpointPlace.project == database.project)
    query = _page(Checkpoint, Checkpoint.created_at, before).where(Checkpoint.id.in_(mine))
    return _rows(database, query.limit(limit))


def checkpoint_places(database: Database, checkpoint_id: str) -> list[Row]:
    """Return where a checkpoint is stored as (project, home or None, path), this project's folder first."""
    columns = CheckpointPlace.project, Project.home, CheckpointPlace.path
    query = sa.select(*columns).join(Project, Project.name == CheckpointPlace.project, isouter=True)
    query = query.where(CheckpointPlace.checkpoint_id == checkpoint_id)
    return _rows(
        database, query.order_by(CheckpointPlace.project != database.project, CheckpointPlace.project)
    )


def projects(database: Database) -> list[str]:
    """Return the projects that share this database; the first home's project always exists."""
    return [
        DEFAULT_PROJECT,
        *(row["name"] for row in _rows(database, sa.select(Project.name).order_by(Project.name))),
    ]


def lineage(database: Database, checkpoint_id: str) -> list[Row]:
    """Return a checkpoint and its ancestors, back to the clean one."""
    line = _line(checkpoint_id)
    return _rows(
        database,
        sa.select(Checkpoint.__table__).join(line, Checkpoint.id == line.c.id).order_by(line.c.depth),
    )


def runs_behind(database: Database, checkpoint_id: str, kind: str) -> list[Row]:
    """Return the runs of a kind that made a checkpoint and its ancestors, oldest first."""
    line = _line(checkpoint_id)
    query = sa.select(Run.__table__).join(Checkpoint, Checkpoint.run_id == Run.id)
    query = query.join(line, Checkpoint.id == line.c.id).where(Run.kind == kind)
    return _run_rows(database, query.order_by(line.c.depth.desc()))


def cycles_behind(database: Database, checkpoint_id: str) -> dict[int, Row]:
    """Return the job of each cycle whose recovered model a checkpoint is or descends from, by number."""
    line = _line(checkpoint_id)
    query = sa.select(Cycle.number, Run.config).join(Run, Cycle.run_id == Run.id)
    query = query.join(line, Cycle.recovered_id == line.c.id).where(Cycle.project == database.project)
    return {row["number"]: row["config"] for row in _rows(database, query.order_by(Cycle.number))}


def _line(checkpoint_id: str) -> sa.CTE:
    """Select a checkpoint and its ancestors, with their distance from it."""
    start = sa.select(Checkpoint.id, Checkpoint.parent_id, sa.literal(0).label("depth"))
    line = start.where(Checkpoint.id == checkpoint_id).cte("line", recursive=True)
    following = sa.select(Checkpoint.id, Checkpoint.parent_id, line.c.depth + 1)
    return line.union_all(
        following.join(line, Checkpoint.id == line.c.parent_id).where(line.c.depth < LONGEST_LINE)
    )


def aliases(database: Database) -> list[Row]:
    return _rows(database, sa.select(Alias).where(Alias.project == database.project).order_by(Alias.name))


def alias_moves(database: Database, name: str) -> list[Row]:
    """Return every target that an alias has had, newest first."""
    return _rows(
        database,
        sa.select(AliasMove)
        .where(AliasMove.project == database.project, AliasMove.name == name)
        .order_by(AliasMove.id.desc()),
    )


def resolve(database: Database, reference: str) -> str:
    """Return the checkpoint id of a reference.

    The reference is an id, an alias, cycle:N (its recovered model), cycle:N:STAGE, or a unique id prefix."""
    if reference.startswith("cycle:"):
        return _cycle_checkpoint(database, reference)
    alias = sa.select(Alias.checkpoint_id).where(Alias.project == database.project, Alias.name == reference)
    starting = sa.select(Checkpoint.id).where(Checkpoint.id.startswith(reference, autoescape=True)).limit(3)
    with database.read() as connection:
        named = connection.scalar(alias)
        found = list(connection.scalars(starting)) if reference else []
    if named is not None and reference not in found:
        return str(named)
    if reference in found or len(found) == 1:
        return reference if reference in found else str(found[0])
    if found:
        raise BadRequest(f"checkpoint {reference!r} could be {', '.join(found)}: give more of the id")
    raise NotFound(f"checkpoint {reference!r} is not recorded: `recover ls checkpoints` lists those that are")


def _cycle_checkpoint(database: Database, reference: str) -> str:
    number, _, stage = reference.removeprefix("cycle:").partition(":")
    columns = {
        "": Cycle.recovered_id,
        "clean": Cycle.clean_id,
        "midtrained": Cycle.midtrained_id,
        "recovered": Cycle.recovered_id,
    }
    if not number.isascii() or not number.isdigit() or stage not in columns:
        raise BadRequest(f"checkpoint {reference!r} cannot be read: write cycle:N or cycle:N:midtrained")
    with database.read() as connection:
        here = Cycle.project == database.project, Cycle.number == int(number[:9])
        row = connection.execute(sa.select(columns[stage]).where(*here)).first()
    if row is None:
        raise NotFound(f"cycle {number} is not recorded: `recover ls` lists those that are")
    if row[0] is None:
        raise NotFound(
            f"cycle {number} has no {stage or 'recovered'} model (yet): `recover ls` lists the cycles"
        )
    return str(row[0])


# Scores and items ------------------------------------------------------------------------------------------


def score(database: Database, score_id: int) -> Row:
    rows = _rows(database, sa.select(Score).where(Score.id == score_id))
    return _only(rows, f"score {score_id} is not recorded")


def scores(database: Database, *, run_id: str | None = None, checkpoint_id: str | None = None) -> list[Row]:
    """Return the scores of a run or of a checkpoint, newest first."""
    query = sa.select(Score).order_by(Score.id.desc())
    for column, value in ((Score.run_id, run_id), (Score.checkpoint_id, checkpoint_id)):
        query = query if value is None else query.where(column == value)
    return _rows(database, query)


def scores_under(
    database: Database, checkpoint_id: str, suite: str, conditions: str, *, run_id: str, others: bool
) -> list[Row]:
    """Return the scores of a suite that one run measured under some conditions, headline first.

    The run is `run_id`, finished or not, else (with `others`) the newest finished one of the project; `cycle`
    is its number where a cycle began it. Copies of another run's scores do not count."""
    its_own = Score.run_id == run_id
    finished = sa.and_(Run.status == "done", Run.project == database.project)
    query = sa.select(Score.__table__, Cycle.number.label("cycle")).join(Run, Run.id == Score.run_id)
    query = query.join(Cycle, Cycle.run_id == Run.parent_id, isouter=True).where(
        Score.checkpoint_id == checkpoint_id,
        Score.suite == suite,
        Score.details[CONDITIONS].as_string() == conditions,
        Score.details[RECORDED_IN].as_string().is_(None),
        sa.or_(its_own, finished) if others else its_own,
    )
    rows = _rows(database, query.order_by(its_own.desc(), Score.id.desc()))
    return [row for row in reversed(rows) if row["run_id"] == rows[0]["run_id"]]


def items(
    database: Database,
    score_id: int,
    *,
    passed: bool | None = None,
    search: str = "",
    after: str = "",
    limit: int = 100,
) -> list[Row]:
    """Return a score's items by key; `search` matches prompts and responses, `after` is the last key seen."""
    query = sa.select(Item).where(Item.score_id == score_id, Item.key > after).order_by(Item.key).limit(limit)
    if passed is not None:
        query = query.where(Item.passed == passed)
    if search:
        wanted = [column.icontains(search, autoescape=True) for column in (Item.prompt, Item.response)]
        query = query.where(sa.or_(*wanted))
    return _rows(database, query)


# Reviews ---------------------------------------------------------------------------------------------------


def reviews(
    database: Database, *, cycle: int | None = None, before: int | None = None, limit: int = 100
) -> list[Row]:
    """Return reviews, newest first; `before` is the id of the previous page's last review."""
    query = (
        sa.select(Review).where(Review.project == database.project).order_by(Review.id.desc()).limit(limit)
    )
    if cycle is not None:
        query = query.where(Review.cycle == cycle)
    return _rows(database, query if before is None else query.where(Review.id < before))


# Helpers ---------------------------------------------------------------------------------------------------


def _rows(database: Database, query: sa.Select[*tuple[Any, ...]]) -> list[Row]:
    """Return rows as dicts, for a query of columns or of an entity."""
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def _run_rows(database: Database, query: sa.Select[*tuple[Any, ...]]) -> list[Row]:
    rows = _rows(database, query)
    for row in rows:
        row["stalled"] = stalled(row["status"], row["heartbeat_at"])
    return rows


def _page(model: type[Base], moment: Any, before: str | None) -> sa.Select[Any]:
    """Select rows newest first, below the row with the id `before`."""
    table = model.__table__
    query = sa.select(table).order_by(moment.desc(), table.c.id.desc())
    if before is None:
        return query
    there = sa.select(moment).where(table.c.id == before).scalar_subquery()
    return query.where(sa.tuple_(moment, table.c.id) < sa.tuple_(there, before))


def _only(rows: list[Row], otherwise: str) -> Row:
    if not rows:
        raise NotFound(otherwise)
    return rows[0]
