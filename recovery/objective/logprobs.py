"""Log-probabilities of student and teacher for one chunk of tokens, and the statistics taken from them.

Shapes: N tokens, D hidden size, V vocabulary, K top entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.fast_path import TokenComparison, fast_path
from recovery.methods.choices import LABELS, TEACHER_SIGNALS
from recovery.methods.method import Method
from recovery.objective import divergences
from recovery.objective.token_signals import TokenSignals

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TokenBatch:
    """N tokens with their hidden states, weights and signals."""

    hidden_ND: Tensor
    tokens_N: Tensor
    weights_N: Tensor
    signals: TokenSignals

    @classmethod
    def of(cls, hidden_ND: Tensor, tokens_N: Tensor, signals: TokenSignals) -> TokenBatch:
        """Join states, tokens and signals; without weights every token counts 1."""
        weights_N = signals.weights_N
        if weights_N is None:
            weights_N = torch.ones(len(tokens_N), device=hidden_ND.device)
        return cls(hidden_ND, tokens_N, weights_N.float(), signals)

    def behaviour(self, student_N: Tensor) -> Tensor:
        """Return the sampler's log-probs; where they are 0 (token not sampled), the student's."""
        student_N = student_N.detach()
        behaviour_N = self.signals.behaviour_N
        if behaviour_N is None:
            return student_N
        return torch.where(behaviour_N != 0, behaviour_N.float(), student_N)


@dataclass(frozen=True)
class ChunkLogprobs:
    """The log-probabilities of one chunk."""

    part: TokenBatch
    scores: Any  # None unless the signal comes from a teacher
    student_NV: Any
    student_N: Tensor
    teacher_NV: Any
    teacher_N: Any
    behaviour_N: Tensor
    loss_N: Any = None  # exact reverse KL, if a fused kernel computed it
    fused: TokenComparison | None = None  # the kernel's statistics


class LogprobReader:
    """Compute the log-probabilities that a method's loss is made of, at the method's temperature."""

    def __init__(self, method: Method, stop_ids: Iterable[int] = ()) -> None:
        self.method = method
        self.stop_ids = sorted(set(stop_ids))
        self.temperature = 1.0 if method.signal in LABELS else method.temperature

    def read(self, head: Head, part: TokenBatch, *, whole: bool = True) -> ChunkLogprobs:
        """Return one chunk's log-probabilities of the student and, if the method uses it, the teacher.

        The full distributions are computed only with `whole`, or if no fused kernel covers this loss.
        """
        scores = part.signals.scores if self.method.signal in TEACHER_SIGNALS else None
        student_NV = head(part.hidden_ND)
        teacher_NV = teacher_logits(scores)
        self._check_stops(student_NV.shape[-1])
        if teacher_NV is not None and self._reverse_kl_only and not whole:
            fused = self._fused(part, scores, student_NV, teacher_NV)
            if fused is not None:
                return fused
        student_NV = self.log_probs(student_NV)
        teacher_N = scores.sampled_logprobs_N if scores is not None else None
        if teacher_NV is not None:
            teacher_NV = self.log_probs(teacher_NV)
            student_NV, teacher_NV = same_vocabulary(student_NV, teacher_NV, part.tokens_N)
            teacher_N = _at(teacher_NV, part.tokens_N)
        student_N = _at(student_NV, part.tokens_N)
        return ChunkLogprobs(
            part, scores, student_NV, student_N, teacher_NV, teacher_N, part.behaviour(student_N)
        )

    @property
    def _reverse_kl_only(self) -> bool:
        """Return whether the loss is the exact reverse KL alone."""
        method = self.method
        changed = method.entry_clip is not None or method.kl_budget is not None
        more = changed or method.has_policy_gradient or method.anchor_beta
        return not more and (method.signal == "reverse_kl" or (method.signal == "jsd" and method.beta == 1))

    def _fused(
        self, part: TokenBatch, scores: Any, student_NV: Tensor, teacher_NV: Tensor
    ) -> ChunkLogprobs | None:
        """Return what a fused kernel computes of the reverse KL; None if there is no such kernel."""
        stops = part.tokens_N.new_tensor(self.stop_ids)
        overwrite = _is_product(student_NV)
        found = fast_path().compare(student_NV, teacher_NV, part.tokens_N, stops, self.temperature, overwrite)
        if found is None:
            return None
        tokens, gradient_NV = found
        return ChunkLogprobs(
            part,
            scores,
            student_NV=None,
            student_N=tokens.student_N,
            teacher_NV=None,
            teacher_N=tokens.teacher_N,
            behaviour_N=part.behaviour(tokens.student_N),
            loss_N=divergences.with_slope(student_NV, tokens.reverse_kl_N, gradient_NV),
            fused=tokens,
        )

    def log_probs(self, logits_NV: Tensor) -> Tensor:
        """Return log-probabilities in fp32 at the method's temperature."""
        if self.temperature != 1.0:
            logits_NV = logits_NV.float() / self.temperature
        return torch.log_softmax(logits_NV, dim=-1, dtype=torch.float32)

    def statistics(self, view: ChunkLogprobs) -> TokenComparison:
        """Return the statistics of the fused kernel; without one compute them."""
        if view.fused is not None:
            return view.fused
        p_NV = view.student_NV.exp()
        student_stop_N = p_NV[:, self.stop_ids].sum(-1)
        negative_entropy_N = torch.linalg.vecdot(p_NV, view.student_NV)
        reverse_kl_N = teacher_stop_N = None
        if view.teacher_NV is not None:
            reverse_kl_N = negative_entropy_N - torch.linalg.vecdot(p_NV, view.teacher_NV)
            teacher_stop_N = view.teacher_NV[:, self.stop_ids].exp().sum(-1)
        return TokenComparison(
            reverse_kl_N, -negative_entropy_N, view.student_N, view.teacher_N, student_stop_N, teacher_stop_N
        )

    def _check_stops(self, vocabulary: int) -> None:
        """Raise InputError for stop ids outside the vocabulary: they are used as indices into it."""
        for stop in self.stop_ids[:1] + self.stop_ids[-1:]:
            if not 0 <= stop < vocabulary:
                raise InputError(f"objective: stop id {stop} is outside the vocabulary of {vocabulary:,}")


