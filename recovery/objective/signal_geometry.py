"""Measure the density, bias and concentration of a method's token signal, to compare methods.

Shapes: N tokens, D draws (or tokens), P dimensions. A signal is a scalar per token (an advantage or a loss:
`Loss.signal_N`), or a vector per token (its gradient, preferably on a random projection: `project`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 1e-3  # nats; smaller signals count as zero
TOP = 0.01  # share of tokens that concentration looks at


@dataclass(frozen=True)
class SignalGeometry:
    """Statistics of a token signal: how many tokens carry it, whether draws agree, and how peaked it is."""

    density: float  # share of tokens with a signal above the floor
    bias: float  # agreement between draws: 1 if identical, 0 for noise that cancels
    concentration: float  # share of the absolute signal on the top 1 % of tokens


def measure(signal_N: Tensor, draw_N: Tensor) -> SignalGeometry:
    """Return the geometry of scalar signals (advantages or token losses).

    `draw_N` gives each token's draw, such as its rollout; tokens of a draw are averaged before `bias`.
    """
    signal_N = signal_N.double()
    draws_DP = _mean_by_draw(signal_N.unsqueeze(-1), draw_N)
    return SignalGeometry(density(signal_N), bias(draws_DP), concentration(signal_N))


def measure_gradients(gradients_NP: Tensor, draw_N: Tensor) -> SignalGeometry:
    """Return the geometry of vector signals: density and concentration of lengths, bias of vectors.

    The floor is relative to the mean length, because gradients have no natural unit.
    """
    lengths_N = gradients_NP.double().norm(dim=-1)
    floor = FLOOR * float(lengths_N.mean())
    draws_DP = _mean_by_draw(gradients_NP, draw_N)
    return SignalGeometry(density(lengths_N, floor), bias(draws_DP), concentration(lengths_N))


def density(signal_N: Tensor, floor: float = FLOOR) -> float:
    """Return the share of tokens whose absolute signal exceeds `floor`."""
    return float((signal_N.abs() > floor).double().mean())


def bias(draws_DP: Tensor) -> float:
    """Return the mean inner product of two different draws, divided by the mean square of one.

    It is 1 if all draws are identical and 0 in expectation for noise (slightly negative values occur). A
    single draw gives 0.
    """
    draws_DP = draws_DP.double()
    count = draws_DP.shape[0]
    square = float(draws_DP.square().sum())
    if count < 2 or square == 0.0:
        return 0.0
    return (float(draws_DP.sum(0).square().sum()) - square) / ((count - 1) * square)


def concentration(signal_N: Tensor) -> float:
    """Return the share of the absolute signal on the top 1 % of tokens (at least one token)."""
    size_N = signal_N.abs().double()
    total = float(size_N.sum())
    if total == 0.0:
        return 0.0
    count = max(1, math.ceil(TOP * size_N.numel()))
    return float(size_N.topk(count).values.sum()) / total


def project(gradients_NH: Tensor, dimensions: int = 64) -> Tensor:
    """Project vectors to (N, P) with a random Gaussian matrix, which keeps lengths and angles on average."""
    generator = torch.Generator().manual_seed(0)
    matrix_HP = torch.randn(gradients_NH.shape[-1], dimensions, generator=generator) / math.sqrt(dimensions)
    return gradients_NH.float() @ matrix_HP.to(gradients_NH.device)


def _mean_by_draw(values_NP: Tensor, draw_N: Tensor) -> Tensor:
    """Return the mean vector of each draw (D, P)."""
    _, row_N, count_D = draw_N.unique(return_inverse=True, return_counts=True)
    sums_DP = torch.zeros(len(count_D), values_NP.shape[-1], dtype=torch.float64)
    return sums_DP.index_add_(0, row_N, values_NP.double()) / count_D.unsqueeze(-1)
