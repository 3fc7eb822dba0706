"""Record a few rollouts of a step token by token, with the log-probs of student and teacher, for review.

The teacher's scores are reused from the step. The student reads these rollouts once more, without gradients
and without drawing random numbers, so that tracing does not change a run's numbers.

Shapes: N counted tokens, V vocabulary, K top entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.distributed import gathered
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.objective import divergences
from recovery.objective.token_signals import TokenSignals
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.models.chat_model import ChatModel
    from recovery.objective.logprobs import ChunkLogprobs
    from recovery.objective.objective import Objective

TOP = 5  # entries kept of each distribution
MOST_TOKENS = 256  # per rollout
MOST_CHARACTERS = 2000  # per prompt
TRACED = 4  # rollouts of a step
SAMPLES = 20  # approximate number of traced steps in a long run
LONGEST_PIECE = 4  # tokens that one character may span

Top = list[tuple[str, float]]


@dataclass(frozen=True)
class Trace:
    """One rollout. Every list has one entry per token; a list is None without the teacher's scores.

    `estimator` names how `divergence` is computed: KL(student||teacher) over all entries ("exact") or over
    the top k ("top-k"), the sampled token's log p - log q ("sampled"), or "none".
    """

    prompt: str
    estimator: str
    finished: bool
    ids: list[int]
    pieces: list[str]
    student: list[float]
    teacher: list[float] | None
    divergence: list[float] | None
    student_top: list[Top]
    teacher_top: list[Top] | None

    def row(self) -> dict[str, Any]:
        """Return the stored form: per-token lists under `tokens`, and the columns of an overview."""
        values = self.divergence
        mean = sum(values) / len(values) if values else None
        apart = {"prompt": self.prompt, "estimator": self.estimator}
        tokens = {name: value for name, value in vars(self).items() if name not in apart}
        return {**apart, "mean": mean, "n": len(self.ids), "tokens": tokens}


def is_looked_at(step: int, steps: int) -> bool:
    """Return whether to trace a step: the first, the last, and every tenth (fewer in a long run)."""
    return step in (1, steps) or step % max(10, math.ceil(steps / SAMPLES)) == 0


class Tracer:
    """A callback that receives each step's scored microbatches and traces some of their rollouts."""

    def __init__(
        self,
        student: ChatModel,
        objective: Objective,
        steps: int,
        on_traces: Callable[[int, list[Trace]], None],
    ) -> None:
        self.student = student
        self.objective = objective
        self.steps = steps
        self.on_traces = on_traces

    def __call__(self, step: int, batches: Sequence[Microbatch]) -> None:
        if is_looked_at(step, self.steps):
            with gathered(self.student.model):  # by all processes: they trace different numbers of rollouts
                self.on_traces(step, [self.trace(one) for one in first_of_each(batches, TRACED)])

    @torch.no_grad()
    def trace(self, one: Microbatch) -> Trace:
        """Trace the first tokens of one rollout under the student's current weights."""
        rollouts = one.rollouts.to(self.student.device)
        model = self.student.model
        tokens_N = rollouts.tokens_N[:MOST_TOKENS]
        first_N = torch.arange(len(tokens_N))
        scores = one.signals.scores
        with evaluating(model):
            hidden_ND = predicting_states(model, rollouts)[: len(tokens_N)]
            scores = None if scores is None else scores.to(self.student.device).take(first_N)
            view = self.objective.view(hidden_ND, partial(logits_of, model), tokens_N, scores)
        return trace_of(view, tokens_N, rollouts, self.student.tokenizer)


def first_of_each(batches: Sequence[Microbatch], count: int) -> list[Microbatch]:
    """Return one rollout of each of the first `count` prompts, with its teacher scores."""
    found: dict[int, tuple[Microbatch, int]] = {}
    for batch in batches:
        if batch.rollouts.positions_BT is None:
            counted_B = batch.rollouts.mask_BT.any(1).tolist()
            for row, prompt in enumerate(batch.rollouts.index_B.tolist()):
                if counted_B[row]:
                    found.setdefault(prompt, (batch, row))
    return [_row(*found[prompt]) for prompt in sorted(found)[:count]]


def _row(batch: Microbatch, row: int) -> Microbatch:
    places_N = batch.rollouts.places_N(torch.tensor([row]))
    scores = batch.signals.scores
    kept = TokenSignals(None if scores is None else scores.take(places_N))
    return Microbatch(batch.rollouts.select([row]), kept)


def trace_of(view: ChunkLogprobs, tokens_N: Tensor, rollouts: Rollouts, tokenizer: Any) -> Trace:
    """Build the trace of one rollout from its log-probabilities."""
    ids = tokens_N.tolist()
    estimator, divergence_N = divergence(view)
    return Trace(
        prompt=tokenizer.decode(rollouts.prompts()[0])[-MOST_CHARACTERS:],
        estimator=estimator,
        finished=bool(rollouts.finished_B[0]) and rollouts.n_tokens == len(ids),
        ids=ids,
        pieces=list(pieces(ids, tokenizer)),
        student=_plain(view.student_N),
        teacher=None if view.teacher_N is None else _plain(view.teacher_N),
        divergence=None if divergence_N is None else _plain(divergence_N),
        student_top=_top(view.student_NV, tokenizer),
        teacher_top=_teacher_top(view, tokenizer),
    )


def divergence(view: ChunkLogprobs) -> tuple[str, Tensor | None]:
    """Return the estimator and its reverse KL at each token, as exact as the teacher's scores allow."""
    if view.teacher_NV is not None:
        return "exact", divergences.exact_reverse_kl(view.student_NV, view.teacher_NV)
    if view.scores is not None and view.scores.ids_NK is not None:
        ids_NK = view.scores.ids_NK
        teacher_NK = view.scores.logprobs_NK.float()
        return "top-k", divergences.topk_reverse_kl(view.student_NV, ids_NK, teacher_NK)
    if view.teacher_N is not None:
        return "sampled", divergences.k1_reverse_kl(view.student_N, view.teacher_N)
    return "none", None


def pieces(ids: Sequence[int], tokenizer: Any) -> Iterator[str]:
    """Yield each token's text in context; a character that spans several tokens goes to the last one."""
    start = 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[max(0, start - 1) : end])
        before = tokenizer.decode(ids[max(0, start - 1) : start]) if start else ""
        if text.endswith("\ufffd") and end - start < LONGEST_PIECE and end < len(ids):
            yield ""
        else:
            yield text[len(before) :]
            start = end


def _teacher_top(view: ChunkLogprobs, tokenizer: Any) -> list[Top] | None:
    if view.teacher_NV is not None:
        return _top(view.teacher_NV, tokenizer)
    if view.scores is not None and view.scores.ids_NK is not None:
        return _named(view.scores.ids_NK[:, :TOP], view.scores.logprobs_NK[:, :TOP], tokenizer)
    return None


def _top(logprobs_NV: Tensor, tokenizer: Any) -> list[Top]:
    best = logprobs_NV.topk(min(TOP, logprobs_NV.shape[-1]), dim=-1)
    return _named(best.indices, best.values, tokenizer)


def _named(ids_NK: Tensor, logprobs_NK: Tensor, tokenizer: Any) -> list[Top]:
    known = {token: tokenizer.decode([token]) for token in ids_NK.unique().tolist()}
    rows = zip(ids_NK.tolist(), logprobs_NK.tolist(), strict=True)
    return [[(known[i], round(p, 4)) for i, p in zip(ids, row, strict=True)] for ids, row in rows]


def _plain(values_N: Tensor) -> list[float]:
    return [round(value, 4) for value in values_N.float().tolist()]
