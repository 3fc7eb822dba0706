"""Compute a method's loss and metrics from the student's hidden states and the signals of their tokens.

    loss = sum over tokens of  w * [ lam * teacher's (or label's) + (1 - lam) * reward's + beta * anchor's ]

The loss is a *sum* over unmasked tokens; the trainer divides it once, by their global count. The head and
its gradient are computed in chunks of tokens, so memory does not grow with their number.

Shapes: N unmasked tokens (row-major over the batch), D hidden size, V vocabulary, K top entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.hidden_states import kind
from recovery.methods.choices import LABELS, SAMPLED_STATES
from recovery.methods.method import Method
from recovery.objective import divergences
from recovery.objective.chunked_sum import chunked_sum
from recovery.objective.importance import PrefixRatios
from recovery.objective.logprobs import (
    ChunkLogprobs,
    Head,
    LogprobReader,
    TokenBatch,
    same_vocabulary,
    teacher_logits,
)
from recovery.objective.token_signals import NO_SIGNALS, TokenSignals, require, take

if TYPE_CHECKING:
    from recovery.batches.teacher_scores import TeacherScores

# Default number of logits per chunk, (least, most). On a CPU 24 MiB in fp32, which the allocator reuses, up
# to 48 MiB if the head's gradient is large; on an accelerator 256 MiB, to amortise kernel launches.
CHUNK_ENTRIES = {"cpu": (3 * 2**21, 3 * 2**22), "accelerator": (2**26, 2**26)}


@dataclass(frozen=True)
class Loss:
    """A loss. `value` and `metrics` are sums over `tokens`; `maxima` are maxima. `signal_N` is each token's
    advantage, or its loss if the loss is differentiated directly. What is `apart`, as rehearsal's is, is
    trained on as any other loss, and is no part of the one that is reported."""

    value: Tensor
    tokens: float
    metrics: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    signal_N: Tensor | None = None
    apart: bool = False


class Objective:
    """`objective(hidden_ND, head, tokens_N, ...) -> Loss` for one method."""

    def __init__(self, method: Method, stop_ids: Iterable[int] = (), chunk: int | None = None) -> None:
        if chunk is not None and chunk < 1:
            raise InputError(f"objective: chunk={chunk} must be at least 1 token")
        self.method = method
        self.chunk = chunk
        self._logprobs = LogprobReader(method, stop_ids)
        self._vocabulary: int | None = None

    def __call__(
        self,
        hidden_ND: Tensor,
        head: Head,
        tokens_N: Tensor,
        signals: TokenSignals = NO_SIGNALS,
    ) -> Loss:
        """Return the loss of N tokens, given the student's hidden states that predict them."""
        require(self.method, signals)
        batch = TokenBatch.of(hidden_ND, tokens_N, signals)
        kept_N = batch.weights_N != 0
        if not bool(kept_N.all()):
            batch = take(batch, kept_N.nonzero().squeeze(-1))
        if len(batch.tokens_N) == 0:
            return Loss(hidden_ND[:0].float().sum(), 0.0, signal_N=batch.weights_N)
        return self._sum(head, batch)

    @torch.no_grad()
    def view(
        self, hidden_ND: Tensor, head: Head, tokens_N: Tensor, scores: TeacherScores | None = None
    ) -> ChunkLogprobs:
        """Return the log-probabilities that the loss is computed from, for inspection."""
        return self._logprobs.read(head, TokenBatch.of(hidden_ND, tokens_N, TokenSignals(scores)))

    def _sum(self, head: Head, batch: TokenBatch) -> Loss:
        """Sum the losses of all chunks, in token order."""
        size = self.chunk or self._chunk_size(head, batch.hidden_ND)
        ratios = PrefixRatios()
        signals: list[Tensor] = []
        statistics: list[dict[str, Tensor]] = []

        def chunk(rows: slice, hidden_ND: Tensor) -> Tensor:
            part = replace(take(batch, rows), hidden_ND=hidden_ND)
            loss_N, signal_N, stats = self._tokens(head, part, ratios)
            signals.append(signal_N)
            statistics.append(stats)
            return loss_N @ part.weights_N

        value = chunked_sum(chunk, batch.hidden_ND, divergences.slices(len(batch.tokens_N), size))
        together = {name: torch.cat([stats[name] for stats in statistics]) for name in statistics[0]}
        return self._loss(value, batch.weights_N, torch.cat(signals), together)

    def _tokens(
        self, head: Head, part: TokenBatch, ratios: PrefixRatios
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return each token's loss, signal and statistics for one chunk."""
        method = self.method
        view = self._logprobs.read(head, part, whole=False)
        stats = self._statistics(view)
        if method.kl_budget is not None:
            stats["teacher_share"] = self._keep_near(view)
        loss_N = self._direct(view)
        if method.importance_clip is not None:
            ratio_N = self._importance_ratio(view, ratios)
            stats["importance_weight"] = ratio_N.clamp_max(method.importance_clip)
            stats["importance_truncated"] = (ratio_N > method.importance_clip).float()
            loss_N = loss_N * stats["importance_weight"]
        signal_N = loss_N.detach()
        if method.has_policy_gradient:
            advantage_N = self._advantage(view, stats)
            policy_N, clipped_N = divergences.policy_gradient_loss(
                view.student_N, advantage_N, view.behaviour_N, method.ratio_clip, method.importance_clip
            )
            stats["clip_fraction"] = clipped_N.float()
            loss_N = loss_N + policy_N
            signal_N = signal_N + advantage_N
        if method.anchor_beta:
            anchor_N = self._anchor(view)
            stats["anchor_kl"] = anchor_N.detach()
            loss_N = loss_N + method.anchor_beta * anchor_N * stats.get("importance_weight", 1.0)
        return loss_N, signal_N, stats

    def _keep_near(self, view: ChunkLogprobs) -> Tensor:
        """Move the teacher towards the student, in place; return its share at each token."""
        signals = view.part.signals
        if signals.share_N is not None:
            return divergences.move(view.teacher_NV, view.student_NV, signals.share_N)
        budget: Any = self.method.kl_budget if signals.budget_N is None else signals.budget_N
        return divergences.keep_near(view.teacher_NV, view.student_NV, budget)

    @torch.no_grad()
    def teacher_distances(
        self, hidden_ND: Tensor, head: Head, tokens_N: Tensor, signals: TokenSignals, shares: Sequence[float]
    ) -> tuple[Tensor, float]:
        """Return KL(q||p) summed over the tokens for each share of the teacher in q, and their number."""
        batch = TokenBatch.of(hidden_ND, tokens_N, signals)
        size = self.chunk or self._chunk_size(head, hidden_ND)
        total_S = torch.zeros(len(shares), dtype=torch.float64, device=hidden_ND.device)
        for rows in divergences.slices(len(tokens_N), size):
            part = take(batch, rows)
            view = self._logprobs.read(head, part)
            distances_NS = divergences.moved_distances(view.teacher_NV, view.student_NV, shares)
            total_S += part.weights_N.double() @ distances_NS.double()
        return total_S, float(batch.weights_N.sum())

    @torch.no_grad()
    def _importance_ratio(self, view: ChunkLogprobs, ratios: PrefixRatios) -> Tensor:
        """Return the importance ratio of each token's prefix; for a label, the token included.

        Advantages use the ratio of their token alone, inside the policy gradient, as in PPO.
        """
        rows_N = view.part.signals.rows_N
        assert rows_N is not None
        log_ratio_N = divergences.log_importance_ratio(view.student_N, view.behaviour_N)
        sum_N = ratios.through(log_ratio_N, rows_N)
        if self.method.signal not in LABELS:
            sum_N = sum_N - log_ratio_N
        return sum_N.clamp(-divergences.MAX_LOG_RATIO, divergences.MAX_LOG_RATIO).exp().float()

    def _direct(self, view: ChunkLogprobs) -> Tensor:
        """Return the part of the loss that is differentiated directly: a label loss or a divergence."""
        method = self.method
        if view.loss_N is not None:  # of a method without a reward, where lam is 1
            return view.loss_N
        if method.signal in LABELS:
            return divergences.label_loss(view.student_N, reweighted=method.signal == "label_dft")
        if method.signal in ("reward", "sampled_reverse_kl"):
            return torch.zeros_like(view.student_N)
        return method.lam * self._divergence(view)

    def _divergence(self, view: ChunkLogprobs) -> Tensor:
        """Return the divergence between student and teacher at each token that the signal names."""
        method = self.method
        student_NV, teacher_NV = view.student_NV, view.teacher_NV
        if method.signal == "topk_reverse_kl":
            ids_NK, teacher_NK = _topk(view, method.k)
            return divergences.topk_reverse_kl(student_NV, ids_NK, teacher_NK, method.tail)
        if method.signal == "jsd":
            return divergences.exact_jsd(student_NV, teacher_NV, method.beta, method.entry_clip)
        if method.signal == "forward_kl":
            return divergences.exact_forward_kl(student_NV, teacher_NV, method.entry_clip)
        if method.signal == "reverse_kl":
            return divergences.exact_reverse_kl(student_NV, teacher_NV, method.entry_clip)
        raise NotImplementedError(f"signal={method.signal}: the objective has no loss for it")

    def _advantage(self, view: ChunkLogprobs, stats: dict[str, Tensor]) -> Tensor:
        """Return lam * [log q - log p (+ KL)] + (1 - lam) * the reward's advantage, detached."""
        method = self.method
        advantage_N = torch.zeros_like(view.student_N)
        reward_N = view.part.signals.advantages_N
        if method.signal == "sampled_reverse_kl":
            kl_N = stats["reverse_kl"] if method.teacher_baseline == "closed-form" else None
            teacher_N = divergences.sampled_reverse_kl_advantage(view.student_N, view.teacher_N, kl_N)
            advantage_N = method.lam * teacher_N
        if reward_N is not None:
            advantage_N = advantage_N + method.reward_weight * reward_N
        return advantage_N.detach()

    def _anchor(self, view: ChunkLogprobs) -> Tensor:
        """Return KL(p||anchor) of each token, or KL(anchor||p) if the method says so."""
        anchor_NV = teacher_logits(view.part.signals.anchor)
        assert anchor_NV is not None  # `require` has seen a dense anchor
        anchor_NV = self._logprobs.log_probs(anchor_NV)  # the logits' memory is free from here on
        student_NV, anchor_NV = same_vocabulary(view.student_NV, anchor_NV, view.part.tokens_N)
        if self.method.anchor_kl == "forward":
            return divergences.exact_forward_kl(student_NV, anchor_NV)
        return divergences.exact_reverse_kl(student_NV, anchor_NV)

    @torch.no_grad()
    def _statistics(self, view: ChunkLogprobs) -> dict[str, Tensor]:
        """Return each token's metrics, computed from tensors that the loss needs as well."""
        tokens = self._logprobs.statistics(view)
        stats = {
            "entropy": tokens.entropy_N,
            "logprob": view.student_N.detach(),
            "student_stop_mass": tokens.student_stop_N,
        }
        if tokens.reverse_kl_N is not None:
            stats |= {"reverse_kl": tokens.reverse_kl_N, "teacher_stop_mass": tokens.teacher_stop_N}
        elif view.scores is not None and view.scores.ids_NK is not None:
            ids_NK, teacher_NK = view.scores.ids_NK, view.scores.logprobs_NK
            stats["topk_reverse_kl"] = divergences.topk_reverse_kl(view.student_NV, ids_NK, teacher_NK)
            is_stop_NK = torch.isin(ids_NK, ids_NK.new_tensor(self._logprobs.stop_ids))
            stats["teacher_stop_mass"] = (teacher_NK.exp() * is_stop_NK).sum(-1)
        if view.teacher_N is not None:
            stats["teacher_logprob"] = view.teacher_N.float()
            stats["k1_reverse_kl"] = divergences.k1_reverse_kl(view.student_N, view.teacher_N)
            stats["k3_reverse_kl"] = divergences.k3_reverse_kl(view.student_N, view.teacher_N)
        sampled = view.part.signals.behaviour_N is not None and self.method.state_kind in SAMPLED_STATES
        if sampled and self._logprobs.temperature == self.method.temperature:  # labels are read at 1
            stats["sampler_gap"] = (view.student_N - view.behaviour_N).abs()
        return stats

    def _chunk_size(self, head: Head, hidden_ND: Tensor) -> int:
        """Return tokens per chunk: more for a large head, as each chunk updates the head's full gradient."""
        if self._vocabulary is None:
            with torch.no_grad():
                self._vocabulary = head(hidden_ND[:1]).shape[-1]
        least, most = CHUNK_ENTRIES[kind(hidden_ND.device)]
        head_entries = hidden_ND.shape[-1] * self._vocabulary
        return max(1, min(max(least, head_entries // 4), most) // self._vocabulary)

    def _loss(self, value: Tensor, weights_N: Tensor, signal_N: Tensor, stats: dict[str, Tensor]) -> Loss:
        """Return the loss with its metrics summed over tokens; transfer them from the device at once."""
        tokens = weights_N.double().sum()
        sums = torch.stack([column_N.double() @ weights_N.double() for column_N in stats.values()] + [tokens])
        *values, count = sums.tolist()
        metrics = dict(zip(stats, values, strict=True))
        maxima = {"sampler_gap_max": float(stats["sampler_gap"].max())} if "sampler_gap" in stats else {}
        return Loss(value, count, metrics, maxima, signal_N)


def _topk(view: ChunkLogprobs, k: int) -> tuple[Tensor, Tensor]:
    """Return the teacher's top k entries: from its top-k scores (sorted), or from its full distribution."""
    if view.scores.ids_NK is None:
        top = view.teacher_NV.topk(min(k, view.teacher_NV.shape[-1]), dim=-1)
        return top.indices, top.values
    if view.scores.ids_NK.shape[-1] < k:
        raise InputError(
            f"objective: the teacher sent {view.scores.ids_NK.shape[-1]} entries a token and the method "
            f"asks for k={k}: raise the teacher's k, or set k"
        )
    return view.scores.ids_NK[:, :k], view.scores.logprobs_NK[:, :k].float()
