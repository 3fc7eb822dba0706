"""Build the jobs of stages that make a checkpoint: midtraining, distillation, merge, sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config.jobs import DistillJob, MergeJob, MidtrainJob, Mixture, SweepJob
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.settings import Config
from pipelines.distillation.input_checks import check_settings, check_without_prompts, checked_inputs
from pipelines.distillation.inputs import refuse_ignored, wanted_of_rows
from pipelines.job_from_options.document_checks import require_questions
from pipelines.job_from_options.ifeval_prompts import with_ifeval_left_out
from pipelines.job_from_options.inputs import (
    NONE,
    Changes,
    absolute,
    guard_typed,
    ifeval_asked,
    midtraining_prompts,
    newest_midtrained,
    readable_folder,
    recovery_prompts,
    refuse_prompts,
    require_probes,
    resolved,
    taught_folder,
    training_folder,
    with_augmented,
    with_routes,
)
from pipelines.job_from_options.measure import eval_job
from pipelines.job_from_options.teacher_servers import require_teacher_kept
from pipelines.job_from_options.trained_weights import require_registered, require_trainable
from pipelines.knowledge import passage_teaching
from pipelines.knowledge.guards import holding_out
from pipelines.machine.disk_space import require_space
from pipelines.machine.held_memory import require_memory
from pipelines.merge import check_options, require_mergeable
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace
from pipelines.sweep import parse_weights
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.storage.checkpoints import Checkpoint

OPTIONS_OF_SOME_METHODS = {
    "pairs": "distill.pairs",
    "context": "distill.context",
    "reward": "distill.reward",
    "route": "distill.routes",
}


def midtrain_job(
    ws: Workspace,
    docs: Path,
    student: str = "current",
    *,
    augment: Path | None = None,
    changes: Changes = NONE,
) -> MidtrainJob:
    settings = resolved(ws, docs, changes)
    chosen = ws.checkpoint(student)
    require_stage(ws, chosen, settings, "midtrain", changes)
    folder = training_folder(ws, docs, settings)
    midtrain = with_augmented(settings.midtrain, augment, changes)
    if not midtrain.mix.chat:
        refuse_prompts(changes, "in a midtraining without chat, which they are for")
    passage_teaching.check(midtrain, augment)
    settings = with_ifeval_left_out(ws, settings, changes)
    earlier = earlier_probes(ws, chosen.id)
    require_questions(ws, docs, chosen.id, settings, earlier)
    return MidtrainJob(
        docs=folder,
        student=chosen.id,
        settings=holding_out(midtrain, [settings.distill]),
        evaluation=settings.eval,
        earlier=earlier,
        augment=absolute(augment) if augment else None,
        answer_tokens=settings.distill.max_new_tokens,
        prompts=midtraining_prompts(ws, docs, chosen.id, settings, changes, earlier),
        seed=settings.seed,
    )


def require_stage(
    ws: Workspace,
    student: Checkpoint,
    settings: Config,
    stage: str,
    changes: Changes,
    *,
    teacher: str = "base",
    further: int = 0,
) -> None:
    """Refuse a stage of its own that cannot train the student, or has no room; and unreadable probes.

    It writes so many `further` checkpoints beside its own.
    """
    require_registered(ws)
    require_trainable(ws, student, settings, stage, changes)
    require_space(ws, student, settings, (stage,), further=further)
    require_memory(ws, student, settings, (stage,), ws.checkpoint(teacher))
    require_probes(settings)


def distill_job(
    ws: Workspace,
    teacher: str = "base",
    student: str | None = None,
    *,
    docs: Path | None = None,
    changes: Changes = NONE,
) -> DistillJob:
    """Build a distillation; without a student, of the newest midtrained checkpoint."""
    chosen = ws.checkpoint(student or newest_midtrained(ws))
    about = docs or taught_folder(ws, chosen.id)
    settings = resolved(ws, about, {**ifeval_asked(ws, chosen.id, about), **changes})
    require_stage(ws, chosen, settings, "distill", changes, teacher=teacher)
    distill = _distilling(ws, chosen, settings, changes)
    folder = readable_folder(ws, docs, settings) if docs else None
    settings = with_ifeval_left_out(ws, settings, changes)
    job = DistillJob(
        student=chosen.id,
        teacher=ws.checkpoint(teacher).id,
        settings=distill,
        prompts=settings.distill.prompts,
        evaluation=settings.eval,
        earlier=earlier_probes(ws, chosen.id),
        docs=folder,
        seed=settings.seed,
    )
    if distill.reads_prompts:
        check_without_prompts(ws, job)
        prompts = recovery_prompts(ws, settings, changes, wanted=wanted_of_rows(distill))
        job = job.model_copy(update={"prompts": prompts})
    checked_inputs(ws, job)
    return job


def _distilling(ws: Workspace, student: Checkpoint, settings: Config, changes: Changes) -> DistillConfig:
    """Return the settings of a distillation with its routes; refuse dials, engines and options that its
    method has no use for."""
    distill = with_routes(ws, settings.distill)
    check_settings(distill, ws.config)
    require_teacher_kept(ws, student, settings)
    method = distill.resolved_method()
    if "distill.prompts" in changes and not distill.reads_prompts:
        raise InputError(
            f"--prompts has no effect with method {distill.method!r} and distill.pairs (--pairs), which it "
            "reads alone: leave one of them out"
        )
    typed = {option: changes.get(key) for option, key in OPTIONS_OF_SOME_METHODS.items()}
    refuse_ignored(method, **typed, overlap=guard_typed(changes))
    return distill


def merge_job(
    ws: Workspace,
    weight: float,
    other: str = "base",
    student: str | None = None,
    origin: str | None = None,
    **how: Any,
) -> MergeJob:
    """Build a merge; `how` is its kind, and which entries of a residual are kept."""
    return MergeJob(
        student=ws.checkpoint(student or newest_midtrained(ws)).id,
        other=ws.checkpoint(other).id,
        weight=weight,
        origin=ws.checkpoint(origin).id if origin else None,
        **how,
    )


def sweep_job(
    ws: Workspace, weights: str, merged: MergeJob, suites: str | None = None, changes: Changes = NONE
) -> SweepJob:
    """Build a sweep: one merge in each of several shares, and how to evaluate each."""
    shares = parse_weights(weights)
    check_options(merged)
    require_mergeable(ws, merged)  # the student is evaluated before the first merge
    measured = eval_job(ws, merged.student, suites, changes=changes, narrow=False)
    return SweepJob(
        **merged.model_dump(include=set(Mixture.model_fields)),
        weights=shares,
        suites=measured.suites,
        settings=measured.settings,
        seed=measured.seed,
    )
