"""Look at a distillation without training: the prompts as the models read them, and the preflight checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipelines.config.jobs import DistillJob
from pipelines.distillation import inputs
from pipelines.engines import engine_places
from pipelines.prompts.prompt_sources import Prompt
from pipelines.runs.workspace import Workspace

if TYPE_CHECKING:
    from recovery.teachers.contexts import Messages


def show_prompts(ws: Workspace, job: DistillJob, count: int) -> list[dict[str, str]]:
    """Render the first rows as student and teacher would read them; load no model."""
    from recovery.teachers import contexts

    method = job.settings.resolved_method()
    data = inputs.read_data(job, method, ws.home)
    context = inputs.read_context(job, method, data.pairs)
    encoder = ws.encoder(ws.checkpoint(job.student))

    def rendered(messages: Messages) -> str:
        return str(encoder.tokenizer.decode(encoder.prompt_ids(messages)))

    return contexts.show(data.rows[:count], context, rendered)


def preflight_report(
    ws: Workspace, student: str, teacher: str, prompts: list[Prompt], sampler: str
) -> list[Any]:
    """Run all checks of a student, its teacher and its sampler, for `recover preflight`."""
    from recovery.training import preflight

    checkpoint = ws.checkpoint(student)
    with engine_places.Engines(ws, ws.home / "engines") as started:
        one = ws.load(checkpoint)
        other = ws.load(ws.checkpoint(teacher))
        writer = started.sampler(sampler, one, checkpoint, follow=False)
        return preflight.checks(one, other, [prompt.messages for prompt in prompts], writer)