@torch.no_grad()
def teacher_logits(scores: Any) -> Tensor | None:
    """Return the logits of a teacher's hidden states; None where the scores hold none."""
    if scores is None or scores.hidden_ND is None:
        return None
    logits_NV: Tensor = scores.head(scores.hidden_ND)
    return logits_NV


def _is_product(logits_NV: Tensor) -> bool:
    """Return whether the logits are a plain matrix product, which the backward pass does not read.

    Later operations (a soft cap, a scale) may save the logits for backward; then they cannot be overwritten.
    """
    return type(logits_NV.grad_fn).__name__ in ("MmBackward0", "AddmmBackward0")


def _at(values_NV: Tensor, tokens_N: Tensor) -> Tensor:
    return values_NV.gather(-1, tokens_N.unsqueeze(-1)).squeeze(-1)


def same_vocabulary(student_NV: Tensor, teacher_NV: Tensor, tokens_N: Tensor) -> tuple[Tensor, Tensor]:
    """Restrict both to their shared entries; within a model family, vocabularies differ only by padding."""
    if student_NV.shape[-1] == teacher_NV.shape[-1]:
        return student_NV, teacher_NV
    shared = min(student_NV.shape[-1], teacher_NV.shape[-1])
    if int(tokens_N.max()) >= shared:
        raise InputError(
            f"objective: token {int(tokens_N.max())} is outside the {shared} entries that student and "
            f"teacher share: the two need the same tokenizer"
        )
    return student_NV[:, :shared].log_softmax(-1), teacher_NV[:, :shared].log_softmax(-1)
