"""Read the scores of an evaluation back from the database, with their items."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.reads import queries
from evals.scores import Item, Score
from pipelines.config.jobs import EvalJob
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError


@dataclass(frozen=True)
class Recorded:
    """A suite's scores, the headline first, and where they were measured: cycle:N, or a run."""

    scores: list[Score]
    where: str


def recorded(ws: Workspace, job: EvalJob, run_id: str, suite: str, conditions: str | None) -> Recorded | None:
    """Return the scores of a suite that were measured under these conditions, if any were.

    They are the run's own, from before an interruption; else a finished run's, if the job reuses scores."""
    if conditions is None:
        return None
    reuse = job.reuse and job.output is None  # lm-eval's own files are written as answers come
    rows = queries.scores_under(ws.tracker.db, job.checkpoint, suite, conditions, run_id=run_id, others=reuse)
    if not rows:
        return None
    cycle, measured_in = rows[0]["cycle"], rows[0]["run_id"]
    origin = {} if measured_in == run_id else {queries.RECORDED_IN: measured_in}
    where = f"cycle:{cycle}" if cycle is not None else measured_in
    return Recorded([_score(ws, row, origin) for row in rows], where)


def _score(ws: Workspace, row: Mapping[str, Any], origin: Mapping[str, str]) -> Score:
    return Score(
        suite=row["suite"],
        metric=row["metric"],
        value=_number(row["value"]),
        n=row["n"],
        interval=(_number(row["low"]), _number(row["high"])),
        items=tuple(recorded_items(ws, row["id"])),
        details={**row["details"], **origin},
    )


def _number(value: float | None) -> float:
    """Return a recorded number; what is undefined has none."""
    return math.nan if value is None else value


def recorded_items(ws: Workspace, score_id: int) -> list[Item]:
    """Return the items of a recorded score."""
    found = queries.items(ws.tracker.db, score_id, limit=2**31)
    return [
        Item(row["key"], row["prompt"], row["response"], bool(row["passed"]), row["detail"]) for row in found
    ]


def require_same_questions(suite: str, stages: Mapping[str, Sequence[Item]]) -> None:
    """Refuse to compare answers to different questions, even under the same keys."""
    if not stages:
        return
    first, *others = stages
    asked = {(item.key, item.prompt) for item in stages[first]}
    for other in others:
        if {(item.key, item.prompt) for item in stages[other]} != asked:
            raise InputError(
                f"{suite}: {first} and {other} answered different questions: begin a new run to evaluate both"
            )
