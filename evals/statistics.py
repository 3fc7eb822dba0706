"""The statistics behind every claim: pure functions on arrays of passes, no I/O, nothing random without a
seed.

"Recovered" is a claim of non-inferiority: the one-sided 95 % lower bound of (after - before), paired by
prompt, lies above minus the margin. The bound is the exact one of evals/exact.py, which says why; the
bootstrap interval that the literature uses is reported beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special

from evals.exact import exact_p, needed_pairs, paired_lower_bound, power
from recovery.errors import InputError

Floats = NDArray[np.float64]
Interval = tuple[float, float]
LEAST_EFFECT = 0.8  # of a design effect in an interval; simulated in tests/evals/test_statistics.py


@dataclass(frozen=True)
class NonInferiority:
    """Whether `after` is at most `margin` worse than `before`, pair by pair.

    passed: shown. failed: not so, or not shown by data that should have shown it. underpowered: can't tell.
    `lower_bound` and `upper_bound` are one-sided at level alpha; `p_value` tests difference <= -margin;
    `power` and `needed_n` (pairs for 80 %) suppose a true difference of 0 and the discordance seen here.
    """

    outcome: str
    difference: float
    lower_bound: float
    upper_bound: float
    margin: float
    gained: int
    lost: int
    n: int
    p_value: float
    p_mcnemar: float
    power: float
    needed_n: int
    bootstrap: Interval
    design_effect: float
    alpha: float


@dataclass(frozen=True)
class Comparison:
    """Two checkpoints on the same items: two-sided, "better", "worse" or "not distinguishable".

    `detectable` is the smallest true difference that so many items with so many flips would show four times
    in five: what "not distinguishable" cannot rule out.
    """

    words: str
    difference: float
    interval: Interval
    gained: int
    lost: int
    n: int
    p_mcnemar: float
    detectable: float
    design_effect: float


def non_inferiority(
    after: ArrayLike,
    before: ArrayLike,
    margin: float = 0.03,
    alpha: float = 0.05,
    clusters: Sequence[object] | None = None,
) -> NonInferiority:
    """Judge paired passes.

    Items of one cluster (say, two questions about one fact) count as less than two: the counts are divided by
    the design effect of the paired differences (Rao & Scott 1992), rounded against us.
    """
    if not 0 < margin < 1:
        raise InputError(f"margin {margin}: a share between 0 and 1 is expected, such as 0.03")
    change = _changes(after, before)
    gained, lost, n = _counts(change)
    effect = design_effect(change, clusters)
    up, down, size = _shrink(gained, lost, n, effect)
    p_value = exact_p(up, down, size, -margin)
    discordance = (gained + lost) / n
    chance = power(size, discordance, margin, alpha=alpha)
    upper = -paired_lower_bound(down, up, size, alpha)
    shown = p_value <= alpha
    lower = paired_lower_bound(up, down, size, alpha, split=(-margin, shown))
    hopeless = chance >= 0.8 or upper < -margin or (gained - lost) / n <= -margin
    return NonInferiority(
        outcome="passed" if shown else "failed" if hopeless else "underpowered",
        difference=(gained - lost) / n,
        lower_bound=lower,
        upper_bound=upper,
        margin=margin,
        gained=gained,
        lost=lost,
        n=n,
        p_value=p_value,
        p_mcnemar=mcnemar(gained, lost),
        power=chance,
        needed_n=ceil(needed_pairs(discordance, margin, alpha=alpha) * effect),
        bootstrap=paired_bootstrap(after, before, confidence=1 - 2 * alpha),
        design_effect=effect,
        alpha=alpha,
    )


def compare(
    after: ArrayLike, before: ArrayLike, alpha: float = 0.05, clusters: Sequence[object] | None = None
) -> Comparison:
    """Is there a difference at all? McNemar's exact test decides, the interval is the exact paired one.

    Items of one cluster count as less, as in non_inferiority; the counts are rounded towards no difference.
    """
    change = _changes(after, before)
    gained, lost, n = _counts(change)
    effect = design_effect(change, clusters)
    up, down, size = _shrink(gained, lost, n, effect)
    if gained < lost:
        down, up, size = _shrink(lost, gained, n, effect)
    p_mcnemar = mcnemar(up, down)
    words = "not distinguishable" if p_mcnemar > alpha else "better" if gained > lost else "worse"
    interval = paired_lower_bound(up, down, size, alpha / 2), -paired_lower_bound(down, up, size, alpha / 2)
    found = detectable(size, (gained + lost) / n, alpha)
    return Comparison(words, (gained - lost) / n, interval, gained, lost, n, p_mcnemar, found, effect)


# --- shares ----------------------------------------------------------------------------------------------


def wilson_interval(passed: float, n: float, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share; (0, 1) where nothing was asked."""
    if n <= 0:
        return 0.0, 1.0
    low, high = _wilson(passed / n, n, float(special.ndtri((1 + confidence) / 2)))
    return float(low), float(high)


