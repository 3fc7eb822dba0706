"""Read the scores of an evaluation back from the database, with their items."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.reads import queries
from evals.scores import Item, Score
from pipelines.config.jobs import EvalJob
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

Items = Mapping[str, Mapping[str, Sequence[Item]]]  # suite -> stage -> items


@dataclass(frozen=True)
class Recorded:
    """A suite's scores, the headline first, and where they were measured: cycle:N, or a run."""

    scores: list[Score]
    where: str


def recorded(ws: Workspace, job: EvalJob, run_id: str, suite: str, conditions: str) -> Recorded | None:
    """Return the scores of a suite that were measured under these conditions, if any were.

    They are the run's own, from before an interruption; else a finished run's, if the job reuses scores."""
    rows = _measured_under(ws, job, run_id, suite, conditions)
    if not rows:
        return None
    cycle, measured_in = rows[0]["cycle"], rows[0]["run_id"]
    origin = {} if measured_in == run_id else {queries.RECORDED_IN: measured_in}
    where = f"cycle:{cycle}" if cycle is not None else measured_in
    return Recorded([_score(ws, row, origin) for row in rows], where)


def is_recorded(ws: Workspace, job: EvalJob, run_id: str, suite: str, conditions: str) -> bool:
    """Return whether a suite's scores were measured under these conditions; no items are read."""
    return bool(_measured_under(ws, job, run_id, suite, conditions))


def _measured_under(
    ws: Workspace, job: EvalJob, run_id: str, suite: str, conditions: str
) -> list[dict[str, Any]]:
    """Return the recorded scores of a suite, without their items."""
    reuse = job.reuse and job.output is None  # lm-eval's own files are written as answers come
    return queries.scores_under(ws.tracker.db, job.checkpoint, suite, conditions, run_id=run_id, others=reuse)


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
    found = queries.items(ws.tracker.db, score_id)
    return [
        Item(row["key"], row["prompt"], row["response"], bool(row["passed"]), row["detail"]) for row in found
    ]


def items_by_suite(ws: Workspace, scores: Mapping[str, Mapping[str, int]], suites: Iterable[str]) -> Items:
    """Return what each stage answered, by suite; a stage that was not asked is absent."""
    return {
        suite: {stage: recorded_items(ws, ids[suite]) for stage, ids in scores.items() if suite in ids}
        for suite in suites
    }


def beside(standards: Items, answered: Items) -> Items:
    """Return a further model's answers beside those that they are compared with, to the same questions.

    A suite that it did not answer stays, without answers: a family that must hold stands as not measured.
    """
    both = {suite: {**standards[suite], **stages} if stages else {} for suite, stages in answered.items()}
    require_same_questions(both)
    return both


def require_same_questions(asked: Items) -> None:
    """Refuse to compare answers to different questions, even under the same keys."""
    for suite, stages in asked.items():
        questions = {stage: {(item.key, item.prompt) for item in items} for stage, items in stages.items()}
        first = next(iter(questions), "")
        for other in questions:
            if questions[other] != questions[first]:
                raise InputError(
                    f"{suite}: {first} and {other} answered different questions: "
                    "begin a new run to evaluate both"
                )
