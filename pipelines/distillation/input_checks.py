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
    from pipelines.prompts.leaks import AskedPrompts
    from pipelines.runs.workspace import Workspace
    from recovery.methods.method import Method


def check_settings(settings: DistillConfig, config: Config) -> None:
    """Refuse what the settings alone tell is wrong, and files and servers that they name and that are not
    there."""
    method = settings.resolved_method()
    engine_checks.check(settings, method, sharded=config.model.shard)
    engine_checks.require_watched(settings, method)
    for name, where in (("sampler", settings.sampler), ("teacher engine", settings.teacher_engine)):
        engine_places.require_place(name, where, config)
    inputs.require_named(settings, method)


def check_without_prompts(ws: Workspace, job: DistillJob, *, midtrains: bool = False) -> None:
    """Refuse what a distillation cannot use whatever its prompts are, before these are written or read.

    With `midtrains`, the job's student is still to be midtrained.
    """
    method = job.settings.resolved_method()
    data = inputs.PromptData([], inputs.read_pairs(job, method, ws.home))
    asked = asked_prompts(job.evaluation, job.earlier)
    _check_rows(ws, job, data, asked)
    _check_teachers(ws, job, method, data.rows, midtrains=midtrains)
    if job.settings.stop and job.settings.stop.probe:
        _without_probe(ws, job, data, asked)


def checked_inputs(
    ws: Workspace, job: DistillJob, *, midtrains: bool = False, only_way: bool = True
) -> inputs.PromptData:
    """Read all inputs of a distillation and return its rows; the home keeps the sample of a hub data set.

    With `midtrains`, the job's student is still to be midtrained. Unless the distillation is the `only_way`
    to recover it, rows that are all too long are let pass: a choice leaves out what cannot be made.
    """
    method = job.settings.resolved_method()
    data = inputs.read_data(job, method, ws.home)
    asked = asked_prompts(job.evaluation, job.earlier)
    _check_rows(ws, job, data, asked)
    by_row = method.needs_rewards or method.context != "none" or method.teacher == "routed"
    trained = unasked(data, asked) if by_row or job.settings.stop else data
    require_routes(job, method, trained.rows)
    _check_teachers(ws, job, method, trained.rows, midtrains=midtrains)
    trained, probe = _without_probe(ws, job, trained, asked)
    _, trained = inputs.read_reward(job, method, trained)
    context = inputs.read_context(job, method, trained.pairs)
    if context is not None:
        context.check(trained.rows)
    if only_way:
        require_short(ws, job, trained, probe, context, midtrains=midtrains)
    return data


def _check_rows(ws: Workspace, job: DistillJob, data: inputs.PromptData, asked: AskedPrompts) -> None:
    """Refuse prompts or pairs that the student cannot be asked, or that the evaluation asks, every one."""
    require_askable(ws, job.student, data.prompts)
    require_askable(ws, job.student, data.pairs, name="pairs")
    require_unasked(data, asked)


def _check_teachers(
    ws: Workspace, job: DistillJob, method: Method, rows: Sequence[Prompt], *, midtrains: bool
) -> None:
    """Refuse teachers that cannot teach these rows, and an engine of theirs without room for an answer."""
    require_teachers(ws, job, method, rows, midtrains=midtrains)
    if method.state_kind != "data" and job.settings.teacher_engine != engine_checks.INPROCESS:
        _require_teachers_room(ws, job, scoring(ws, job, method, rows, midtrains=midtrains))


def _without_probe(
    ws: Workspace, job: DistillJob, data: inputs.PromptData, asked: AskedPrompts
) -> tuple[inputs.PromptData, list[Prompt]]:
    """Return the rows without an early stop's probe, and the probe; refuse one too small or unaskable."""
    kept, probe = early_stop.hold_out(job, data, asked, ws.home)
    early_stop.require_enough(job.settings.stop, probe)
    require_askable(ws, job.student, probe, name=PROBE)
    return kept, probe


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
