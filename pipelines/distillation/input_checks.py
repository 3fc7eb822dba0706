"""Check the inputs of a distillation before hours of evaluation and midtraining."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.distillation import early_stop, inputs
from pipelines.distillation.length_checks import PROBE, require_short
from pipelines.distillation.pool import require_unasked, unasked
from pipelines.distillation.teachers import require_routes, require_teachers, scoring
from pipelines.engines import engine_checks, engine_places
from pipelines.prompts import lengths
from pipelines.prompts.leaks import asked_prompts
from pipelines.prompts.prompt_sources import Prompt
from pipelines.prompts.unaskable import first_refusal
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.config.settings import Config
    from pipelines.runs.workspace import Workspace


def check_settings(settings: DistillConfig, config: Config) -> None:
    """Refuse what the settings alone tell is wrong, and files and servers that they name and that are not
    there."""
    method = settings.resolved_method()
    engine_checks.check(settings, method, sharded=config.model.shard)
    engine_checks.require_watched(settings, method)
    for name, where in (("sampler", settings.sampler), ("teacher engine", settings.teacher_engine)):
        engine_places.require_place(name, where, config)
    inputs.require_named(settings, method)


def checked_inputs(ws: Workspace, job: DistillJob, *, midtrains: bool = False) -> inputs.PromptData:
    """Read all inputs of a distillation and return its rows; the home keeps the sample of a hub data set.

    With `midtrains`, the job's student is still to be midtrained.
    """
    method = job.settings.resolved_method()
    data = inputs.read_data(job, method, ws.home)
    require_askable(ws, job.student, data.prompts)
    require_askable(ws, job.student, data.pairs, name="pairs")
    asked = asked_prompts(job.evaluation, job.earlier)
    require_unasked(data, asked)
    by_row = method.needs_rewards or method.context != "none" or method.teacher == "routed"
    trained = unasked(data, asked) if by_row or job.settings.stop else data
    require_routes(job, method, trained.rows)
    require_teachers(ws, job, method, trained.rows, midtrains=midtrains)
    if trained.prompts and job.settings.teacher_engine != engine_checks.INPROCESS:
        _require_teachers_room(ws, job, scoring(ws, job, method, trained.rows, midtrains=midtrains))
    trained, probe = early_stop.hold_out(job, trained, asked, ws.home)
    early_stop.require_enough(job.settings.stop, probe)
    require_askable(ws, job.student, probe, name=PROBE)
    _, trained = inputs.read_reward(job, method, trained)
    context = inputs.read_context(job, method, trained.pairs)
    if context is not None:
        context.check(trained.rows)
    require_short(ws, job, trained, probe, context, midtrains=midtrains)
    return data


def _require_teachers_room(ws: Workspace, job: DistillJob, teachers: Sequence[str]) -> None:
    """Refuse an engine of the teachers that has no room for an answer behind any prompt.

    It reads one token fewer than its length: it is asked to write one behind what it scores.
    """
    settings = job.settings
    made_for = [lengths.checkpoint_limit(ws, ws.checkpoint(ref)) for ref in teachers]
    limit = lengths.smallest(*made_for, *engine_places.engine_lengths(settings.teacher_engine, ws.config))
    own = lengths.smallest(lengths.checkpoint_limit(ws, ws.checkpoint(job.student)))
    if limit - 1 <= settings.max_new_tokens and limit - 1 < own:
        named = "engine.max_length" if limit == ws.config.engine.max_length else "the length of the teacher"
        raise InputError(
            f"{named} {limit:,.0f} leaves no room for a prompt before answers of "
            f"{settings.max_new_tokens:,} tokens: raise it, or lower distill.max_new_tokens"
        )


def require_askable(ws: Workspace, student: str, prompts: Sequence[Prompt], *, name: str = "prompts") -> None:
    """Refuse prompts that the chat template rejects, and prompts of which none leaves room for an answer."""
    if not prompts:
        return
    checkpoint = ws.checkpoint(student)
    encoder = ws.encoder(checkpoint)
    if refusal := first_refusal(encoder, [prompt.messages for prompt in prompts], tools=False):
        row = prompts[refusal.place]
        place = f" ({row.where})" if row.where else ""
        raise InputError(f"{name}: {row.text[:60]!r}{place}: {refusal.why}: change or drop such rows")
    limit = lengths.smallest(lengths.checkpoint_limit(ws, checkpoint))
    lengths.require_fitting(prompts, [lengths.of_reader(encoder, limit)], name)
