"""Compute importance weights of prefixes that another policy sampled.

A divergence over the full vocabulary does not depend on the sampled token, only on the prefix before it, so
its weight is the prefix's: the product of p(y) / p_sampler(y) over the *earlier* tokens of the sequence. A
label is itself a sampled token, so its weight also includes that token's ratio.
"""

from __future__ import annotations

import torch
from torch import Tensor


class PrefixRatios:
    """Running log p(y_1..y_t) - log p_sampler(y_1..y_t) of sequences that arrive in order, chunk by chunk."""

    def __init__(self) -> None:
        self._row: Tensor | None = None  # last sequence of the previous chunk, and its sum so far
        self._sum: Tensor | None = None

    def through(self, log_ratio_N: Tensor, rows_N: Tensor) -> Tensor:
        """Return the cumulative sum within each token's sequence, the token included (float64)."""
        log_ratio_N = log_ratio_N.double()
        before_N = log_ratio_N.cumsum(0) - log_ratio_N
        starts_N = torch.ones_like(rows_N, dtype=torch.bool)
        starts_N[1:] = rows_N[1:] != rows_N[:-1]
        places_N = torch.arange(len(rows_N), device=rows_N.device)
        first_N = torch.where(starts_N, places_N, 0).cummax(0).values
        sum_N = before_N - before_N[first_N] + log_ratio_N
        if self._row is not None and self._sum is not None:
            continued_N = (first_N == 0) & (rows_N == self._row)
            sum_N = sum_N + torch.where(continued_N, self._sum, 0.0)
        self._row = rows_N[-1]
        self._sum = sum_N[-1]
        return sum_N
