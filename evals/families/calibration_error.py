"""Compute the expected calibration error, its interval, and paired claims about it.

The error is the mean over items of |share right - mean confidence| of their bin, over ten bins of confidence
(Guo et al. 2017). It is no mean of single items, so its bounds come from a bootstrap of whole clusters, and
are mirrored at the estimate (Davison & Hinkley 1997, 5.2): resampling biases an error upwards, as sampling
does.

Sampling biases the error of a well-calibrated model most, as no gap can be below zero, so a growth looks
smaller than it is. A claim that nothing was lost needs one of two proofs more, each at half the level: that
the gaps of all bins changed by less than the margin in sum, which bounds the growth from above whatever the
bias; or that the growth is smaller than it would look if the error were zero before, and the margin after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from evals.exact import MOST_PAIRS
from evals.intervals import Interval, numbered
from evals.statistics import PLANNED_DISCORDANCE, WANTED_POWER, Claim, Comparison

Floats = NDArray[np.float64]
Answers = tuple[Sequence[float], Sequence[bool]]
"""Confidence of each answer, and whether it is right."""
BINS = 10
DRAWS = 4000
WORST_DRAWS = 1000
PLANNED = 300  # questions of the example by which an outlook reckons


@dataclass(frozen=True, kw_only=True)
class CalibrationClaim(Claim):
    """Claim about calibration errors; a positive difference is a smaller error."""

    error_after: float
    error_before: float


@dataclass(frozen=True, kw_only=True)
class CalibrationComparison(Comparison):
    """Comparison of calibration errors; a positive difference is a smaller error."""

    p_value: float


@dataclass(frozen=True)
class Proof:
    """A lower bound that holds whatever the bias, and the p-value of a loss of the margin."""

    bound: float
    p_value: float


def error(confidence: ArrayLike, right: ArrayLike) -> float:
    """Return the expected calibration error."""
    gaps_NB = _gaps(confidence, right)
    return float(np.abs(gaps_NB.sum(0)).sum() / len(gaps_NB))


def interval(
    confidence: ArrayLike, right: ArrayLike, clusters: Sequence[object], level: float = 0.95
) -> Interval:
    """Return the mirrored bootstrap interval of the error."""
    estimate = error(confidence, right)
    drawn_D = _drawn([_gaps(confidence, right)], clusters)[0]
    low, high = _mirrored(estimate, drawn_D, (1 - level) / 2)
    return max(0.0, low), min(1.0, high)


def non_inferiority(
    after: Answers, before: Answers, margin: float, alpha: float, clusters: Sequence[object]
) -> CalibrationClaim:
    """Test whether the error has grown by at most `margin`, on the same questions."""
    now, then = error(*after), error(*before)
    drawn_D = differences(after, before, clusters)
    low, high = _mirrored(then - now, drawn_D, alpha)
    proof = _proof(after, before, margin, alpha, clusters)
    low = min(low, proof.bound)
    outcome = "underpowered"
    if low > -margin:
        outcome = "passed"
    elif high < -margin:
        outcome = "failed"
    gained, lost = _flips(after, before)
    n = len(after[1])
    spread = float(drawn_D.std())
    return CalibrationClaim(
        outcome=outcome,
        difference=then - now,
        lower_bound=low,
        upper_bound=high,
        margin=margin,
        gained=gained,
        lost=lost,
        n=n,
        p_value=max(_p_value(then - now, drawn_D, -margin), proof.p_value),
        needed_n=max(
            _needed(n, spread, margin, alpha, then - now), _needed_to_prove(n, low, margin, outcome)
        ),
        alpha=alpha,
        error_after=now,
        error_before=then,
    )


def _needed(n: int, spread: float, margin: float, alpha: float, difference: float) -> int:
    """Return the number of items that decides with a power of 80 %: if nothing changed, else as observed."""
    planned = max(1, ceil(n * (_power_factor(alpha) * spread / margin) ** 2))
    distance = abs(difference + margin)  # to the margin; beyond it the opposite is to be shown
    if planned > n or not distance:
        return planned if planned > n else MOST_PAIRS
    return min(MOST_PAIRS, max(n + 1, ceil(n * (_power_factor(alpha) * spread / distance) ** 2)))


def _needed_to_prove(n: int, low: float, margin: float, outcome: str) -> int:
    """Return how many items bring an undecided lower bound to the margin: it shrinks by their root."""
    return min(MOST_PAIRS, ceil(n * (low / margin) ** 2)) if outcome == "underpowered" and low < 0 else 0


@cache
def items_to_pass(margin: float, alpha: float) -> int:
    """Return on about how many questions a model that is as well calibrated passes with a power of 80 %.

    Reckoned from an example that is undecided, in which one answer in ten flips."""
    count = PLANNED
    while (found := _example(count, margin, alpha)).outcome == "passed" and count > 1:
        count //= 2
    return MOST_PAIRS if found.needed_n is None else found.needed_n


def _example(count: int, margin: float, alpha: float) -> CalibrationClaim:
    """Judge two models that are as often right as they are sure, on so many questions."""
    before, after = (
        ([share] * count, [place < round(share * count) for place in range(count)])
        for share in (0.8, 0.8 - PLANNED_DISCORDANCE)
    )
    return non_inferiority(after, before, margin, alpha, range(count))


def differences(after: Answers, before: Answers, clusters: Sequence[object]) -> Floats:
    """Return the bootstrap's differences, error before minus error after, on the same draws."""
    now_D, then_D = _drawn([_gaps(*after), _gaps(*before)], clusters)
    return then_D - now_D


