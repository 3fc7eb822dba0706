"""The shape of a method's token signal, density, bias and concentration, so that methods can be compared.

Shapes: N tokens, D draws (or tokens), P dimensions. A signal is a number a token (an advantage, or a token's
loss: `Loss.signal_N`), or an arrow a token (its gradient, best on a random projection: `project`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 1e-3  # nats: what counts as some signal


@dataclass(frozen=True)
class Geometry:
    """How many tokens speak, whether they agree, and how few of them do all the talking."""

    density: float  # share of tokens with any signal
    bias: float  # agreement of the draws: 1 all alike, 0 noise that cancels
    concentration: float  # share of the absolute signal on the top 1 % of tokens
    spread: float  # share of the tokens that the signal amounts to: 1 when even, 1/N when on one


def density(signal_N: Tensor, floor: float = FLOOR) -> float:
    """Share of tokens whose absolute signal exceeds `floor`."""
    return float((signal_N.abs() > floor).double().mean()) if signal_N.numel() else 0.0


def concentration(signal_N: Tensor, top: float = 0.01) -> float:
    """Share of the absolute signal that lies on the `top` share of tokens (at least one token)."""
    size_N = signal_N.detach().abs().double()
    total = float(size_N.sum())
    if total == 0.0:
        return 0.0
    count = max(1, math.ceil(top * size_N.numel()))
    return float(size_N.topk(count).values.sum()) / total


def spread(signal_N: Tensor) -> float:
    """(sum |s|)^2 / (N sum s^2): the share of tokens that an even signal of this sort would need."""
    size_N = signal_N.detach().abs().double()
    square = float(size_N.square().sum())
    return float(size_N.sum()) ** 2 / (size_N.numel() * square) if square else 0.0


def bias(draws_DP: Tensor) -> float:
    """Mean inner product of two different draws over the mean square of one: 1 when all draws are alike, 0 on
    average when they are noise (then it may fall a little below). One draw tells nothing: 0.
    """
    draws_DP = draws_DP.detach().double()
    count, square = draws_DP.shape[0], float(draws_DP.square().sum())
    if count < 2 or square == 0.0:
        return 0.0
    return (float(draws_DP.sum(0).square().sum()) - square) / ((count - 1) * square)


def project(gradients_NH: Tensor, dimensions: int = 64, seed: int = 0) -> Tensor:
    """Arrows on a random Gaussian projection (N, P), which keeps lengths and angles on average."""
    generator = torch.Generator().manual_seed(seed)
    matrix_HP = torch.randn(gradients_NH.shape[-1], dimensions, generator=generator) / math.sqrt(dimensions)
    return gradients_NH.detach().float() @ matrix_HP.to(gradients_NH.device)


def measure(signal_N: Tensor, draw_N: Tensor | None = None) -> Geometry:
    """The geometry of advantages or token losses.

    `draw_N` names each token's draw (say its rollout), whose tokens are averaged before draws are compared.
    """
    signal_N = signal_N.detach().double()
    draws_DP = signal_N.unsqueeze(-1) if draw_N is None else _mean_by_draw(signal_N.unsqueeze(-1), draw_N)
    return Geometry(density(signal_N), bias(draws_DP), concentration(signal_N), spread(signal_N))


def measure_gradients(gradients_NP: Tensor, draw_N: Tensor | None = None, floor: float = FLOOR) -> Geometry:
    """The same of arrows: lengths for density, concentration and spread, directions for bias.

    `floor` is a share of the mean length, for gradients have no unit of their own.
    """
    lengths_N = gradients_NP.detach().double().norm(dim=-1)
    draws_DP = gradients_NP if draw_N is None else _mean_by_draw(gradients_NP, draw_N)
    mean = float(lengths_N.mean()) if lengths_N.numel() else 0.0
    return Geometry(
        density(lengths_N, floor * mean), bias(draws_DP), concentration(lengths_N), spread(lengths_N)
    )


def _mean_by_draw(values_NP: Tensor, draw_N: Tensor) -> Tensor:
    """The mean arrow of each draw (D, P)."""
    values_NP = values_NP.detach().double()
    _, row_N = draw_N.unique(return_inverse=True)
    sums_DP = values_NP.new_zeros(int(row_N.max()) + 1 if row_N.numel() else 0, values_NP.shape[-1])
    sums_DP.index_add_(0, row_N, values_NP)
    return sums_DP / row_N.bincount().unsqueeze(-1) if row_N.numel() else sums_DP
