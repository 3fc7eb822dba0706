"""Leave out prompts that are too long to be answered: the step that draws one would end the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipelines.distillation.prompts import Prompt
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.runs.stage_runner import Stage
    from recovery.models.chat_model import ChatModel
    from recovery.teachers.contexts import Context, Messages

SPARE = 4096  # tokens: more than a chat template writes of its own
LOOKED_AT = 256  # prompts that the teacher's context is measured with


def answerable(
    prompts: Sequence[Prompt],
    chat: ChatModel,
    stage: Stage,
    *,
    name: str = "prompts",
    context: Context | None = None,
    most: int | None = None,
) -> list[Prompt]:
    """Return the prompts that leave room for an answer, in the context too; say how many do not.

    `most` is an engine's limit of tokens, beside that of the model.
    """
    limit = _limit(chat, most)
    kept = [prompt for prompt in prompts if _longest(prompt, context, chat, limit) < limit]
    why = f"leave no room for an answer: the limit is {limit:,.0f} tokens"
    if prompts and not kept:
        raise InputError(f"all {name} {why}; shorten them, such as {prompts[0].text[:60]!r}")
    if left_out := len(prompts) - len(kept):
        stage.say(f"  {name:<12} {left_out} of {len(prompts):,} are left out, as they {why}")
    return kept


def warn_of_context(
    prompts: Sequence[Prompt], context: Context, chat: ChatModel, stage: Stage, new_tokens: int
) -> None:
    """Say how many of some prompts the teacher may read beyond the length that it was made for."""
    limit = _limit(chat)
    room = limit - new_tokens
    some = prompts[:: max(1, len(prompts) // LOOKED_AT)]
    if longer := sum(_tokens(chat, context(prompt), room) > room for prompt in some):
        stage.say(
            f"  context      {longer} of {len(some)} prompts, with what the teacher sees and an answer of "
            f"{new_tokens:,} tokens, exceed its {limit:,.0f}: shorten the context, or lower "
            "distill.max_new_tokens"
        )


def _limit(chat: ChatModel, most: int | None = None) -> float:
    from recovery.sampling.budget import context_length

    known = (context_length(chat.model), most)
    return min((limit for limit in known if limit is not None), default=float("inf"))


def _longest(prompt: Prompt, context: Context | None, chat: ChatModel, limit: float) -> int:
    """Return the prompt's tokens as the student or, if that is more, as the teacher reads it.

    Examples are not looked up for it: that takes minutes for all prompts.
    """
    seen = [prompt.messages] + ([context(prompt)] if context and not context.examples else [])
    return max(_tokens(chat, messages, limit) for messages in seen)


def _tokens(chat: ChatModel, messages: Messages, limit: float) -> int:
    """Return the tokens of a dialogue; 0 where it is surely shorter than the limit, or cannot be rendered."""
    if len(json.dumps(messages)) + SPARE < limit:  # a token is at least a byte
        return 0
    try:
        return len(chat.prompt_ids(messages))
    except InputError:  # refused before the first step, with all others like it
        return 0
