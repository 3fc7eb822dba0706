"""Distillation: the student writes, the teacher scores what it wrote, the objective says what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.config import DistillConfig, EvalConfig, Section
from pipelines.evaluate import evaluation_prompts
from pipelines.prompts import Prompt, drop_leaks, read_prompts
from pipelines.stages import Result, Stage, run_stage
from pipelines.training import run_training
from pipelines.workspace import Workspace
from recovery.dials import Method
from recovery.errors import InputError
from recovery.methods import with_dials

if TYPE_CHECKING:
    from recovery.checkpoints import Checkpoint
    from recovery.models import ChatModel
    from recovery.teachers import Teacher


class DistillJob(Section):
    """What a distillation was asked to do: enough to do it again."""

    student: str
    teacher: str
    prompts: str
    settings: DistillConfig
    evaluation: EvalConfig  # whose prompts must not be trained on
    seed: int = 0


def distill(ws: Workspace, job: DistillJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Brings the student's behaviour back from the teacher; returns {"checkpoint": id, ...}."""
    with_dials(job.settings.method, job.settings.dials)  # a wrong dial is refused before anything is recorded
    return run_stage(
        ws, "distill", lambda stage: _work(ws, job, stage),
        config=job.model_dump(), parent=parent, key=key, seed=job.seed, label="distill",
    )  # fmt: skip


def _work(ws: Workspace, job: DistillJob, stage: Stage) -> Result:
    from recovery.episodes import Episodes
    from recovery.sampling import InProcessSampler

    method = with_dials(job.settings.method, job.settings.dials)
    prompts = _prompts(job, stage)
    parent = ws.checkpoint(job.student)
    student = _student(ws, job, parent)
    teacher, teacher_model = _teacher(ws, job, method, parent, student)
    if job.settings.preflight:
        _preflight(stage, student, teacher_model, prompts)
    episodes = Episodes(
        student, InProcessSampler(student), teacher, method, [prompt.messages for prompt in prompts],
        prompts_per_step=job.settings.prompts_per_step, samples_per_prompt=job.settings.samples_per_prompt,
        max_new_tokens=job.settings.max_new_tokens, microbatch_tokens=job.settings.microbatch_tokens, seed=job.seed,
    )  # fmt: skip
    stage.say(f"  method       {method.name}: {method.signal} from {job.teacher} on {method.states} states;"
              f" {len(prompts):,} prompts, {job.settings.steps} steps")
    report = run_training(
        stage, student, episodes, method, settings=job.settings, steps=job.settings.steps, seed=job.seed
    )
    stage.spend(tokens_sampled=episodes.tokens_sampled, tokens_scored=episodes.tokens_scored)
    checkpoint = ws.publish(student, parent=parent, run_id=stage.id, config={"stage": "distill", **job.model_dump()})
    return {"checkpoint": checkpoint.id, "method": method.name, "tokens": report.tokens, "stopped": report.stopped}


def _prompts(job: DistillJob, stage: Stage) -> list[Prompt]:
    """The recovery prompts without those that the evaluation asks."""
    found = read_prompts(job.prompts, job.seed)
    kept, leaked = drop_leaks(found, evaluation_prompts(job.evaluation, stage))
    if leaked:
        stage.say(f"  prompts      {leaked} of {len(found):,} are evaluation prompts: left out")
    if not kept:
        raise InputError(f"{job.prompts}: every prompt is an evaluation prompt: give other --prompts")
    return kept


def _student(ws: Workspace, job: DistillJob, parent: Checkpoint) -> ChatModel:
    from recovery import models

    student = ws.load(parent)
    if job.settings.lora and parent.kind != "adapter":
        return models.add_lora(student, models.LoraSpec(**job.settings.lora.model_dump()))
    return student


def _teacher(
    ws: Workspace, job: DistillJob, method: Method, parent: Checkpoint, student: ChatModel
) -> tuple[Teacher, ChatModel]:
    """The frozen teacher. A student that is an adapter on the teacher's own weights needs no second model."""
    from recovery.teachers import AdapterOffTeacher, CheckpointTeacher

    kind = "dense" if method.scores == "none" else method.scores
    checkpoint = ws.checkpoint(job.teacher)
    if parent.kind == "adapter" and parent.base == checkpoint.id:
        return AdapterOffTeacher(student, kind, method.k), student
    model = ws.load(checkpoint)
    return CheckpointTeacher(model, kind, method.k), model


def _preflight(stage: Stage, student: ChatModel, teacher: ChatModel, prompts: list[Prompt]) -> None:
    """What must be true before a GPU-hour is spent; the first thing that is not stops the stage."""
    from recovery import preflight

    checks = preflight.checks(student, teacher, [prompt.messages for prompt in prompts])
    preflight.require(checks)
    stage.say(f"  preflight    all {len(checks)} checks passed")


def preflight_report(ws: Workspace, student: str, teacher: str, prompts: list[Prompt]) -> list[Any]:
    """Every check of a pair, for `recover preflight`."""
    from recovery import preflight

    one, other = ws.load(ws.checkpoint(student)), ws.load(ws.checkpoint(teacher))
    return preflight.checks(one, other, [prompt.messages for prompt in prompts])
