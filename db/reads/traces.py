"""Read token traces: the runs that have traces, their rollouts, and single rollouts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping, select

from db.errors import NotFound
from db.reads.rows import of_cycle
from db.schema import Cycle, Run, Trace
from db.session import Database

Row = dict[str, Any]
LISTED = (Trace.step, Trace.place, Trace.estimator, Trace.mean, Trace.n, Trace.prompt)
PER_TOKEN = ("student", "teacher", "divergence")  # among the `tokens` of a trace: a number a token
LIKELIEST = ("student_top", "teacher_top")  # the likeliest tokens, each with its log-probability


def traced_runs(database: Database, *, run_id: str | None = None, limit: int = 100) -> list[Row]:
    """Return runs with traces, newest first, or one: id, kind, status, started_at, config and their cycle."""
    there = select(Trace.run_id).where(Trace.run_id == Run.id).exists()
    query = (
        select(Run.id, Run.kind, Run.status, Run.started_at, Run.config, Cycle.number.label("cycle"))
        .join(Cycle, of_cycle(), isouter=True)
        .where(there, Run.project == database.project)
        .order_by(Run.ordinal.desc(), Run.id.desc())
        .limit(limit)
    )
    if run_id is not None:
        query = query.where(Run.id == run_id)
    with database.read() as connection:
        return [dict(row) for row in connection.execute(query).mappings()]


def traces(database: Database, run_id: str) -> list[Row]:
    """Return a run's rollouts in order of their steps, without tokens."""
    query = select(*LISTED).where(Trace.run_id == run_id).order_by(Trace.step, Trace.place)
    with database.read() as connection:
        return [_with_numbers(row) for row in connection.execute(query).mappings()]


def trace(database: Database, run_id: str, step: int, place: int) -> Row:
    """Return one rollout with its tokens."""
    here = Trace.run_id == run_id, Trace.step == step, Trace.place == place
    with database.read() as connection:
        row = connection.execute(select(Trace.__table__).where(*here)).mappings().first()
    if row is None:
        raise NotFound(f"run {run_id} has no rollout {place} at step {step}: choose another")
    return _with_numbers(row)


def _with_numbers(row: RowMapping) -> Row:
    """Return a rollout in which NaN and infinity, which JSON stores by name, are numbers again."""
    found = {**row, "mean": _number(row["mean"])}
    if "tokens" not in row:
        return found
    told = dict(row["tokens"])
    for name in PER_TOKEN:
        told[name] = told.get(name) and [_number(value) for value in told[name]]
    for name in LIKELIEST:
        told[name] = told.get(name) and [
            top and [[piece, _number(logprob)] for piece, logprob in top] for top in told[name]
        ]
    return found | {"tokens": told}


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
