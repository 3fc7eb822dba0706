"""Compute exact inference on the difference of two paired shares, from the counts (gained, lost, n).

A bootstrap bound has width zero when no pair changed, is too short when few did, and exceeds its error rate
near the margin. The bound here inverts an exact unconditional test: outcomes are ordered by Tango's score
(Tango 1998), the p-value is the largest over the unknown discordance (Suissa & Shuster 1991; Hsueh, Liu &
Chen 2001), and that nuisance parameter is confined to a 99.95 % interval at the cost of 0.0005 in the p-value
(Berger & Boos 1994), below an alpha of 0.01 to a wider one at the cost of a twentieth of alpha. The error
rate is at most alpha for every n and every discordance.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_SPENT = 5e-4  # of alpha, on the interval of the share of losses
_TAIL = 1e-10
_SHARES = 33  # of losses that are tried at least, over the whole interval and around its worst
_TERMS = 8000  # so many shares and counts of losses as this cost no more
WANTED_POWER = 0.8  # for which numbers of pairs are planned
MOST_PAIRS = 10_000_000  # no number of pairs decides what takes more


def tango_score(gained: ArrayLike, lost: ArrayLike, n: int, difference: float) -> Floats:
    """Return Tango's score of `gained - lost` against a true difference; it increases with gains."""
    b, c = np.asarray(gained, dtype=float), np.asarray(lost, dtype=float)
    linear = (2 * n - b + c) * difference - b - c
    root = np.sqrt(np.maximum(linear**2 + 8 * n * c * difference * (1 - difference), 0))
    lost_share = np.maximum(root - linear, 0) / (4 * n)
    variance = n * (2 * lost_share + difference * (1 - difference))
    return (b - c - n * difference) / np.sqrt(np.maximum(variance, 1e-12))


@lru_cache(maxsize=65_536)
def exact_p(gained: int, lost: int, n: int, difference: float, alpha: float = 0.05) -> float:
    """Return the p-value of "true difference <= `difference`": the largest over the share of losses.

    It is one to compare with `alpha`, of which the interval of that share takes a part."""
    spent = min(_MOST_SPENT, alpha / 20)
    seen = float(tango_score(gained, lost, n, difference)) - 1e-9
    low = max(_share_bound(lost, n, spent / 2), -difference, 0.0)
    high = 1 - _share_bound(n - lost, n, spent / 2)
    if low > high:  # too few losses for any difference this low
        return spent
    losses = _likely_range(n, low, high)
    fewest = _fewest_gains(losses, n, difference, seen)
    points = max(_SHARES, _TERMS // len(losses))  # of few pairs the p-value has more than one peak
    grid = np.linspace(low, high, points)
    tails = _tail(losses, fewest, n, grid, difference)
    near = int(tails.argmax())
    finer = np.linspace(grid[max(near - 1, 0)], grid[min(near + 1, points - 1)], _SHARES)
    worst = max(float(tails.max()), float(_tail(losses, fewest, n, finer, difference).max()))
    return min(1.0, worst + spent + 2 * _TAIL)


@lru_cache(maxsize=65_536)
def paired_lower_bound(
    gained: int, lost: int, n: int, alpha: float = 0.05, split: tuple[float, bool] | None = None
) -> float:
    """Return the one-sided lower bound: the largest difference that the exact test rejects.

    `split` = (difference, rejected) keeps the bound consistent with an earlier test at that difference."""
    seen = (gained - lost) / n
    low = max(seen - 10 / sqrt(n), -1 + 1e-9)
    high = min(seen, 1 - 1e-9)
    if split is not None and split[0] < high:
        low, high = (split[0], high) if split[1] else (min(low, split[0]), split[0])

    def excess(difference: float) -> float:
        return exact_p(gained, lost, n, difference, alpha) - alpha

    if excess(low) >= 0:  # the test rejects nothing here, or the split is the bound
        return low if split is not None and split[1] else -1.0
    return float(optimize.brentq(excess, low, high, xtol=1e-6))


@lru_cache(maxsize=4096)
def power(
    n: int, discordance: float, margin: float = 0.03, difference: float = 0.0, alpha: float = 0.05
) -> float:
    """Return the power of n pairs to show non-inferiority, summed over all counts of gains and losses.

    The exact test's rejection region is approximated closely by Tango's with a quarter-step correction."""
    share = (discordance - difference) / 2
    losses = _likely_range(n, share, share)
    needed_score = float(-special.ndtri(alpha)) + 0.25 / sqrt(n * max(discordance, margin))
    fewest = _fewest_gains(losses, n, -margin, needed_score)
    return float(_tail(losses, fewest, n, share, difference)[0])


@lru_cache(maxsize=4096)
def needed_pairs(
    discordance: float, margin: float = 0.03, alpha: float = 0.05, difference: float = 0.0
) -> int | None:
    """Return the smallest number of pairs that shows non-inferiority with a power of 80 %.

    None where that takes more than MOST_PAIRS, as where the difference lies on the margin."""
    return smallest(lambda n: power(n, discordance, margin, difference, alpha) >= WANTED_POWER, above=1)


def smallest(is_enough: Callable[[int], bool], above: int) -> int | None:
    """Return the smallest number of pairs that is enough, as all larger ones are; None beyond MOST_PAIRS."""
    low, high = above, above + 1
    while not is_enough(high):
        low, high = high, 2 * high
        if high > MOST_PAIRS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _likely_range(n: int, low: float, high: float) -> Ints:
    """Return loss counts for shares within [low, high]; all other counts together have mass below _TAIL."""
    spread = [8 * sqrt(n * share * (1 - share)) + 16 for share in (low, high)]
    return np.arange(max(0, int(n * low - spread[0])), min(n, ceil(n * high + spread[1])) + 1)


def _fewest_gains(losses: Ints, n: int, difference: float, score: float) -> Ints:
    """Bisect the fewest gains that reach `score`, per loss count; n - losses + 1 if none do."""
    low = np.zeros_like(losses)
    high = n - losses + 1
    while (low < high).any():
        middle = (low + high) // 2
        enough = (tango_score(middle, losses, n, difference) >= score) | (middle > n - losses)
        low = np.where(enough, low, middle + 1)
        high = np.where(enough, middle, high)
    return low


def _tail(losses: Ints, fewest: Ints, n: int, lost_shares: ArrayLike, difference: float) -> Floats:
    """Return P(gains >= fewest), summed over the loss counts: one value per share of losses.

    For each share of losses the least favourable null has the most gains: share + difference, at most 1."""
    shares = np.atleast_1d(np.asarray(lost_shares, dtype=float))[:, None]
    gain = np.clip((shares + difference) / np.maximum(1 - shares, 1e-12), 0, 1)
    log_choose = special.gammaln(n + 1) - special.gammaln(losses + 1) - special.gammaln(n - losses + 1)
    mass = np.exp(log_choose + special.xlogy(losses, shares) + special.xlog1py(n - losses, -shares))
    return np.asarray((mass * _at_least(fewest, n - losses, gain)).sum(axis=1))


def _at_least(k: Ints, n: Ints, p: Floats) -> Floats:
    """Return P(Binomial(n, p) >= k)."""
    inside = special.betainc(np.maximum(k, 1), np.maximum(n - k + 1, 1), p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, inside))


def _share_bound(passed: int, n: int, alpha: float) -> float:
    """Return Clopper and Pearson's one-sided lower bound of a share."""
    return float(special.betaincinv(passed, n - passed + 1, alpha)) if passed else 0.0
