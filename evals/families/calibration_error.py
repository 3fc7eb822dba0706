"""Compute the expected calibration error, its interval, and paired claims about it.

The error is the mean over items of |share right - mean confidence| of their bin, over ten bins of confidence
(Guo et al. 2017). It is no mean of single items. Two models differ where three tests say so. In one whole
clusters of answers change sides, which holds where the models are alike in how sure they are. In two both are
well calibrated, however differently their confidences spread over the bins (a model of one confidence shows
less error by chance): gaps change their signs, or answers are drawn as likely right as they are sure.
Intervals, and what shows a loss, add an unseen cluster at its worst, and count the whole distance between
gaps seen and drawn, as sampling biases an error upwards. The lower bound of a claim is a bootstrap's,
mirrored at the estimate (Davison & Hinkley 1997, 5.2), and never without a proof.

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
from numpy.typing import ArrayLike
from scipy import special

from evals.exact import MOST_PAIRS, WANTED_POWER
from evals.families.calibration_draws import (
    Floats,
    distances,
    drawn,
    errors,
    gaps,
    p_of_no_difference,
    with_unseen,
)
from evals.intervals import Interval, numbered
from evals.statistics import PLANNED_DISCORDANCE, Claim, Comparison, saying_the_same

Answers = tuple[Sequence[float], Sequence[bool]]
"""Confidence of each answer, and whether it is right."""
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
class Bounds:
    """A difference of two errors between its bounds, and what they show of the margin."""

    low: float
    difference: float
    high: float
    outcome: str


@dataclass(frozen=True)
class Proof:
    """A lower bound that holds whatever the bias, and the p-value of a loss of the margin."""

    bound: float
    p_value: float


def error(confidence: ArrayLike, right: ArrayLike) -> float:
    """Return the expected calibration error."""
    gaps_NB = gaps(confidence, right)
    return float(np.abs(gaps_NB.sum(0)).sum() / len(gaps_NB))


def interval(
    confidence: ArrayLike, right: ArrayLike, clusters: Sequence[object], level: float = 0.95
) -> Interval:
    """Return the interval of the error, which holds the estimate."""
    tail = (1 - level) / 2
    gaps_NB = gaps(confidence, right)
    estimate = error(confidence, right)
    (drawn_DB,), unseen_D = with_unseen([gaps_NB], clusters)
    high = float(np.quantile(np.abs(drawn_DB).sum(1) + unseen_D, 1 - tail))
    low = estimate - float(np.quantile(distances(drawn_DB, gaps_NB) + unseen_D, 1 - tail))
    return max(0.0, min(low, estimate)), min(1.0, max(high, estimate))


def non_inferiority(
    after: Answers, before: Answers, margin: float, alpha: float, clusters: Sequence[object]
) -> CalibrationClaim:
    """Test whether the error has grown by at most `margin`, on the same questions."""
    now, then = error(*after), error(*before)
    drawn_D = differences(after, before, clusters)
    low, high = _mirrored(then - now, drawn_D, alpha)
    proof = _proof(after, before, margin, alpha, clusters)
    low = max(-1.0, min(low, proof.bound))
    half, spread = _deviations(after, before, alpha, clusters)
    high = min(1.0, max(high, then - now + half))
    outcome = "underpowered"
    if low > -margin:
        outcome = "passed"
    elif high < -margin:
        outcome = "failed"
    gained, lost = _flips(after, before)
    n = len(after[1])
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
        needed_n=_needed(n, spread, margin, alpha, Bounds(low, then - now, high, outcome)),
        alpha=alpha,
        error_after=now,
        error_before=then,
    )


def _needed(n: int, spread: float, margin: float, alpha: float, found: Bounds) -> int | None:
    """Return the number of items that decides with a power of 80 %: if nothing changed, else as observed.

    None where that is more than MOST_PAIRS, as where the difference lies on the margin."""
    standard_errors = _power_factor(alpha) * spread
    times = (standard_errors / margin) ** 2
    if times <= 1:
        distance = abs(found.difference + margin)  # to the margin; beyond it the opposite is to be shown
        if not distance:
            return None
        times = max((standard_errors / distance) ** 2, 1 + 1 / n)
    needed = max(1, ceil(n * max(times, _times_to_prove(margin, found))))
    return needed if needed <= MOST_PAIRS else None


def _times_to_prove(margin: float, found: Bounds) -> float:
    """Return how many times the items bring the bound of an underpowered claim to the margin.

    It shrinks by their root."""
    if found.outcome != "underpowered":
        return 0.0
    if found.difference < -margin:
        return ((found.high - found.difference) / (found.difference + margin)) ** 2
    return (min(found.low, 0.0) / margin) ** 2


@cache
def items_to_pass(margin: float, alpha: float) -> int | None:
    """Return on about how many questions a model that is as well calibrated passes with a power of 80 %.

    This is an assumption, not a bound: it is what an example needs, of independent questions, two models that
    are as often right as they are sure of every answer (80 % and 70 %), and one answer in ten lost. The
    example is of PLANNED questions, fewer where it passes on these. More bins in use, or more flips, take
    more questions; fewer flips take fewer. None where no number passes."""
    count = PLANNED
    while (found := _example(count, margin, alpha)).outcome == "passed" and count > 1:
        count //= 2
    return found.needed_n


def _example(count: int, margin: float, alpha: float) -> CalibrationClaim:
    """Judge two models that are as often right as they are sure, on so many questions."""
    before, after = (
        ([share] * count, [place < round(share * count) for place in range(count)])
        for share in (0.8, 0.8 - PLANNED_DISCORDANCE)
    )
    return non_inferiority(after, before, margin, alpha, range(count))


def differences(after: Answers, before: Answers, clusters: Sequence[object]) -> Floats:
    """Return the bootstrap's differences, error before minus error after, on the same draws."""
    now_D, then_D = drawn([gaps(*after), gaps(*before)], clusters)
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
    changed_D = drawn([gaps(*after) - gaps(*before)], clusters)[0]
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
    luck_DN = np.random.default_rng(0).random((WORST_DRAWS, int(index_N.max()) + 1))[:, index_N]
    now_D, then_D = (
        errors(sure_N, luck_DN < chance_N) for sure_N, chance_N in zip(sure, chances, strict=True)
    )
    return then_D - now_D


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
    calibrated_D = np.abs(_worst_differences(after, before, 0.0, clusters))
    p_value = max(
        p_of_no_difference(gaps(*after), gaps(*before), clusters),
        float((1 + (calibrated_D >= abs(difference) - 1e-12).sum()) / (1 + WORST_DRAWS)),
    )
    words = "not distinguishable"
    if p_value <= alpha:
        words = "better" if difference > 0 else "worse"
    half, spread = _deviations(after, before, alpha, clusters)
    low, high = max(-1.0, difference - half), min(1.0, difference + half)
    gained, lost = _flips(after, before)
    return CalibrationComparison(
        words=words,
        difference=difference,
        interval=saying_the_same(words, low, high),
        gained=gained,
        lost=lost,
        n=len(after[1]),
        p_value=p_value,
        detectable=min(1.0, _power_factor((corrected or alpha) / 2) * spread),
    )