def clustered_interval(passed: ArrayLike, clusters: Sequence[object], confidence: float = 0.95) -> Interval:
    """Interval of a share whose items come in clusters, such as the instructions of one prompt.

    Where all items agree, the clusters count, not the items; where each is one of its own, it is Wilson's.
    """
    hits = np.asarray(passed, dtype=float)
    if hits.size == 0:
        return 0.0, 1.0
    ((low, high),) = clustered_intervals(hits[None, :], clusters, confidence)
    return float(low), float(high)


def clustered_intervals(passed_SN: ArrayLike, clusters: Sequence[object], confidence: float = 0.95) -> Floats:
    """The same of S data sets with the same clusters, at once: S pairs of low and high.

    Wilson's, with n divided by the design effect and by the squared ratio of Student's t for the clusters to
    that for the items (Korn & Graubard 1998). A design effect that chance puts below 1 is believed down to
    LEAST_EFFECT: held at 1 the intervals would be too wide where the items do not depend on each other.
    """
    hits_SN, index_N = np.asarray(passed_SN, dtype=float), _numbered(clusters, np.shape(passed_SN)[1])
    n, k = hits_SN.shape[1], int(index_N.max()) + 1
    widening = _student(confidence, k) / _student(confidence, n)
    effects_S = np.maximum(_design_effects(hits_SN, index_N), LEAST_EFFECT)
    z = float(special.ndtri((1 + confidence) / 2))
    return np.stack(_wilson(hits_SN.mean(1), n / effects_S / widening**2, z), axis=1)


def mean_interval(values: ArrayLike, clusters: Sequence[object] | None = None) -> Interval:
    """Interval of a mean of numbers within 0 to 1 that are shares rather than passes: Student's t."""
    x = np.asarray(values, dtype=float)
    if x.size < 2:
        return 0.0, 1.0
    k = x.size if clusters is None else len(set(clusters))
    half = _student(0.95, k) * x.std(ddof=1) * sqrt(design_effect(x, clusters) / x.size)
    return float(max(0.0, x.mean() - half)), float(min(1.0, x.mean() + half))


def design_effect(values: ArrayLike, clusters: Sequence[object] | None) -> float:
    """Variance of the mean over clusters divided by what independent items would give; never below 1."""
    items = np.asarray(values, dtype=float)
    if clusters is None:
        return 1.0
    return max(1.0, float(_design_effects(items[None, :], _numbered(clusters, items.size))[0]))


def _numbered(clusters: Sequence[object], items: int) -> NDArray[np.intp]:
    """Each item's cluster as a number from 0."""
    if len(clusters) != items:
        raise InputError(f"{items} items with {len(clusters)} cluster labels: give one label an item")
    return np.unique(np.asarray([str(label) for label in clusters]), return_inverse=True)[1]


def _design_effects(values_SN: Floats, index_N: NDArray[np.intp]) -> Floats:
    """Of S data sets, as chance has it; items over clusters where all items agree."""
    n, k = len(index_N), int(index_N.max()) + 1
    if k == n:
        return np.ones(len(values_SN))
    centred_SN = values_SN - values_SN.mean(1, keepdims=True)
    order_N = np.argsort(index_N, kind="stable")
    starts_K = np.searchsorted(index_N[order_N], np.arange(k))
    between_S = (np.add.reduceat(centred_SN[:, order_N], starts_K, axis=1) ** 2).sum(1) * k / max(k - 1, 1)
    total_S = (centred_SN**2).sum(1)
    return np.divide(between_S, total_S, out=np.full(len(values_SN), n / k), where=total_S > 0)


