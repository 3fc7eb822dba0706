"""The rows that a distillation trains on: chosen once by the first process, the same in a resumed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipelines.distillation.inputs import PromptData, read_data
from pipelines.distillation.row_limits import Readers, limit_of_pairs, limits_of_prompts
from pipelines.distillation.teachers import Teachers
from pipelines.engines.engine_checks import INPROCESS
from pipelines.prompts.leaks import AskedPrompts
from pipelines.prompts.lengths import fitting, model_limit, most_tokens, smallest, warn_of_context
from pipelines.prompts.prompt_sources import Prompt
from recovery.distributed import in_turn
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.runs.stage_runner import Stage
    from recovery.methods.method import Method
    from recovery.teachers.contexts import Context

KEPT_POOL = "pool.json"  # in a run's folder: the weight of each row that was read, null where it is left out
Chosen = tuple[PromptData, dict[str, Any]]


def read_without_leaks(job: DistillJob, method: Method, stage: Stage, asked: AskedPrompts) -> PromptData:
    """Read the prompts and pairs that the method needs; drop those that the evaluation asks."""
    data = read_data(job, method, stage.workspace.home)
    kept = {}
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        kept[name] = asked.kept_out_of(rows)
        if leaked := len(rows) - len(kept[name]):
            stage.say(f"  {name:<12} {leaked} of {len(rows):,} are evaluation prompts or nearly so: left out")
        if rows and not kept[name]:
            raise _all_asked(name)
    return PromptData(**kept)


def unasked(data: PromptData, asked: AskedPrompts) -> PromptData:
    """Return the rows without those that the evaluation asks."""
    return PromptData(*map(asked.kept_out_of, (data.prompts, data.pairs)))


def require_unasked(data: PromptData, asked: AskedPrompts) -> None:
    """Refuse prompts or pairs of which the evaluation asks every one."""
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        if rows and all(map(asked.given_away_by, rows)):
            raise _all_asked(name)


def _all_asked(name: str) -> InputError:
    return InputError(f"every one of the {name} is an evaluation prompt: give other --{name}")


def with_room(
    data: PromptData, teachers: Teachers, context: Context | None, stage: Stage, length: int | None
) -> PromptData:
    """Drop rows that student, teacher or memory cannot hold to the end of an answer; say how many.

    `length` is what the sampler's engine reads: it refuses a longer prompt, in the middle of a training.
    """
    settings, student, engine = teachers.job.settings, teachers.student, stage.workspace.config.engine
    most = None if settings.sampler == INPROCESS else engine.max_length
    readers = Readers(
        student.encoder,
        student=model_limit(student),
        sampler=smallest(most, length),
        teacher=teachers.limit(data.rows),
    )
    prompts = data.prompts
    for limit in limits_of_prompts(settings, teachers.method, context, readers):
        prompts = fitting(prompts, limit, stage, "prompts")
    if context:
        read = min(readers.student, readers.teacher)
        warn_of_context(prompts, student, context, stage, read, settings.max_new_tokens)
    return PromptData(prompts, fitting(data.pairs, limit_of_pairs(settings, readers), stage, "pairs"))


def require_room(data: PromptData, teachers: Teachers, context: Context | None, length: int | None) -> None:
    """Refuse an engine that reads less than when the rows were chosen: it would refuse one of them later.

    `length` is what the sampler's engine reads.
    """
    settings, student = teachers.job.settings, teachers.student
    if length is not None:
        longest = most_tokens(data.prompts, student, None, length - 1)
        _require_length("sampler", length, longest + 1)
    if settings.teacher_engine == INPROCESS or not data.prompts:
        return
    limit = teachers.limit(data.rows)
    if context or limit < model_limit(student):
        longest = most_tokens(data.prompts, student, context, limit - settings.max_new_tokens)
        _require_length("teacher's engine", limit + 1, longest + settings.max_new_tokens + 1)


def _require_length(name: str, length: float, needed: int) -> None:
    if needed > length:
        raise InputError(
            f"the {name} reads {length:,.0f} tokens, and the prompts that this run chose need {needed:,}: "
            "raise engine.max_length, or that of its server, or begin a new run"
        )


def chosen_once(stage: Stage, read: PromptData, choose: Callable[[], Chosen]) -> Chosen:
    """Return the rows of all that were read that `choose` keeps, and what it tells about them."""

    def choice() -> dict[str, Any]:
        data, told = choose()
        weights = [_weights(read.prompts, data.prompts), _weights(read.pairs, data.pairs)]
        return {"weights": weights, "told": told}

    found = in_turn(lambda: stage.once(KEPT_POOL, choice))
    prompts, pairs = found["weights"]
    if (len(prompts), len(pairs)) != (len(read.prompts), len(read.pairs)):
        raise InputError("the prompts are others than when this run began: begin a new one")
    return PromptData(_weighted(read.prompts, prompts), _weighted(read.pairs, pairs)), found["told"]


def _weights(read: Sequence[Prompt], kept: Sequence[Prompt]) -> list[float | None]:
    """Return the weight of each row; a row that was weighted anew still has its messages."""
    weights = {id(row.messages): row.weight for row in kept}
    return [weights.get(id(row.messages)) for row in read]


def _weighted(read: Sequence[Prompt], weights: Sequence[float | None]) -> list[Prompt]:
    rows = zip(read, weights, strict=True)
    return [replace(row, weight=weight) for row, weight in rows if weight is not None]