def _flips(after: Answers, before: Answers) -> tuple[int, int]:
    """Count the answers that became right, and those that became wrong."""
    now, then = np.asarray(after[1], dtype=bool), np.asarray(before[1], dtype=bool)
    return int((now & ~then).sum()), int((then & ~now).sum())


def _power_factor(alpha: float) -> float:
    """Return how many standard errors a true difference must have to be found with a power of 80 %."""
    return float(special.ndtri(1 - alpha) + special.ndtri(WANTED_POWER))


def _deviations(
    after: Answers, before: Answers, alpha: float, clusters: Sequence[object]
) -> tuple[float, float]:
    """Return how far the difference of two errors may lie from the one seen, whatever its bias, and its
    standard error, of which an unseen cluster has its part: never zero."""
    both = [gaps(*after), gaps(*before)]
    drawn_DB, unseen_D = with_unseen(both, clusters)
    both_D = sum(distances(one_DB, gaps_NB) for one_DB, gaps_NB in zip(drawn_DB, both, strict=True))
    now_D, then_D = (np.abs(one_DB).sum(1) for one_DB in drawn_DB)
    standard_error = np.hypot((then_D - now_D).std(), np.sqrt((unseen_D**2).mean()))
    return float(np.quantile(both_D + 2 * unseen_D, 1 - alpha)), float(standard_error)


def _mirrored(estimate: float, drawn_D: Floats, tail: float) -> Interval:
    """Return the basic bootstrap interval: the quantiles mirrored at the estimate."""
    low, high = np.quantile(drawn_D, [tail, 1 - tail])
    return float(2 * estimate - high), float(2 * estimate - low)


def _p_value(estimate: float, drawn_D: Floats, limit: float) -> float:
    """Return the level at which the mirrored lower bound reaches the limit."""
    return float((1 + (2 * estimate - drawn_D <= limit).sum()) / (1 + len(drawn_D)))
