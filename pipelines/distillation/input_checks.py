"""Check the inputs of a distillation before hours of evaluation and midtraining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.distillation import early_stop, engine_checks, inputs, lengths
from pipelines.distillation.leaks import evaluation_prompts
from pipelines.distillation.pool import require_unasked
from pipelines.distillation.prompts import Prompt
from recovery.errors import InputError
from recovery.methods.table import with_dials

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.runs.workspace import Workspace


def check_settings(settings: DistillConfig) -> None:
    """Refuse what the settings alone tell is wrong, and files that they name and that are not there."""
    method = with_dials(settings.method, settings.dials)
    engine_checks.check(settings, method)
    inputs.check_named(settings, method)


def check_inputs(ws: Workspace, job: DistillJob) -> inputs.PromptData:
    """Read all inputs of a distillation and return its rows; the home keeps the sample of a hub data set."""
    method = with_dials(job.settings.method, job.settings.dials)
    data = inputs.read_data(job, method, ws.home)
    require_askable(ws, job.student, data.prompts)
    evaluated = evaluation_prompts(job.evaluation, lambda line: None)  # the run says what cannot be read
    require_unasked(data, evaluated)
    _, data = inputs.read_reward(job, method, data)
    context = inputs.read_context(job, method, data.pairs)
    if context is not None:
        context.check(data.rows)
    early_stop.hold_out(job, data, evaluated)
    return data


def require_askable(ws: Workspace, student: str, prompts: Sequence[Prompt]) -> None:
    """Refuse prompts that the chat template rejects, tried on one of each order of turns, and prompts of
    which none leaves room for an answer."""
    checkpoint = ws.checkpoint(student)
    encoder = ws.encoder(checkpoint)
    for prompt in {_turns(prompt): prompt for prompt in reversed(prompts)}.values():
        try:
            encoder.check(prompt.messages)
        except InputError as error:
            raise InputError(f"prompts: {prompt.text[:60]!r}: {error}: change or drop such rows") from error
    limit = lengths.checkpoint_limit(ws, checkpoint)
    if not prompts or limit is None:
        return
    counts = (lengths.tokens_if_long(encoder.prompt_ids, prompt.messages, limit) for prompt in prompts)
    if all(count >= limit for count in counts):
        raise InputError(
            f"all prompts leave no room for an answer: the limit is {limit:,} tokens; shorten them, such as "
            f"{prompts[0].text[:60]!r}"
        )


def _turns(prompt: Prompt) -> tuple[tuple[str, ...], ...]:
    """Return the roles of a prompt's turns with what each holds: by these a template takes or rejects it."""
    return tuple((str(turn.get("role")), *sorted(turn)) for turn in prompt.messages)
