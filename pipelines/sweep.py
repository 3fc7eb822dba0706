"""Sweep the merge weight: merge and measure every share, and mark the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evals import verdict
from evals.probes import KNOWLEDGE
from pipelines.config.jobs import MergeJob, Mixture, SweepJob
from pipelines.evaluate import evaluate, evaluation_within
from pipelines.merge import check_options, merge, require_share
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

JUDGED = (verdict.BEHAVIOUR, KNOWLEDGE)  # criteria of the Pareto front
WHOLE = ("linear", "slerp")  # kinds that are the other checkpoint itself at weight 1


def sweep(ws: Workspace, job: SweepJob, *, key: str | None = None) -> Result:
    """Return {"points": [{"weight", "checkpoint", "behaviour", "knowledge", ..., "pareto"}]} by weight.

    Both ends are measured: the student (weight 0) and, but for a residual, weight 1: the other checkpoint, or
    the mixture where that leaves some of the student's weights as they are."""
    for weight in job.weights:
        require_share(weight)
    check_options(job)
    job = pinned(ws, job)
    return run_job(ws, "sweep", _work, job, key=key)


def _work(ws: Workspace, job: SweepJob, stage: Stage) -> Result:
    ends = {0.0, 1.0} if job.kind != "residual" else {0.0}
    weights = sorted(ends | set(job.weights))
    points = []
    for number, weight in enumerate(weights, 1):
        points.append(_point(ws, job, stage, weight))
        stage.live.progress(number, len(weights))
    best = pareto([[point.get(axis) for axis in JUDGED] for point in points])
    return {"points": [point | {"pareto": front} for point, front in zip(points, best, strict=True)]}


def _point(ws: Workspace, job: SweepJob, stage: Stage, weight: float) -> dict[str, Any]:
    """Merge one share, unless a checkpoint is that already, and measure it."""
    there = {0.0: job.student} | ({1.0: job.other} if job.kind in WHOLE else {})
    share = named_share(weight)
    checkpoint = there.get(weight)
    if checkpoint is None:
        made = MergeJob(weight=weight, **job.model_dump(include=set(Mixture.model_fields)))
        checkpoint = str(merge(ws, made, parent=stage.id, key=f"merge:{share}")["checkpoint"])
    asked = evaluation_within(job, checkpoint, f"weight {share}", job.settings)
    scores = evaluate(ws, asked, parent=stage.id, key=f"eval:{share}")["scores"]
    names = {axis.suite: axis.name for axis in verdict.AXES}
    found = {names.get(suite, suite): row["score"] for suite, row in scores.items() if "score" in row}
    return {"weight": weight, "checkpoint": checkpoint, **found}


def named_share(weight: float) -> str:
    """Return a share with all its digits, since stages of one name are one stage; a whole one as 0 or 1."""
    return repr(float(weight)).removesuffix(".0")


def pareto(points: Sequence[Sequence[float | None]]) -> list[bool | None]:
    """Mark the points that no other point dominates; None where nothing of a point was measured."""
    values = [[value for value in point if value is not None] for point in points]
    return [not any(_dominates(other, point) for other in values) if point else None for point in values]


def _dominates(point: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether a point is nowhere lower than another one, and somewhere higher."""
    pairs = list(zip(point, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def parse_weights(text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers: `0.1,0.3`."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--sweep {text}: write weights with commas, as in 0.1,0.3,0.5") from error
    for weight in found:
        require_share(weight)
    return found
