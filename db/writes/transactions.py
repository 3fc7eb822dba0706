"""Run the tracker's transactions. Each can be repeated from its beginning (Database.write)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from db.errors import BadRequest, NotFound
from db.reads.checkpoints import before_current, is_behind_current, refused_models
from db.schema import (
    DECIDING,
    DEFAULT_PROJECT,
    Alias,
    AliasMove,
    Checkpoint,
    CheckpointPlace,
    Cycle,
    Item,
    Project,
    Review,
    Run,
    Score,
)
from db.values import now, storable
from db.writes.upsert import upsert


def new_project(session: Session, wanted: str, home: str) -> str:
    """Return the project that was begun for the home, or create one with an unused name.

    One with a clean model is that of a home that lay there before: its files are gone.
    """
    used = select(Alias.project).where(Alias.name == "base")
    there = session.scalar(select(Project.name).where(Project.home == home, Project.name.not_in(used)))
    if there is not None:
        return there
    taken = {DEFAULT_PROJECT, *session.scalars(select(Project.name))}
    numbered = (f"{wanted}-{number}" for number in itertools.count(2))
    name = wanted if wanted not in taken else next(name for name in numbered if name not in taken)
    session.add(Project(name=name, home=home, created_at=now()))
    session.flush()
    return name


def first_home(session: Session, home: str) -> str:
    """Return the home of the project `default`: this one, unless another is recorded."""
    there = session.get(Project, DEFAULT_PROJECT)
    if there is None:
        there = Project(name=DEFAULT_PROJECT, home=home, created_at=now())
        session.add(there)
        session.flush()
    return there.home


def start_run(session: Session, columns: dict[str, Any]) -> Run:
    run = session.get(Run, columns["id"])
    if run is None and columns["key"] is not None:
        same = (
            Run.project == columns["project"],
            Run.parent_id.is_not_distinct_from(columns["parent_id"]),
            Run.key == columns["key"],
        )
        run = session.scalar(select(Run).where(*same))
    if run is None:
        session.get(Project, columns["project"], with_for_update=True)  # other starts wait: no number twice
        newest = session.scalar(select(func.max(Run.ordinal)).where(Run.project == columns["project"]))
        run = Run(**columns, ordinal=(newest or 0) + 1)
        session.add(run)
    elif not run.done:
        run.status = "running"
        run.owner = columns["owner"]
        run.heartbeat_at = columns["heartbeat_at"]
        run.error = None
        run.ended_at = None
        run.attempts = run.attempts + 1
        if columns["versions"]:
            run.versions, run.git_revision = columns["versions"], columns["git_revision"]
    return run


def end_run(session: Session, run_id: str, columns: dict[str, Any]) -> None:
    """End a run, never before its start: the clock may have been set back since then.

    One that is done stays so: its process may be interrupted while it removes what only the run needed.
    """
    begun = session.execute(select(Run.started_at, Run.status).where(Run.id == run_id)).one_or_none()
    if begun is None:
        raise NotFound(f"run {run_id} is not recorded: start it first")
    if begun.status == "done" and columns["status"] != "done":
        return
    ended_at = max(columns["ended_at"], begun.started_at)
    session.execute(update(Run).where(Run.id == run_id).values({**columns, "ended_at": ended_at}))


def forget_place(session: Session, project: str, checkpoint_id: str, remove: Callable[[], None]) -> bool:
    """Remove a checkpoint's files, then its place in a project; leave one that an alias of the project names
    by now, and the base of such a one. Return whether they are gone."""
    _lock_decisions(session, project)
    of_alias = select(Alias.checkpoint_id).join(Checkpoint, Checkpoint.id == Alias.checkpoint_id)
    needs = or_(Checkpoint.id == checkpoint_id, Checkpoint.base_id == checkpoint_id)
    if session.scalar(of_alias.where(Alias.project == project, needs)) is not None:
        return False
    remove()
    here = CheckpointPlace.checkpoint_id == checkpoint_id, CheckpointPlace.project == project
    session.execute(delete(CheckpointPlace).where(*here))
    return True


def set_alias(session: Session, project: str, name: str, checkpoint_id: str) -> None:
    if session.get(Checkpoint, checkpoint_id) is None:
        raise NotFound(
            f"checkpoint {checkpoint_id} is not recorded: `recover ls checkpoints` lists those that are"
        )
    if session.get(CheckpointPlace, (checkpoint_id, project)) is None:
        raise BadRequest(
            f"checkpoint {checkpoint_id} has no files here any more: `recover prune` removed them"
        )
    alias = session.get(Alias, (project, name))
    if alias is not None and alias.checkpoint_id == checkpoint_id:
        return
    row = {"project": project, "name": name, "checkpoint_id": checkpoint_id, "moved_at": now()}
    upsert(session, Alias, [row])
    session.add(AliasMove(**row))


def make_current(
    session: Session, project: str, checkpoint_id: str, at_first: str, cycle: int | None
) -> str | None:
    """Point `current` at the model of a run where it still names what it did at first, that of a cycle unless
    its newest review that decides refuses it; else return what stays current."""
    alias = _lock_decisions(session, project)
    now = at_first if alias is None else alias.checkpoint_id
    if now not in (at_first, checkpoint_id):
        return now
    if cycle is not None and _is_rejected(session, project, cycle):
        return now
    set_alias(session, project, "current", checkpoint_id)
    return None


def _is_rejected(session: Session, project: str, cycle: int) -> bool:
    session.get(Cycle, (project, cycle), with_for_update=True)  # no review comes in between
    decides = Review.project == project, Review.cycle == cycle, Review.decision.in_(DECIDING)
    newest = session.scalar(select(Review).where(*decides).order_by(Review.id.desc()).limit(1))
    return newest is not None and newest.decision == "reject"


def put_score(session: Session, columns: dict[str, Any], items: list[dict[str, Any]]) -> int:
    name = {column: columns[column] for column in ("run_id", "checkpoint_id", "suite", "metric")}
    same = [getattr(Score, column).is_not_distinct_from(value) for column, value in name.items()]
    score = session.scalar(select(Score).where(*same)) or Score(**name)
    for column, value in columns.items():
        setattr(score, column, value)
    session.add(score)
    session.flush()
    session.execute(delete(Item).where(Item.score_id == score.id))
    if items:
        session.execute(insert(Item), [{"score_id": score.id, **item} for item in items])
    return score.id


def put_cycle(session: Session, project: str, run_id: str, columns: dict[str, Any]) -> int:
    cycle = session.scalar(select(Cycle).where(Cycle.run_id == run_id))
    if cycle is None:
        newest = session.scalar(select(func.max(Cycle.number)).where(Cycle.project == project))
        number = (newest or 0) + 1
        cycle = Cycle(project=project, number=number, run_id=run_id, started_at=now(), summary={})
        session.add(cycle)
    for column, value in columns.items():
        setattr(cycle, column, value)
    if cycle.ended_at is not None:
        cycle.ended_at = max(cycle.ended_at, cycle.started_at)  # the clock may have been set back
    return cycle.number


def add_review(session: Session, columns: dict[str, Any]) -> int:
    sent = session.scalar(select(Review).where(Review.token == columns["token"]))
    if sent is not None:
        return _same_review(sent, columns)
    _lock_decisions(session, columns["project"])
    cycle = session.get(Cycle, (columns["project"], columns["cycle"]), with_for_update=True)
    if cycle is None:
        raise NotFound(f"cycle {columns['cycle']} is not recorded: `recover ls` lists those that are")
    if columns["decision"] == "approve":
        if cycle.recovered_id is None:
            raise BadRequest(f"cycle {cycle.number} has no recovered model yet: review it when it has ended")
        if not is_behind_current(session, cycle.project, cycle.recovered_id):
            set_alias(session, cycle.project, "current", cycle.recovered_id)
    review = Review(**columns)
    session.add(review)
    session.flush()
    if review.decision == "reject":
        _take_out_of_use(session, cycle)
    return review.id


def _lock_decisions(session: Session, project: str) -> Alias | None:
    """Let other decisions of the project wait, as each reads what was decided of every cycle; return
    `current`."""
    return session.get(Alias, (project, "current"), with_for_update=True)


def _take_out_of_use(session: Session, cycle: Cycle) -> None:
    """Move `current` from a refused model back to its newest earlier target that is here and not refused.

    It stays where another cycle in use has made the same model."""
    current = session.get(Alias, (cycle.project, "current"))
    if current is None or current.checkpoint_id != cycle.recovered_id:
        return
    if current.checkpoint_id not in refused_models(session, cycle.project):
        return
    earlier = before_current(session, cycle.project, current.checkpoint_id)
    if earlier is not None:
        set_alias(session, cycle.project, "current", earlier)


def _same_review(stored: Review, columns: dict[str, Any]) -> int:
    """Return the id of a stored review for a repeated request; refuse a request with other content."""
    texts = ("decision", "note", "reviewer")
    if (stored.project, stored.cycle) != (columns["project"], columns["cycle"]) or any(
        getattr(stored, name) != storable(columns[name]) for name in texts
    ):
        raise BadRequest(
            f"this request is already recorded, as {stored.decision!r} of cycle {stored.cycle} by "
            f"{stored.reviewer}, and it stays so: send a changed decision as a new review"
        )
    return stored.id