def _proof(after: Answers, before: Answers, margin: float, alpha: float, clusters: Sequence[object]) -> Proof:
    """Return the better of the two proofs, each at half the level."""
    changes = _proof_by_changes(after, before, margin, alpha / 2, clusters)
    worst = _proof_by_worst_case(after, before, margin, alpha / 2, clusters)
    p_value = max(min(changes.p_value, worst.p_value), 1 / WORST_DRAWS)
    return Proof(max(changes.bound, worst.bound), min(1.0, 2 * p_value))


def _proof_by_changes(
    after: Answers, before: Answers, margin: float, level: float, clusters: Sequence[object]
) -> Proof:
    """Bound the growth by the sum of the changes of all bins' gaps, seen and unseen."""
    changed_D = _drawn([_gaps(*after) - _gaps(*before)], clusters)[0]
    count = int(numbered(clusters, len(after[1])).max()) + 1
    unseen = 1 - level ** (1 / count)  # share of changes of which none was among so many clusters
    bound = -float(np.quantile(changed_D, 1 - level)) - unseen
    return Proof(bound, max(float((changed_D >= margin).mean()), (1 - margin) ** count))


def _proof_by_worst_case(
    after: Answers, before: Answers, margin: float, level: float, clusters: Sequence[object]
) -> Proof:
    """Compare with what would be seen if the error were zero before, and the margin after."""
    difference = error(*before) - error(*after)
    worst_D = _worst_differences(after, before, margin, clusters)
    bound = difference - margin - float(np.quantile(worst_D, 1 - level))
    return Proof(bound, float((worst_D >= difference).mean()))


def _worst_differences(after: Answers, before: Answers, margin: float, clusters: Sequence[object]) -> Floats:
    """Draw differences where every answer before is as likely right as it is sure, and less so after.

    Both models' answers to the questions of a cluster share their luck."""
    index_N = numbered(clusters, len(after[1]))
    sure = np.asarray(after[0], dtype=float), np.asarray(before[0], dtype=float)
    chances = _overconfident(sure[0], margin), sure[1]
    random = np.random.default_rng(0)
    found_D = np.empty(WORST_DRAWS)
    for draw in range(WORST_DRAWS):
        luck_N = random.random(int(index_N.max()) + 1)[index_N]
        now, then = (error(sure_N, luck_N < chance_N) for sure_N, chance_N in zip(sure, chances, strict=True))
        found_D[draw] = then - now
    return found_D


def _overconfident(sure_N: Floats, margin: float) -> Floats:
    """Return chances of being right that lie the margin below the confidence, or above it where none can."""
    return np.where(sure_N >= margin, sure_N - margin, sure_N + margin)


def compare(
    after: Answers,
    before: Answers,
    alpha: float,
    clusters: Sequence[object],
    corrected: float | None = None,
) -> CalibrationComparison:
    """Compare two models' errors on the same questions, in both directions.

    `corrected` is the level of `detectable` where several comparisons are made at once."""
    difference = error(*before) - error(*after)
    drawn_D = differences(after, before, clusters)
    above = _p_value(difference, drawn_D, 0.0)
    p_value = min(1.0, 2 * min(above, _p_value(-difference, -drawn_D, 0.0)))
    direction = "better" if difference > 0 else "worse"
    gained, lost = _flips(after, before)
    return CalibrationComparison(
        words=direction if p_value <= alpha else "not distinguishable",
        difference=difference,
        interval=_mirrored(difference, drawn_D, alpha / 2),
        gained=gained,
        lost=lost,
        n=len(after[1]),
        p_value=p_value,
        detectable=min(1.0, _power_factor((corrected or alpha) / 2) * float(drawn_D.std())),
    )


def _flips(after: Answers, before: Answers) -> tuple[int, int]:
    """Count the answers that became right, and those that became wrong."""
    now, then = np.asarray(after[1], dtype=bool), np.asarray(before[1], dtype=bool)
    return int((now & ~then).sum()), int((then & ~now).sum())


def _power_factor(alpha: float) -> float:
    """Return how many standard errors a true difference must have to be found with a power of 80 %."""
    return float(special.ndtri(1 - alpha) + special.ndtri(WANTED_POWER))


def _gaps(confidence: ArrayLike, right: ArrayLike) -> Floats:
    """Return confidence minus correctness of each item, in the column of its bin."""
    sure_N, right_N = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    bins_N = np.minimum((sure_N * BINS).astype(int), BINS - 1)
    gaps_NB = np.zeros((len(sure_N), BINS))
    gaps_NB[np.arange(len(sure_N)), bins_N] = sure_N - right_N
    return gaps_NB


def _drawn(gaps: Sequence[Floats], clusters: Sequence[object]) -> list[Floats]:
    """Return the errors of bootstrap samples of whole clusters, the same samples for each table of gaps."""
    index_N = numbered(clusters, len(gaps[0]))
    count = int(index_N.max()) + 1
    sizes_K = np.bincount(index_N, minlength=count)
    weights_DK = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    items_D = weights_DK @ sizes_K
    found = []
    for gaps_NB in gaps:
        sums_KB = np.zeros((count, BINS))
        np.add.at(sums_KB, index_N, gaps_NB)
        found.append(np.abs(weights_DK @ sums_KB).sum(1) / items_D)
    return found


def _mirrored(estimate: float, drawn_D: Floats, tail: float) -> Interval:
    """Return the basic bootstrap interval: the quantiles mirrored at the estimate."""
    low, high = np.quantile(drawn_D, [tail, 1 - tail])
    return float(2 * estimate - high), float(2 * estimate - low)


def _p_value(estimate: float, drawn_D: Floats, limit: float) -> float:
    """Return the level at which the mirrored lower bound reaches the limit."""
    return float((1 + (2 * estimate - drawn_D <= limit).sum()) / (1 + len(drawn_D)))
