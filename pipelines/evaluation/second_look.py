"""Ask the clean and the recovered model further prompts, where IFEval's leave behaviour open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals import verdict
from evals.ifeval import FURTHER, SUITE
from pipelines.config.jobs import CycleJob, EvalJob
from pipelines.evaluate import evaluate, evaluation_within
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace


def may_follow(job: CycleJob) -> bool:
    """Return whether behaviour is judged in two looks; not where a cycle began without further prompts."""
    return SUITE in job.suites and isinstance(job.settings.eval.further_prompts, str)


def is_wanted(job: CycleJob, found: Mapping[str, Any]) -> bool:
    """Return whether nothing but too few prompts stands in the way of acceptance."""
    return may_follow(job) and verdict.blocking(found, job.required) == {"behaviour": verdict.UNDERPOWERED}


def asked(job: CycleJob, checkpoint: str, label: str) -> EvalJob:
    """Return the evaluation of a checkpoint on the further prompts."""
    within = evaluation_within(job, checkpoint, label, job.settings.eval)
    return within.model_copy(update={"suites": (FURTHER,)})


def scores(ws: Workspace, job: CycleJob, stage: Stage, recovered: str) -> dict[str, dict[str, int]]:
    """Ask both models; return the recorded scores by stage and suite."""
    models = {"clean": job.clean, "recovered": recovered}
    return {
        label: evaluate(ws, asked(job, checkpoint, label), parent=stage.id, key=f"further:{label}")[
            "score_ids"
        ]
        for label, checkpoint in models.items()
    }
