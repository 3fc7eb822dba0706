"""Leave out rows that are too long to be read: the step that draws one would end the training.

A frozen teacher may have been made for fewer tokens than the student; what it cannot read is left out too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.prompts.prompt_sources import Prompt
from recovery.errors import InputError
from recovery.forward.context_length import context_length
from recovery.models.hub import explained

if TYPE_CHECKING:
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.contexts import Context

SPARE = 4096  # tokens: more than a chat template writes of its own
LOOKED_AT = 256  # prompts that the teacher's context is measured with

Count = Callable[[Prompt, float], int]
"""Returns a row's tokens; 0 where they are surely no more than a number."""


@dataclass(frozen=True)
class Limit:
    """The tokens that a row may have, and why longer ones are left out."""

    most: float
    why: str
    tokens: Count

    def admits(self, row: Prompt) -> bool:
        return self.tokens(row, self.most) <= self.most


def of_reader(encoder: ChatEncoder, limit: float, context: Context | None = None) -> Limit:
    """Return the limit of prompts before an answer, in the context too, within what a reader takes."""
    why = f"leave no room for an answer: the limit is {limit:,.0f} tokens"
    return Limit(limit - 1, why, _longest(encoder, context))


def of_teacher(encoder: ChatEncoder, context: Context | None, limit: float, new_tokens: int) -> Limit:
    """Return the limit of prompts after which a teacher can read an answer of full length."""
    why = f"leave no room for an answer of {new_tokens:,} tokens: the teacher reads {limit:,.0f}"
    return Limit(limit - new_tokens, why, _longest(encoder, context))


def of_memory(encoder: ChatEncoder, longest_row: int, new_tokens: int) -> Limit:
    """Return the limit of prompts that the student can be trained on with an answer of full length."""
    why = f"exceed distill.longest_row, {longest_row:,}, with an answer of {new_tokens:,} tokens"
    return Limit(longest_row - new_tokens, why, _longest(encoder, None))


def of_pairs(encoder: ChatEncoder, limit: float) -> Limit:
    """Return the limit of pairs, which are read with their answer."""

    def tokens(pair: Prompt, most: float) -> int:
        answer = {"role": "assistant", "content": str(pair.fields["response"])}
        return tokens_if_long(lambda turns: encoder.dialogue_ids(turns)[0], [*pair.messages, answer], most)

    return Limit(limit, f"are longer than what is read, {limit:,.0f} tokens", tokens)


def fitting(rows: Sequence[Prompt], limit: Limit, stage: Stage, name: str) -> list[Prompt]:
    """Return the rows within a limit; say how many are longer, and refuse if all are."""
    kept = [row for row in rows if limit.admits(row)]
    if rows and not kept:
        raise _all_longer(rows, limit, name)
    if left_out := len(rows) - len(kept):
        stage.say(f"  {name:<12} {left_out} of {len(rows):,} are left out, as they {limit.why}")
    return kept


def require_fitting(rows: Sequence[Prompt], limits: Sequence[Limit], name: str) -> None:
    """Refuse rows of which none is within all limits, as `fitting` by one after the other would; no more of
    them are looked at than up to the first that is."""
    exceeded = []
    for row in rows:
        first = next((at for at, limit in enumerate(limits) if not limit.admits(row)), None)
        if first is None:
            return
        exceeded.append(first)
    if exceeded:
        raise _all_longer(rows, limits[max(exceeded)], name)


def _all_longer(rows: Sequence[Prompt], limit: Limit, name: str) -> InputError:
    return InputError(f"all {name} {limit.why}; shorten them, such as {rows[0].text[:60]!r}")


def answerable(
    prompts: Sequence[Prompt],
    chat: ChatModel,
    stage: Stage,
    *,
    name: str = "prompts",
    most: int | None = None,
) -> list[Prompt]:
    """Return the prompts that leave room for an answer; say how many do not.

    `most` is an engine's limit of tokens, beside that of the model.
    """
    return fitting(prompts, of_reader(chat.encoder, model_limit(chat, most)), stage, name)


def warn_of_context(
    prompts: Sequence[Prompt],
    chat: ChatModel,
    context: Context,
    stage: Stage,
    limit: float,
    new_tokens: int,
) -> None:
    """Say how many of some prompts the teacher may read beyond the length that it was made for."""
    most = limit - new_tokens
    some = prompts[:: max(1, len(prompts) // LOOKED_AT)]
    if longer := sum(tokens_if_long(chat.prompt_ids, context(prompt), most) > most for prompt in some):
        stage.say(
            f"  context      {longer} of {len(some)} prompts, with what the teacher sees and an answer of "
            f"{new_tokens:,} tokens, exceed its {limit:,.0f}: shorten the context, or lower "
            "distill.max_new_tokens"
        )


def model_limit(chat: ChatModel, most: int | None = None) -> float:
    """Return the tokens that a model in memory reads, or `most` if that is fewer."""
    return smallest(context_length(chat.model.config), most)


def checkpoint_limit(ws: Workspace, checkpoint: Checkpoint) -> int | None:
    """Return the tokens that a checkpoint was made for, if its config says so; load no weights."""
    from transformers import AutoConfig

    whole = ws.checkpoint(checkpoint.base) if checkpoint.base else checkpoint
    trust = ws.config.model.trust_remote_code
    with explained(str(whole.path), "model"):
        config = AutoConfig.from_pretrained(whole.path, local_files_only=True, trust_remote_code=trust)
    return context_length(config)


def smallest(*limits: float | None) -> float:
    """Return the smallest limit that is known; infinity if none is."""
    return min((limit for limit in limits if limit is not None), default=float("inf"))


def most_tokens(prompts: Sequence[Prompt], chat: ChatModel, context: Context | None, beyond: float) -> int:
    """Return the tokens of the longest prompt that may have more than `beyond`; 0 if none may."""
    tokens = _longest(chat.encoder, context)
    return max((tokens(prompt, beyond) for prompt in prompts), default=0)


def _longest(encoder: ChatEncoder, context: Context | None) -> Count:
    """Return a count of a prompt's tokens as the student or, if that is more, as the teacher reads it.

    Examples are not looked up for it: that takes minutes for all prompts.
    """

    def tokens(prompt: Prompt, most: float) -> int:
        seen = [prompt.messages] + ([context(prompt)] if context and not context.examples else [])
        return max(tokens_if_long(encoder.prompt_ids, messages, most) for messages in seen)

    return tokens


def tokens_if_long(encode: Callable[[Any], list[int]], asked: Any, most: float) -> int:
    """Return the tokens of a text or dialogue; 0 where it is surely not longer, or cannot be rendered."""
    if len(json.dumps(asked)) + SPARE <= most:  # a token is at least a byte
        return 0
    try:
        return len(encode(asked))
    except InputError:  # refused before the first step
        return 0
