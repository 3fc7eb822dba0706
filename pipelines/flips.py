"""List items that flipped between pass and fail: over all cycles, in one, or between two checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from db.reads import queries
from pipelines.compare import never_scored
from pipelines.runs.recorded import cycle_number
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

Row = dict[str, Any]


def flips(
    ws: Workspace, references: Sequence[str], suite: str | None, direction: str | None, limit: int
) -> Row:
    """Return {"counts": flips by suite, "flips": items}; references are none, cycle:N, or A and B."""
    if len(references) == 2:
        return _between(ws, references[0], references[1], suite, direction, limit)
    if len(references) > 2:
        raise InputError("flips: give cycle:N, two checkpoints, or nothing for all cycles")
    db = ws.tracker.db
    number = cycle_number(references[0]) if references else None
    if number is not None:
        queries.cycle(db, number, earlier=False)  # says so where there is no such cycle
    counts = queries.ledger(db, cycle=number, suite=suite)
    if suite and not counts:
        _refuse_unasked(queries.ledger(db, cycle=number), suite)
    if number is None:
        return {"counts": counts, "flips": []}
    items = queries.ledger_items(db, cycle=number, suite=suite, direction=direction, limit=limit)
    return {"counts": counts, "flips": items}


def _between(ws: Workspace, a: str, b: str, suite: str | None, direction: str | None, limit: int) -> Row:
    db = ws.tracker.db
    first, second = queries.resolve(db, a), queries.resolve(db, b)
    counts = queries.compared(db, first, second, suite=suite)
    if not counts:
        raise never_scored((a, first), (b, second), suite)
    items = []
    for row in counts:
        scores = row["score_a"], row["score_b"]
        found = queries.flips_of_scores(db, *scores, direction=direction, limit=limit)
        items += [{"suite": row["suite"], "metric": row["metric"], **item} for item in found]
    return {"a": first, "b": second, "counts": counts, "flips": items[:limit]}


def _refuse_unasked(counts: Sequence[Row], suite: str) -> None:
    """Refuse a suite that no cycle was asked, if any was asked another."""
    names = dict.fromkeys(row["suite"] for row in counts)
    if names:
        raise InputError(f"no flips of a suite {suite!r}: choose one of {', '.join(names)}")
