"""Looking more than once without fooling oneself: error spending for planned looks, and a bound for any.

Whoever asks "non-inferior yet?" after every hundred steps and stops at the first yes is wrong far more often
than once in twenty. `boundaries` gives each planned look a share of alpha (Lan & DeMets 1983) so that all of
them together err at most alpha; `Looks` applies them to growing sets of paired items. Where a checkpoint may
be looked at any number of times, or is another one at each look, `confidence_sequence` holds at all of them
at once (Howard et al. 2021; Waudby-Smith & Ramdas 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import e, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from evals.exact import exact_p, paired_lower_bound
from recovery.errors import InputError

Floats = NDArray[np.float64]
SPENDING = ("obrien-fleming", "pocock", "bonferroni")
_NODES = 801


def spent(shares: ArrayLike, alpha: float = 0.05, spending: str = "obrien-fleming") -> Floats:
    """How much of alpha may be spent when a share of all information is there.

    obrien-fleming: hardly any early, nearly all at the end. pocock: about as easy at every look.
    bonferroni: in proportion to the information.
    """
    t = np.asarray(shares, dtype=float)
    if spending not in SPENDING:
        raise InputError(f"spending {spending!r}: one of {', '.join(SPENDING)} is expected")
    if t.ndim != 1 or t.size == 0 or (t <= 0).any() or (np.diff(t) <= 0).any() or t[-1] > 1 + 1e-12:
        raise InputError(f"looks at {t.tolist()}: rising shares above 0, up to 1, are expected")
    if spending == "obrien-fleming":
        return np.asarray(2 * special.ndtr(special.ndtri(alpha / 2) / np.sqrt(t)))
    return np.asarray(alpha * np.log1p((e - 1) * t)) if spending == "pocock" else alpha * t


def boundaries(shares: Sequence[float], alpha: float = 0.05, spending: str = "obrien-fleming") -> list[float]:
    """The one-sided level of each look: a p-value at or below it stops; all looks together err at most alpha.

    The recursion of Armitage, McPherson & Rowe (1969) on the statistic's joint normal distribution, whose
    increments between looks are independent. `bonferroni` uses no distribution: it holds for dependent
    looks of any kind, such as at different checkpoints on the same prompts.
    """
    budget = np.diff(spent(shares, alpha, spending), prepend=0.0)
    if spending == "bonferroni":
        return [float(level) for level in budget]
    grid, density, before = np.zeros(0), np.zeros(0), 0.0
    levels: list[float] = []
    for share, allowed in zip(shares, budget, strict=True):
        edge = (
            _edge(grid, density, share - before, allowed) if levels else -sqrt(share) * special.ndtri(allowed)
        )
        levels.append(float(special.ndtr(-edge / sqrt(share))))
        grid, density = _carry(grid, density, share, share - before, float(edge))
        before = share
    return levels


def _edge(grid: Floats, density: Floats, step: float, allowed: float) -> float:
    """The score above which just the allowed probability crosses, of paths that have not crossed before."""

    def excess(edge: float) -> float:
        above = special.ndtr((grid - edge) / sqrt(step))
        return float(np.trapezoid(density * above, grid)) - allowed

    return float(optimize.brentq(excess, -10, 40))


def _carry(grid: Floats, density: Floats, share: float, step: float, edge: float) -> tuple[Floats, Floats]:
    """The density of the score (variance = information) of paths that stay below the edge."""
    after = np.linspace(-8 * sqrt(share), edge, _NODES)
    if grid.size == 0:
        return after, np.asarray(stats.norm.pdf(after, scale=sqrt(share)))
    kernel = stats.norm.pdf(after[:, None] - grid[None, :], scale=sqrt(step))
    return after, np.asarray(np.trapezoid(kernel * density, grid, axis=1))


@dataclass(frozen=True)
class Look:
    """What one look at the paired items said: stop (shown) or go on."""

    number: int
    stop: bool
    level: float
    p_value: float
    lower_bound: float
    difference: float
    n: int


class Looks:
    """Planned looks at "at most `margin` worse", on counts of gains and losses that grow from look to look.

    The exact test of evals/exact.py decides at each look, at that look's level. For looks at *different*
    checkpoints on the same items choose spending="bonferroni": nothing is assumed of how they depend.
    """

    def __init__(
        self,
        shares: Sequence[float],
        margin: float = 0.03,
        alpha: float = 0.05,
        spending: str = "obrien-fleming",
    ) -> None:
        if not 0 < margin < 1:
            raise InputError(f"margin {margin}: a share between 0 and 1 is expected, such as 0.03")
        self.margin = margin
        self.levels = boundaries(shares, alpha, spending)

    def look(self, number: int, gained: int, lost: int, n: int) -> Look:
        """The look of that number, from 1; a look may be left out, its share of alpha is then unused."""
        if not 1 <= number <= len(self.levels):
            raise InputError(f"look {number}: {len(self.levels)} were planned, counted from 1")
        level = self.levels[number - 1]
        p_value = exact_p(gained, lost, n, -self.margin)
        shown = p_value <= level
        bound = paired_lower_bound(gained, lost, n, level, split=(-self.margin, shown))
        return Look(number, shown, level, p_value, bound, (gained - lost) / n, n)


def confidence_sequence(
    differences: ArrayLike, alpha: float = 0.05, planned: int = 500
) -> tuple[Floats, Floats]:
    """Lower and upper bound of the mean of paired differences in [-1, 1], after each of them.

    All bounds hold at once with probability 1 - alpha, so one may look after every item and stop at will. An
    empirical-Bernstein sequence (Waudby-Smith & Ramdas 2024, theorem 2), tightest around `planned` items;
    alpha is shared by the two sides.
    """
    x = (np.asarray(differences, dtype=float) + 1) / 2
    if x.ndim != 1 or x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise InputError("confidence_sequence: at least one difference, each from -1 to 1, is expected")
    t = np.arange(1, x.size + 1)
    mean = (0.5 + np.cumsum(x)) / (t + 1)
    variance = (0.25 + np.cumsum((x - mean) ** 2)) / (t + 1)
    past_mean, past_variance = np.append(0.5, mean[:-1]), np.append(0.25, variance[:-1])
    rate = np.sqrt(2 * log(2 / alpha) / (past_variance * max(planned, 1)))
    rate = np.minimum(rate, 0.75)
    cost = (-np.log1p(-rate) - rate) * (x - past_mean) ** 2
    weight = np.cumsum(rate)
    centre, half = np.cumsum(rate * x) / weight, (log(2 / alpha) + np.cumsum(cost)) / weight
    low, high = np.maximum.accumulate(centre - half), np.minimum.accumulate(centre + half)
    return np.maximum(2 * low - 1, -1.0), np.minimum(2 * high - 1, 1.0)
