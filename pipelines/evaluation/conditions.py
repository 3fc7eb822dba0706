"""Hash all that decides a suite's scores, beside the checkpoint: under equal conditions they are the same."""

from __future__ import annotations

import hashlib
import json
import os

from db.values import plain
from pipelines.config.jobs import EvalJob
from pipelines.engines.engine_checks import COLOCATED, INPROCESS, OWN_SERVER
from pipelines.evaluation.suites import Suite
from pipelines.runs.code_version import code_revision, device, versions
from pipelines.runs.pinned_inputs import MODEL
from pipelines.runs.workspace import Workspace

# Settings that reach no answer: margins, and what chooses the questions, which are hashed themselves.
NOT_DECIDING = {
    "reuse",
    "ifeval",
    "further_prompts",
    "probes",
    "tasks",
    "behaviours",
    "behaviours_items",
    "earlier_questions",
    "open_book",
    "margin",
    "retention_margin",
    "update_lead",
    "behaviours_margin",
    "task_points",
}


def conditions(ws: Workspace, job: EvalJob, suite: Suite, run_id: str) -> str:
    """Return a digest of everything that decides the scores; where some of it is not known, of the run too.

    Not known are the questions of lm-eval's tasks, and what a server elsewhere runs."""
    settings = job.settings
    known = suite.questions is not None and settings.sampler in (INPROCESS, COLOCATED, OWN_SERVER)
    deciding = {
        "questions": suite.questions,
        "settings": settings.model_dump(exclude=NOT_DECIDING),
        "seed": job.seed if settings.samples > 1 else 0,  # greedy answers are the same for every seed
        "model": job.inputs[MODEL],
        "engine": None if settings.sampler == INPROCESS else ws.config.engine.model_dump(),
        "device": _device(),
        "versions": versions(),
        "revision": code_revision(),
        **({} if known else {"run": run_id}),
    }
    return hashlib.sha256(json.dumps(plain(deciding), sort_keys=True).encode()).hexdigest()


def _device() -> list[str | None]:
    """Return what computes, and whether the engine for Llama-like models on a CPU is switched off; of a CPU
    also that engine's own arithmetic, which rounds differently."""
    import torch

    from recovery.forward.fast_path import SWITCH, fast_path

    arithmetic = None if torch.cuda.is_available() else fast_path().arithmetic()
    return [device(), os.environ.get(SWITCH), arithmetic]
