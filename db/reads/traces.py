"""Read token traces: the runs that have traces, their rollouts, and single rollouts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from db.reads.rows import Row, method_of, of_cycle, only, rows_of
from db.schema import Cycle, Run, Trace
from db.session import Database

LISTED = (Trace.step, Trace.place, Trace.estimator, Trace.mean, Trace.n, Trace.prompt)
PER_TOKEN = ("student", "teacher", "divergence")  # among the `tokens` of a trace: a number a token
LIKELIEST = ("student_top", "teacher_top")  # the likeliest tokens, each with its log-probability


def traced_runs(database: Database, *, run_id: str | None = None, limit: int = 100) -> list[Row]:
    """Return runs with traces, newest first, or one: id, kind, status, started_at, method and their cycle."""
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
    return [row | {"method": method_of(row.pop("config"))} for row in rows_of(database, query)]


def traces(database: Database, run_id: str) -> list[Row]:
    """Return a run's rollouts in order of their steps, without tokens."""
    query = select(*LISTED).where(Trace.run_id == run_id).order_by(Trace.step, Trace.place)
    return [_with_numbers(row) for row in rows_of(database, query)]


def trace(database: Database, run_id: str, step: int, place: int) -> Row:
    """Return one rollout with its tokens."""
    here = Trace.run_id == run_id, Trace.step == step, Trace.place == place
    rows = rows_of(database, select(Trace.__table__).where(*here))
    return _with_numbers(only(rows, f"run {run_id} has no rollout {place} at step {step}: choose another"))


def _with_numbers(row: Row) -> Row:
    """Return a rollout in which NaN and infinity, which JSON stores by name, are numbers again."""
    found = {**row, "mean": _number(row["mean"])}
    if "tokens" not in row:
        return found
    tokens = dict(row["tokens"])
    for name in PER_TOKEN:
        tokens[name] = tokens.get(name) and [_number(value) for value in tokens[name]]
    for name in LIKELIEST:
        tokens[name] = tokens.get(name) and [
            top and [[piece, _number(logprob)] for piece, logprob in top] for top in tokens[name]
        ]
    return found | {"tokens": tokens}


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value
