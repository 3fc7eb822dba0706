"""Detect changes for live pages: two cheap queries, run every few seconds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from db.schema import AliasMove, Checkpoint, Cycle, Project, Review, Run, Score, Verdict
from db.session import Database
from db.values import seconds_since

STALLED_SECONDS = 60.0  # without a heartbeat


def stalled(status: str, heartbeat_at: str) -> bool:
    """Return whether a running run has had no heartbeat for a minute.

    A heartbeat in the future was written before the clock was set back, so it counts as old too."""
    return status == "running" and abs(seconds_since(heartbeat_at)) > STALLED_SECONDS


def structure_version(database: Database) -> tuple[Any, ...]:
    """Return a value that changes with every row written, except metrics, progress and heartbeats.

    Scores are replaced only by running runs, so the scores of other runs are not scanned."""
    under_way = select(Run.id).where(Run.status == "running")
    query = select(
        select(func.max(Score.id)).scalar_subquery(),
        select(func.max(Score.created_at)).where(Score.run_id.in_(under_way)).scalar_subquery(),
        select(func.count()).select_from(Checkpoint).scalar_subquery(),
        select(func.count()).select_from(Project).scalar_subquery(),
        select(func.max(AliasMove.id)).scalar_subquery(),
        select(func.max(Review.id)).scalar_subquery(),
        select(func.count()).select_from(Verdict).scalar_subquery(),
        select(func.count()).select_from(Cycle).scalar_subquery(),
        select(func.max(Cycle.ended_at)).scalar_subquery(),
        select(func.count(Cycle.ended_at)).scalar_subquery(),
        func.count(),
        func.count(Run.ended_at),
        func.max(Run.ended_at),
        func.sum(Run.attempts),
    ).select_from(Run)
    with database.read() as connection:
        return tuple(connection.execute(query).one())


def live_version(database: Database) -> list[tuple[Any, ...]]:
    """Return progress and stall state of every running run."""
    query = select(Run.id, Run.progress, Run.heartbeat_at).where(Run.status == "running").order_by(Run.id)
    with database.read() as connection:
        rows = connection.execute(query).all()
    return [(row.id, repr(row.progress), stalled("running", row.heartbeat_at)) for row in rows]
