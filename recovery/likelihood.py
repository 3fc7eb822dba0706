"""Log-likelihoods of continuations: how likely a model finds a text after another, and would it say it.

The chance of a choice in a multiple-choice task; read in one forward pass each, through the same scoring as a
teacher's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from recovery.rollouts import Rollouts
from recovery.teachers import score

if TYPE_CHECKING:
    from recovery.models import ChatModel

Pair = tuple[list[int], list[int]]
CHUNK = 256  # pairs between two reports of progress


def loglikelihoods(
    chat_model: ChatModel, pairs: Sequence[Pair], max_tokens: int = 16384,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[tuple[float, bool]]:  # fmt: skip
    """Per (context, continuation): the sum of the continuation's log-probs; is each token the top one?"""
    found: list[tuple[float, bool]] = []
    for start in range(0, len(pairs), CHUNK):
        found += _chunk(chat_model, pairs[start : start + CHUNK], max_tokens)
        if on_progress:
            on_progress(len(found), len(pairs))
    return found


def _chunk(chat_model: ChatModel, pairs: Sequence[Pair], max_tokens: int) -> list[tuple[float, bool]]:
    rows = Rollouts.from_samples(
        [context for context, _ in pairs], [text for _, text in pairs],
        [[0.0] * len(text) for _, text in pairs], [True] * len(pairs), chat_model.pad_id,
    )  # fmt: skip
    scores = score(chat_model, rows, "topk", 1, max_tokens)
    logprobs_N, ids_NK = scores.sampled_logprobs_N, scores.ids_NK
    assert logprobs_N is not None and ids_NK is not None
    likeliest_N = (ids_NK[:, 0].cpu() == rows.tokens_N).tolist()
    totals, tops = [0.0] * len(pairs), [True] * len(pairs)
    for row, logprob, top in zip(rows.rows_N.tolist(), logprobs_N.tolist(), likeliest_N, strict=True):
        totals[row] += logprob
        tops[row] &= top
    return list(zip(totals, tops, strict=True))


def split_ids(chat_model: ChatModel, context: str | Sequence[Any], continuation: str) -> Pair:
    """Ids of a context (a text or a chat) and of what follows it, cut at the left to what the model can read.

    A text is encoded together with its continuation and split where the context ends, its trailing spaces
    going over: so does lm-eval, whose published numbers are to be met.
    """
    if not isinstance(context, str):
        chat: list[Any] = list(context)
        return _cut(chat_model, chat_model.prompt_ids(chat), chat_model.text_ids(continuation))
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    opening = _opening(chat_model)
    if not kept:
        ids = chat_model.text_ids(continuation)
        return _cut(chat_model, opening or [chat_model.stop_ids[0]], ids)
    whole, before = chat_model.text_ids(kept + continuation), chat_model.text_ids(kept)
    return _cut(chat_model, [*opening, *before], whole[len(before) :])


def _opening(chat_model: ChatModel) -> list[int]:
    """The token that this tokenizer puts before every text, if it does."""
    tokenizer: Any = chat_model.tokenizer
    first = tokenizer.bos_token_id
    return [first] if first is not None and tokenizer("a")["input_ids"][:1] == [first] else []


def _cut(chat_model: ChatModel, context: list[int], continuation: list[int]) -> Pair:
    longest = int(getattr(chat_model.model.config, "max_position_embeddings", 0) or 2**31)
    room = max(longest - len(continuation), 1)
    return context[-room:], continuation[-longest + 1 :]