def _wilson(share: Any, n: Any, z: float) -> tuple[Any, Any]:
    """Wilson's interval of shares of n, which are numbers or arrays."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


def _student(confidence: float, clusters: int) -> float:
    """Student's t of a mean over so many."""
    return float(special.stdtrit(max(clusters - 1, 1), (1 + confidence) / 2))


# --- pairs -----------------------------------------------------------------------------------------------


def mcnemar(gained: int, lost: int) -> float:
    """McNemar's exact test: two-sided p-value that gains and losses are equally likely."""
    n = gained + lost
    return float(min(1.0, 2 * special.bdtr(min(gained, lost), n, 0.5))) if n else 1.0


def mcnemar_power(n: int, gain: float, loss: float, alpha: float = 0.05) -> float:
    """Chance that McNemar's exact test tells n pairs apart, given the true shares of gains and losses."""
    flips = np.arange(n + 1)
    log_mass = special.gammaln(n + 1) - special.gammaln(flips + 1) - special.gammaln(n - flips + 1)
    rate = gain + loss
    mass = np.exp(log_mass + special.xlogy(flips, rate) + special.xlog1py(n - flips, -rate))
    edge = np.floor(np.nan_to_num(special.bdtrik(alpha / 2, flips, 0.5), nan=-1.0) + 1e-9)
    edge = np.where(special.bdtr(np.maximum(edge, 0), flips, 0.5) <= alpha / 2, edge, -1.0)
    part, told = gain / rate if rate else 0.5, edge >= 0
    tails = sum(special.bdtr(np.maximum(edge, 0), flips, share) for share in (part, 1 - part))
    return float((mass * np.where(told, tails, 0.0)).sum())


def detectable(n: int, discordance: float, alpha: float = 0.05, target: float = 0.8) -> float:
    """The smallest true difference that n pairs of that discordance show with the wanted chance; 1: none."""

    def lacking(difference: float) -> float:
        flips = max(discordance, difference)
        return target - mcnemar_power(n, (flips - difference) / 2, (flips + difference) / 2, alpha)

    return float(optimize.brentq(lacking, 0.0, 1.0, xtol=1e-4)) if lacking(1.0) < 0 else 1.0


def paired_bootstrap(
    after: ArrayLike, before: ArrayLike, confidence: float = 0.95, draws: int = 10_000, seed: int = 0
) -> Interval:
    """Percentile interval of mean(after - before), pairs drawn with replacement; of any numbers."""
    values, counts = np.unique(_changes(after, before), return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(counts.sum(), counts / counts.sum(), size=draws)
    low, high = np.quantile(drawn @ values / counts.sum(), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# --- many comparisons ------------------------------------------------------------------------------------


def holm(p_values: ArrayLike) -> Floats:
    """Holm's adjusted p-values: the chance of any false claim among them stays below alpha."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    return np.minimum(steps, 1.0)[np.argsort(order)]


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Benjamini and Hochberg's adjusted p-values: the expected share of false claims stays below alpha."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)[::-1]
    steps = np.minimum.accumulate(p[order] * p.size / np.arange(p.size, 0, -1))
    return np.minimum(steps, 1.0)[np.argsort(order)]


# --- shared ----------------------------------------------------------------------------------------------


def _changes(after: ArrayLike, before: ArrayLike) -> Floats:
    a, b = np.asarray(after, dtype=float), np.asarray(before, dtype=float)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"{a.size} results against {b.size}: pairs need the same items in the same order")
    if a.size == 0:
        raise InputError("no items to compare: evaluate both checkpoints on the same prompts first")
    return a - b


def _counts(change: Floats) -> tuple[int, int, int]:
    return int((change > 0).sum()), int((change < 0).sum()), change.size


def _shrink(gained: int, lost: int, n: int, effect: float) -> tuple[int, int, int]:
    """Effective counts under clustering: gains rounded down, losses up."""
    if effect == 1.0:
        return gained, lost, n
    up, down = int(gained / effect), ceil(lost / effect)
    return up, down, max(round(n / effect), up + down, 1)
