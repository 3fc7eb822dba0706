"""Check the inputs of a distillation before hours of evaluation and midtraining."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.distillation import early_stop, engine_checks, inputs
from pipelines.distillation.leaks import evaluation_prompts
from pipelines.distillation.pool import require_unasked
from recovery.methods.table import with_dials

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig


def check_settings(settings: DistillConfig) -> None:
    """Refuse what the settings alone tell is wrong, and files that they name and that are not there."""
    method = with_dials(settings.method, settings.dials)
    engine_checks.check(settings, method)
    inputs.check_named(settings, method)


def check_inputs(job: DistillJob, home: Path) -> None:
    """Read all inputs of a distillation; the sample of a hub data set is kept in the home for it."""
    method = with_dials(job.settings.method, job.settings.dials)
    data = inputs.read_data(job, method, home)
    evaluated = evaluation_prompts(job.evaluation, lambda line: None)  # the run says what cannot be read
    require_unasked(data, evaluated)
    _, data = inputs.read_reward(job, method, data)
    context = inputs.read_context(job, method, data.pairs)
    if context is not None:
        context.check(data.rows)
    early_stop.hold_out(job, data, evaluated)
