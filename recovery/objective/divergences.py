"""Compute divergences between student and teacher for each token, as pure functions of log-probabilities.

Shapes: N tokens, V vocabulary, K top entries. p is the student, q the teacher, y the sampled token.
`student_NV` and `teacher_NV` are outputs of log_softmax. A function returns one value per token (N), to be
minimised unless its name says advantage. Tokens are independent, so callers may split N into chunks.

The exact divergences compute their gradient together with their value, so that the backward pass keeps only
one (N, V) tensor. The gradient is taken with respect to log p, up to a term c * p_v that log_softmax cancels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

TINY = 1e-30
LOG_TINY = math.log(TINY)
REST_FLOOR = 1e-7  # precision of 1 - sum(p) in fp32
MAX_LOG_RATIO = 20.0  # nats
BISECTIONS = 24  # of a share between 0 and 1: as fine as fp32
BISECTED_ENTRIES = 2**23  # of the vocabulary at once, whatever the size of the caller's chunk


class _WithSlope(torch.autograd.Function):
    """Return value_N in the forward pass and use slope_NV = d value / d student_NV in the backward pass."""

    @staticmethod
    def forward(ctx: Any, student_NV: Tensor, value_N: Tensor, slope_NV: Tensor) -> Tensor:
        ctx.slope_NV = slope_NV
        return value_N.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        slope_NV = ctx.slope_NV
        ctx.slope_NV = None
        return slope_NV.mul_(grads[0].unsqueeze(-1)), None, None


def with_slope(student_NV: Tensor, value_N: Tensor, slope_NV: Any) -> Tensor:
    """Attach a known derivative to a value. `slope_NV` is overwritten: it becomes the gradient in place."""
    if not (torch.is_grad_enabled() and student_NV.requires_grad):
        return value_N
    return _WithSlope.apply(student_NV, value_N, slope_NV)


def _cap(entries_NV: Tensor, entry_clip: float) -> Tensor:
    """Return factors that scale entries down to `entry_clip`; unlike a clamp, this keeps their gradient."""
    return (entry_clip / entries_NV.clamp_min(TINY)).clamp_max_(1.0)


def exact_reverse_kl(student_NV: Tensor, teacher_NV: Tensor, entry_clip: float | None = None) -> Tensor:
    """Return KL(p||q) = sum_v p_v (log p_v - log q_v); d/d log p_v = p_v (log p_v - log q_v). Mode-seeking.

    With `entry_clip`, an entry is min(p log(p/q) - p + q, entry_clip): never negative, with the same
    unclipped sum.
    """
    with torch.no_grad():
        p_NV = student_NV.exp()
        slope_NV = (student_NV - teacher_NV).mul_(p_NV)
        if entry_clip is None:
            value_N = slope_NV.sum(-1)
        else:
            entries_NV = slope_NV + teacher_NV.exp() - p_NV
            factor_NV = _cap(entries_NV, entry_clip)
            value_N = (entries_NV * factor_NV).sum(-1)
            slope_NV.mul_(factor_NV)
    return with_slope(student_NV, value_N, slope_NV)


def exact_forward_kl(student_NV: Tensor, teacher_NV: Tensor, entry_clip: float | None = None) -> Tensor:
    """Return KL(q||p) = sum_v q_v (log q_v - log p_v); d/d log p_v = -q_v. Mode-covering.

    With `entry_clip`, an entry is min(q log(q/p) - q + p, entry_clip), whose derivative is p_v - q_v.
    """
    with torch.no_grad():
        q_NV = teacher_NV.exp()
        entries_NV = (teacher_NV - student_NV).mul_(q_NV)
        if entry_clip is None:
            value_N = entries_NV.sum(-1)
            slope_NV = q_NV.neg_()
        else:
            slope_NV = student_NV.exp() - q_NV
            entries_NV += slope_NV
            factor_NV = _cap(entries_NV, entry_clip)
            value_N = (entries_NV * factor_NV).sum(-1)
            slope_NV.mul_(factor_NV)
    return with_slope(student_NV, value_N, slope_NV)


def exact_jsd(student_NV: Tensor, teacher_NV: Tensor, beta: float, entry_clip: float | None = None) -> Tensor:
    """Return JSD_beta = beta KL(q||m) + (1 - beta) KL(p||m), m = beta q + (1 - beta) p;
    d/d log p_v = (1 - beta) p_v (log p_v - log m_v).

    The formula vanishes at beta 0 and 1; there, as in GKD and TRL, return KL(q||p) and KL(p||q). At beta 1/2
    it is symmetric and bounded by log 2. `entry_clip` applies to each entry's summand of the two KLs.
    """
    if beta in (0, 1):
        return (exact_reverse_kl if beta else exact_forward_kl)(student_NV, teacher_NV, entry_clip)
    with torch.no_grad():
        p_NV, q_NV = student_NV.exp(), teacher_NV.exp()
        m_NV = torch.lerp(p_NV, q_NV, beta).clamp_min_(TINY).log_()
        slope_NV = (student_NV - m_NV).mul_(p_NV).mul_(1 - beta)
        entries_NV = (teacher_NV - m_NV).mul_(q_NV).mul_(beta).add_(slope_NV)
        if entry_clip is not None:
            factor_NV = _cap(entries_NV, entry_clip)
            entries_NV.mul_(factor_NV)
            slope_NV.mul_(factor_NV)
    return with_slope(student_NV, entries_NV.sum(-1), slope_NV)


@torch.no_grad()
def keep_near(teacher_NV: Tensor, student_NV: Tensor, budget: float | Tensor) -> Tensor:
    """Move the teacher, in place, to the nearest q with KL(q||p) <= budget; return each token's share a.

    That q is proportional to teacher^a * p^(1 - a). KL(q||p) grows with a, so the largest a is found by
    bisection, for the tokens whose teacher (a = 1) is outside the budget; all others keep theirs. p is a
    constant in q: with respect to the logits, KL(p||q) has a times the gradient of KL(p||teacher).
    `budget` is one for all tokens, or one for each.
    """
    share_N = torch.ones_like(teacher_NV[:, 0])
    budget_N = share_N * budget
    far_F = (exact_forward_kl(student_NV, teacher_NV) > budget_N).nonzero().squeeze(-1)
    for rows in far_F.split(max(1, BISECTED_ENTRIES // teacher_NV.shape[-1])):
        student_FV = student_NV[rows]
        log_ratio_FV = teacher_NV[rows] - student_FV
        share_N[rows] = _largest_share(student_FV, log_ratio_FV, budget_N[rows])
        teacher_NV[rows] = _between(student_FV, log_ratio_FV, share_N[rows])
    return share_N


def _largest_share(student_FV: Tensor, log_ratio_FV: Tensor, budget_F: Tensor) -> Tensor:
    """Return the largest share, from below, at which the tilted student is within the budget."""
    low_F, high_F = torch.zeros_like(student_FV[:, 0]), torch.ones_like(student_FV[:, 0])
    for _ in range(BISECTIONS):
        middle_F = (low_F + high_F) / 2
        inside_F = exact_forward_kl(student_FV, _between(student_FV, log_ratio_FV, middle_F)) <= budget_F
        low_F = torch.where(inside_F, middle_F, low_F)
        high_F = torch.where(inside_F, high_F, middle_F)
    return low_F


@torch.no_grad()
def move(teacher_NV: Tensor, student_NV: Tensor, share_N: Tensor) -> Tensor:
    """Replace the teacher, in place, by q proportional to teacher^a * p^(1 - a); return the shares a."""
    teacher_NV.copy_(_between(student_NV, teacher_NV - student_NV, share_N))
    return share_N


@torch.no_grad()
def moved_distances(teacher_NV: Tensor, student_NV: Tensor, shares: Sequence[float]) -> Tensor:
    """Return KL(q||p) of each token for each share a of the teacher in q (N, S)."""
    log_ratio_NV = teacher_NV - student_NV
    share_N = torch.ones_like(teacher_NV[:, 0])
    moved = (_between(student_NV, log_ratio_NV, share * share_N) for share in shares)
    return torch.stack([exact_forward_kl(student_NV, one_NV) for one_NV in moved], dim=-1)


def share_within(shares: Sequence[float], distances: Sequence[float], budget: float) -> float:
    """Return the largest share whose distance is within the budget; both rise, and the last share is 1.

    Between two shares the distance is taken as a power of the share; below the first, as its square, which
    KL(q||p) is for small shares. Of distances that are not numbers return 1: the loss is not one either, and
    says so.
    """
    above = next((i for i, distance in enumerate(distances) if distance > budget), None)
    if above is None or distances[-1] <= budget:
        return 1.0
    if above == 0:
        return shares[0] * math.sqrt(budget / distances[0])
    low, high = shares[above - 1], shares[above]
    near, far = max(distances[above - 1], TINY), distances[above]
    power = math.log(far / near) / math.log(high / low)
    return low * (budget / near) ** (1 / power)


def _between(student_NV: Tensor, log_ratio_NV: Tensor, share_N: Tensor) -> Tensor:
    """Return log q of q proportional to p * (teacher/p)^share."""
    return torch.addcmul(student_NV, log_ratio_NV, share_N.unsqueeze(-1)).log_softmax(-1)


def topk_reverse_kl(student_NV: Tensor, ids_NK: Tensor, teacher_NK: Tensor, tail: str = "bucket") -> Tensor:
    """Return KL(p||q) over the teacher's top K entries, with all others merged into one bucket:
    sum_k p_k log(p_k/q_k) + r log(r/s), r = 1 - sum_k p_k, s = 1 - sum_k q_k.

    It is a lower bound of the exact KL, and equal to it for K = V. tail="renormalise" divides p and q by
    their mass in the top K instead, and so ignores probability that moves out of it. An id beyond the
    student's vocabulary, which is padding of the teacher's, has no mass on either side: q's is in the bucket.
    """
    padding_NK = ids_NK >= student_NV.shape[-1]
    student_NK = student_NV.gather(-1, ids_NK.masked_fill(padding_NK, 0)).masked_fill(padding_NK, LOG_TINY)
    teacher_NK = teacher_NK.masked_fill(padding_NK, LOG_TINY)
    if tail == "renormalise":
        student_NK, teacher_NK = student_NK.log_softmax(-1), teacher_NK.log_softmax(-1)
        return (student_NK.exp() * (student_NK - teacher_NK)).sum(-1)
    p_NK = student_NK.exp()
    rest_N = (1 - p_NK.sum(-1)).clamp_min(REST_FLOOR)
    teacher_rest_N = (1 - teacher_NK.exp().sum(-1)).clamp_min(REST_FLOOR)
    return (p_NK * (student_NK - teacher_NK)).sum(-1) + rest_N * (rest_N.log() - teacher_rest_N.log())


def sampled_reverse_kl_advantage(student_N: Tensor, teacher_N: Tensor, kl_N: Tensor | None = None) -> Tensor:
    """Return A = log q(y) - log p(y), detached; positive where the teacher prefers y more than the student.

    E_p[A grad log p] = -grad KL(p||q). With the closed-form baseline `kl_N`, A + KL(p||q): zero mean, lower
    variance, and the same expected gradient.
    """
    advantage_N = (teacher_N - student_N).detach()
    return advantage_N if kl_N is None else advantage_N + kl_N.detach()


def log_importance_ratio(student_N: Tensor, behaviour_N: Tensor) -> Tensor:
    """Return log p(y) - log p_sampler(y), clamped so that its exponential is finite."""
    return (student_N - behaviour_N).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def policy_gradient_loss(
    student_N: Tensor,
    advantage_N: Tensor,
    behaviour_N: Tensor,
    ratio_clip: float | None = None,
    importance_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the PPO loss -min(r A, clip(r, 1 - c, 1 + c) A), r = p(y) / p_sampler(y), and a mask of the
    tokens whose gradient is clipped.

    Without `ratio_clip` the loss is -r A. `importance_clip` truncates r as a constant importance weight.
    """
    ratio_N = log_importance_ratio(student_N, behaviour_N).exp()
    if importance_clip is not None:  # r / r.detach() is 1 and carries the gradient of log p
        ratio_N = ratio_N / ratio_N.detach() * ratio_N.detach().clamp_max(importance_clip)
    if ratio_clip is None:
        return -ratio_N * advantage_N, torch.zeros_like(advantage_N, dtype=torch.bool)
    low = 1 - ratio_clip
    high = 1 + ratio_clip
    loss_N = -torch.minimum(ratio_N * advantage_N, ratio_N.clamp(low, high) * advantage_N)
    clipped_N = torch.where(advantage_N > 0, ratio_N > high, (ratio_N < low) & (advantage_N < 0))
    return loss_N, clipped_N.detach()


def label_loss(label_N: Tensor, reweighted: bool = False) -> Tensor:
    """Return -log p(y), or reweighted by a detached p(y) (DFT), which reduces the pull of unlikely labels."""
    return -label_N * label_N.detach().exp() if reweighted else -label_N


def k1_reverse_kl(student_N: Tensor, teacher_N: Tensor) -> Tensor:
    """Return log p(y) - log q(y), whose mean over y ~ p is KL(p||q). A metric: its mean gradient is zero."""
    return (student_N - teacher_N).detach()


def k3_reverse_kl(student_N: Tensor, teacher_N: Tensor) -> Tensor:
    """Return q/p - 1 - log(q/p) at y: the same mean as k1, never negative, lower variance. A metric."""
    log_ratio_N = (teacher_N - student_N).detach().clamp_max(20.0)
    return torch.expm1(log_ratio_N) - log_ratio_N


def entropy(student_NV: Tensor) -> Tensor:
    """Return the entropy -sum_v p_v log p_v."""
    return -torch.linalg.vecdot(student_NV.exp(), student_NV)


def slices(n: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `size` rows that cover n rows."""
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
