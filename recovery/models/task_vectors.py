"""Mask a task vector (what training changed of each weight): the largest entries, the sign of the majority.

As in TIES (arXiv 2306.01708), but within each tensor instead of over all of them, so that a tensor is read a
few rows at a time however large the model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recovery.errors import InputError

HALF = 16  # bits of an fp32 number that one histogram sorts by
BINS = 2**HALF

Parts = Callable[[], Iterable[Tensor]]  # a tensor in fp32, a few rows at a time, as often as it is read


@dataclass(frozen=True)
class Residual:
    """The model that another was tuned from, and which entries of the difference are added."""

    origin: Path
    keep: float = 1.0  # share of a tensor's entries: the largest by magnitude
    elect_signs: bool = False  # drop entries that lose against what the student's own training changed

    def __post_init__(self) -> None:
        if not 0 < self.keep <= 1:
            raise InputError(
                f"merge: keep {self.keep:g} is no share of a residual's entries: above 0, up to 1"
            )


@dataclass(frozen=True)
class Mask:
    """The entries of a tensor's residual that are added."""

    added: float  # smallest magnitude of the residual that stays
    own: float | None  # that of the student's own change; None: signs are not compared

    def __call__(self, student: Tensor, other: Tensor, origin: Tensor) -> Tensor:
        """Return True for each entry of these rows that stays."""
        added = other - origin
        kept = added.abs() >= self.added
        if self.own is None:
            return kept
        change = student - origin
        change = change.masked_fill(change.abs() < self.own, 0)
        return kept & (torch.sign(added + change) == torch.sign(added))


def magnitude_of_rank(parts: Parts, rank: int) -> float:
    """Return the rank-th largest magnitude of a tensor, exactly, from two histograms of its bits.

    The bits of fp32 magnitudes, read as whole numbers, are in the order of the magnitudes."""
    high, larger = _bin(_histogram(_bits(part) >> HALF for part in parts()), rank)
    within = (bits[bits >> HALF == high] & (BINS - 1) for bits in map(_bits, parts()))
    low, _ = _bin(_histogram(within), rank - larger)
    return torch.tensor(high << HALF | low, dtype=torch.int32).view(torch.float32).item()


def _bits(part: Tensor) -> Tensor:
    return part.abs().reshape(-1).contiguous().view(torch.int32)


def _histogram(parts: Iterable[Tensor]) -> Tensor:
    counts = torch.zeros(BINS, dtype=torch.int64)
    for part in parts:
        counts += torch.bincount(part, minlength=BINS)
    return counts


def _bin(counts: Tensor, rank: int) -> tuple[int, int]:
    """Return the bin of the rank-th largest number, and how many numbers lie in larger bins."""
    at_least = counts.flip(0).cumsum(0)
    place = int(torch.searchsorted(at_least, rank))
    larger = int(at_least[place - 1]) if place else 0
    return BINS - 1 - place, larger
