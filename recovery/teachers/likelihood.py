"""Compute log-likelihoods of continuations, and whether greedy decoding would produce them.

Used for multiple-choice tasks, rankings, tripwires and guards. Each pair takes one forward pass, through the
same scoring code as a teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from recovery.batches.rollouts import Rollouts
from recovery.batches.teacher_scores import TeacherScores
from recovery.forward.context_length import context_length
from recovery.forward.eval_mode import evaluating
from recovery.models.templates.continuation import continued
from recovery.teachers.teachers import score

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

Pair = tuple[list[int], list[int]]
Scorer = Callable[[Rollouts], TeacherScores]
"""Return the log-probabilities of counted tokens: a teacher's `score`, or `reader(model)`."""
CHUNK = 256  # pairs between two progress reports


def loglikelihoods(
    chat_model: ChatModel,
    pairs: Sequence[Pair],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[tuple[float, bool]]:
    """Return, for each (context, continuation), its summed log-prob and whether greedy decoding yields it."""
    found: list[tuple[float, bool]] = []
    for start in range(0, len(pairs), CHUNK):
        found += _chunk(chat_model, pairs[start : start + CHUNK])
        if on_progress:
            on_progress(len(found), len(pairs))
    return found


def reader(chat_model: ChatModel) -> Scorer:
    """Return a scorer of the model's current weights; usable during training, as it restores train mode."""

    def look(rollouts: Rollouts) -> TeacherScores:
        with evaluating(chat_model.model):
            return score(chat_model, rollouts, "sampled")

    return look


def continuation_logprobs(
    scorer: Scorer,
    pairs: Sequence[Pair],
    pad_id: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[float]:
    """Return the summed log-prob of each continuation under the scorer."""
    totals: list[float] = []
    for start in range(0, len(pairs), CHUNK):
        rows = _rows(pairs[start : start + CHUNK], pad_id)
        logprobs_N = scorer(rows).sampled_logprobs_N
        assert logprobs_N is not None
        parts = logprobs_N.cpu().split(rows.mask_BT.sum(1).tolist())
        totals += [float(part.sum()) for part in parts]
        if on_progress:
            on_progress(len(totals), len(pairs))
    return totals


def _rows(pairs: Sequence[Pair], pad_id: int) -> Rollouts:
    return Rollouts.from_samples(
        [context for context, _ in pairs],
        [text for _, text in pairs],
        [[0.0] * len(text) for _, text in pairs],
        [True] * len(pairs),
        pad_id,
    )


def _chunk(chat_model: ChatModel, pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
    rows = _rows(pairs, chat_model.pad_id)
    scores = score(chat_model, rows, "topk", 1)
    logprobs_N, ids_NK = scores.sampled_logprobs_N, scores.ids_NK
    assert logprobs_N is not None and ids_NK is not None
    likeliest_N = (ids_NK[:, 0].cpu() == rows.tokens_N).tolist()
    totals, tops = [0.0] * len(pairs), [True] * len(pairs)
    for row, logprob, top in zip(rows.rows_N.tolist(), logprobs_N.tolist(), likeliest_N, strict=True):
        totals[row] += logprob
        tops[row] &= top
    return list(zip(totals, tops, strict=True))


def split_ids(chat_model: ChatModel, context: str | Sequence[Any], continuation: str) -> Pair:
    """Encode a context (a text or a chat) and its continuation; truncate on the left to the model's length.

    A text is encoded together with its continuation and split at the end of the context; trailing spaces
    move to the continuation. lm-eval does the same, so that its published numbers can be reproduced. Behind a
    chat the continuation is encoded as the model would write it as its answer.
    """
    if not isinstance(context, str):
        chat: list[Any] = list(context)
        return _cut(chat_model, *chat_model.answer_pair(chat, continuation))
    return _split(chat_model, context, continuation, lambda kept, _, rest: chat_model.text_ids(kept + rest))


def gap_ids(chat_model: ChatModel, context: str, continuation: str) -> Pair:
    """Encode a text and what fills the gap behind it, which keeps all its tokens.

    Where no space stands between the two, as in Chinese, one token may straddle the border: of a text that is
    encoded as a whole nothing might be left behind it."""
    return _split(chat_model, context, continuation, partial(continued, chat_model.text_ids))


def _split(
    chat_model: ChatModel, context: str, continuation: str, whole: Callable[[str, list[int], str], list[int]]
) -> Pair:
    """Move a context's trailing spaces to the continuation, and encode both by `whole`."""
    kept = context.rstrip()
    continuation = context[len(kept) :] + continuation
    opening = chat_model.opening_ids
    if not kept:
        ids = chat_model.text_ids(continuation)
        return _cut(chat_model, opening or [chat_model.stop_ids[0]], ids)
    before = chat_model.text_ids(kept)
    return _cut(chat_model, [*opening, *before], whole(kept, before, continuation)[len(before) :])


def _cut(chat_model: ChatModel, context: list[int], continuation: list[int]) -> Pair:
    longest = context_length(chat_model.model.config) or 2**31
    room = max(longest - len(continuation), 1)
    return context[-room:], continuation[-longest + 1 :]
