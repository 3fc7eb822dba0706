"""What the tracker does inside one transaction. Each may run again from its beginning: Database.write."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from db.errors import BadRequest, NotFound
from db.schema import Alias, AliasMove, Checkpoint, Cycle, Item, Review, Run, Score
from db.upsert import upsert
from db.values import now, storable


def start_run(session: Session, columns: dict[str, Any]) -> Run:
    run = session.get(Run, columns["id"])
    if run is None and columns["key"] is not None:
        same = Run.parent_id.is_not_distinct_from(columns["parent_id"]), Run.key == columns["key"]
        run = session.scalar(select(Run).where(*same))
    if run is None:
        run = Run(**columns)
        session.add(run)
    elif not run.done:
        run.status, run.owner, run.heartbeat_at = "running", columns["owner"], columns["heartbeat_at"]
        run.error, run.ended_at, run.attempts = None, None, run.attempts + 1
    return run


def end_run(session: Session, run_id: str, columns: dict[str, Any]) -> None:
    if session.execute(update(Run).where(Run.id == run_id).values(columns).returning(Run.id)).first() is None:
        raise NotFound(f"run {run_id} is not recorded: start it first")


def set_alias(session: Session, name: str, checkpoint_id: str) -> None:
    if session.get(Checkpoint, checkpoint_id) is None:
        raise NotFound(
            f"checkpoint {checkpoint_id} is not recorded: `recover ls checkpoints` lists those that are"
        )
    alias = session.get(Alias, name)
    if alias is not None and alias.checkpoint_id == checkpoint_id:
        return
    row = {"name": name, "checkpoint_id": checkpoint_id, "moved_at": now()}
    upsert(session, Alias, [row])
    session.add(AliasMove(**row))


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


def put_cycle(session: Session, run_id: str, columns: dict[str, Any]) -> int:
    cycle = session.scalar(select(Cycle).where(Cycle.run_id == run_id))
    if cycle is None:
        number = (session.scalar(select(func.max(Cycle.number))) or 0) + 1
        cycle = Cycle(number=number, run_id=run_id, started_at=now(), summary={})
        session.add(cycle)
    for column, value in columns.items():
        setattr(cycle, column, value)
    return cycle.number


def add_review(session: Session, columns: dict[str, Any]) -> int:
    sent = session.scalar(select(Review).where(Review.token == columns["token"]))
    if sent is not None:
        return _same_review(sent, columns)
    cycle = session.get(Cycle, columns["cycle"])
    if cycle is None:
        raise NotFound(f"cycle {columns['cycle']} is not recorded: `recover ls` lists those that are")
    if columns["decision"] == "approve":
        if cycle.recovered_id is None:
            raise BadRequest(f"cycle {cycle.number} has no recovered model yet: review it when it has ended")
        set_alias(session, "current", cycle.recovered_id)
    review = Review(**columns)
    session.add(review)
    session.flush()
    return review.id


def _same_review(stored: Review, columns: dict[str, Any]) -> int:
    """A request sent twice is one review; the same request with other content is none."""
    texts = ("decision", "note", "reviewer")
    if stored.cycle != columns["cycle"] or any(
        getattr(stored, name) != storable(columns[name]) for name in texts
    ):
        raise BadRequest(
            f"this request is already recorded, as {stored.decision!r} of cycle {stored.cycle} by "
            f"{stored.reviewer}, and it stays so: send a changed decision as a new review"
        )
    return stored.id
