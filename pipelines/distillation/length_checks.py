"""Refuse rows of which none is short enough to be trained on, before hours of evaluation and midtraining."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.config.sections.training import LoraConfig
from pipelines.distillation.row_limits import Readers, limit_of_pairs, limits_of_prompts
from pipelines.distillation.teachers import read_by, scoring, trains_on_teacher
from pipelines.engines.engine_checks import INPROCESS
from pipelines.engines.engine_places import engine_lengths
from pipelines.machine.fitting import fitted_here
from pipelines.prompts.lengths import checkpoint_limit, of_reader, require_fitting, smallest

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.distillation.inputs import PromptData
    from pipelines.prompts.prompt_sources import Prompt
    from pipelines.runs.workspace import Workspace
    from recovery.teachers.contexts import Context


PROBE = "rows of distill.stop.probe"


def require_short(
    ws: Workspace,
    job: DistillJob,
    data: PromptData,
    probe: Sequence[Prompt],
    context: Context | None,
    *,
    midtrains: bool,
) -> None:
    """Refuse rows that are all too long for student, engines, teachers or memory to hold with an answer.

    With `midtrains`, the student is still to be midtrained.
    """
    method = job.settings.resolved_method()
    teachers = scoring(ws, job, method, data.rows, midtrains=midtrains)
    settings = _with_longest_row(ws, job, midtrains=midtrains)
    readers = _readers(ws, job, teachers)
    require_fitting(data.prompts, limits_of_prompts(settings, method, context, readers), "prompts")
    require_fitting(data.pairs, [limit_of_pairs(settings, readers)], "pairs")
    require_fitting(probe, [of_reader(readers.encoder, readers.sampler)], PROBE)


def _readers(ws: Workspace, job: DistillJob, teachers: Sequence[str]) -> Readers:
    """Return what will read the rows: of engines that the run itself starts, as they are configured."""
    student, place = ws.checkpoint(job.student), job.settings.sampler
    return Readers(
        ws.encoder(student),
        student=smallest(checkpoint_limit(ws, student)),
        sampler=smallest(*(engine_lengths(place, ws.config) if place != INPROCESS else ())),
        teacher=read_by(ws, job, teachers, engine_lengths(job.settings.teacher_engine, ws.config)),
    )


def _with_longest_row(ws: Workspace, job: DistillJob, *, midtrains: bool) -> DistillConfig:
    """Return the settings with the longest row that the memory holds, as the distillation will fit it.

    Before a midtraining that is the most it may hold: beside a small adapter on the teacher itself.
    """
    settings = job.settings.model_copy(update={"lora": LoraConfig(rank=1)}) if midtrains else job.settings
    fit = partial(fitted.fit_distillation, on_teacher=midtrains or trains_on_teacher(ws, job))
    longest = fitted_here(ws, ws.checkpoint(job.student), settings, fit).longest_row
    return job.settings.model_copy(update={"longest_row": longest})
