"""Test paired differences of passes: pure functions on arrays, without I/O.

"Recovered" is a claim of non-inferiority: the one-sided 95 % lower bound of (after - before), paired by
prompt, lies above minus the margin. "Not recovered" is a claim too: the one-sided upper bound lies below
minus the margin. Anything else is underpowered. The bounds are the exact ones of evals/exact.py.

Scores from 0 to 1 are tested like passes: what they gained and lost is added up, and counted in whole
answers. Of all changes with the same sums, passes that flip spread the most, so the bounds are cautious.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from evals.exact import MOST_PAIRS, WANTED_POWER, exact_p, needed_pairs, paired_lower_bound, power, smallest
from evals.intervals import Floats, Interval, cautious_effect
from recovery.errors import InputError

PLANNED_DISCORDANCE = 0.10  # share of prompts that flip between two equal checkpoints
_DIGITS = 6  # of a sum of scores: 0.1 ten times is one answer


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One-sided test, pair by pair, of whether `after` is at most `margin` worse than `before`.

    outcome: "passed" (lower bound above -margin), "failed" (upper bound below -margin) or "underpowered".
    `lower_bound` and `upper_bound` are one-sided at level alpha; `p_value` tests difference <= -margin;
    `gained` and `lost` count items that flipped; `needed_n` pairs decide with a power of 80 %, None where no
    number does."""

    outcome: str
    difference: float
    lower_bound: float
    upper_bound: float
    margin: float
    gained: int
    lost: int
    n: int
    p_value: float
    needed_n: int | None
    alpha: float


@dataclass(frozen=True, kw_only=True)
class NonInferiority(Claim):
    """Claim about a share of passes, by an exact test.

    `p_mcnemar` tests difference = 0."""

    p_mcnemar: float
    design_effect: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two-sided comparison of two checkpoints on the same items.

    `words` is "better", "worse" or "not distinguishable"; `detectable` is the smallest true difference that
    is found with a power of 80 %."""

    words: str
    difference: float
    interval: Interval
    gained: int
    lost: int
    n: int
    detectable: float


@dataclass(frozen=True, kw_only=True)
class PairedComparison(Comparison):
    """Comparison of two shares of passes, by McNemar's exact test."""

    p_mcnemar: float
    design_effect: float


def non_inferiority(
    after: ArrayLike,
    before: ArrayLike,
    margin: float = 0.03,
    alpha: float = 0.05,
    clusters: Sequence[object] | None = None,
) -> NonInferiority:
    """Test whether `after` is at most `margin` worse than `before`, pair by pair.

    Clustered items (such as two questions about one fact) carry less information than independent ones: every
    test here divides the counts by the design effect of the paired differences (Rao & Scott 1992), rounded
    conservatively."""
    if not 0 < margin < 1:
        raise InputError(f"margin {margin}: a share between 0 and 1 is expected, such as 0.03")
    return _claim(after, before, margin, alpha, clusters)


def superiority(
    after: ArrayLike,
    before: ArrayLike,
    lead: float,
    alpha: float = 0.05,
    clusters: Sequence[object] | None = None,
) -> NonInferiority:
    """Test whether `after` is better than `before` by more than `lead`, pair by pair: a margin below zero."""
    if not 0 < lead < 1:
        raise InputError(f"lead {lead}: a share between 0 and 1 is expected, such as 0.7")
    return _claim(after, before, -lead, alpha, clusters)


def _claim(
    after: ArrayLike, before: ArrayLike, margin: float, alpha: float, clusters: Sequence[object] | None
) -> NonInferiority:
    change = _changes(after, before)
    gained, lost, n = _sums(change)
    effect = cautious_effect(change, clusters)
    cautious = _shrink(gained, lost, n, effect)
    p_value = exact_p(*cautious, -margin, alpha)
    decided = outcome(gained, lost, n, margin, alpha, effect)
    needed = _needed_items(gained, lost, n, effect, margin, alpha)
    return NonInferiority(
        outcome=decided,
        difference=(gained - lost) / n,
        lower_bound=paired_lower_bound(*cautious, alpha, split=(-margin, p_value <= alpha)),
        upper_bound=_upper_bound(gained, lost, n, effect, alpha, split=(margin, decided == "failed")),
        margin=margin,
        **_flips(change),
        n=n,
        p_value=p_value,
        p_mcnemar=_clustered_mcnemar(gained, lost, n, effect),
        needed_n=max(needed, n + 1) if needed and decided == "underpowered" else needed,
        design_effect=effect,
        alpha=alpha,
    )


def outcome(
    gained: float, lost: float, n: int, margin: float = 0.03, alpha: float = 0.05, effect: float = 1.0
) -> str:
    """Return "passed", "failed" or "underpowered"; the first two each by an exact one-sided test."""
    if exact_p(*_shrink(gained, lost, n, effect), -margin, alpha) <= alpha:
        return "passed"
    # "More than the margin worse" is "more than the margin better" with the checkpoints exchanged.
    if exact_p(*_shrink(lost, gained, n, effect), margin, alpha) <= alpha:
        return "failed"
    return "underpowered"


def _upper_bound(
    gained: float,
    lost: float,
    n: int,
    effect: float,
    alpha: float,
    split: tuple[float, bool] | None = None,
) -> float:
    """Return the one-sided upper bound: minus the lower bound with the checkpoints exchanged."""
    return -paired_lower_bound(*_shrink(lost, gained, n, effect), alpha, split)


def _needed_items(
    gained: float, lost: float, n: int, effect: float, margin: float, alpha: float
) -> int | None:
    """Return the number of items that decides with a power of 80 %; None where no number does.

    Assume the planned difference while there are fewer items than that needs, then the observed one. One
    answer lost is a larger share of few clusters, by which the claim is judged, than of all items."""
    fewer_gained, more_lost, effective_n = _shrink(gained, lost, n, effect)
    discordance = max((gained + lost) / n, (fewer_gained + more_lost) / effective_n)
    planned = _planned_pairs(discordance, margin, alpha)
    if planned is None or planned * effect > n:
        return planned and ceil(planned * effect)
    difference = (gained - lost) / n
    if difference < -margin:  # "failed" is "passed" with the checkpoints exchanged
        margin, difference = -margin, -difference
    needed = needed_pairs(discordance, margin, alpha=alpha, difference=difference)
    return needed and ceil(needed * effect)


def _planned_power(n: int, discordance: float, margin: float, alpha: float) -> float:
    """Return the power at a true difference of 0; for a lead at one of 1, where every pair is gained."""
    if margin > 0:
        return power(n, discordance, margin, alpha=alpha)
    return float(exact_p(n, 0, n, -margin, alpha) <= alpha)


def _planned_pairs(discordance: float, margin: float, alpha: float) -> int | None:
    """Return the number of pairs that passes with a power of 80 % at the difference of _planned_power."""
    if margin > 0:
        return needed_pairs(discordance, margin, alpha=alpha)
    return smallest(lambda n: _planned_power(n, discordance, margin, alpha) > 0, above=0)


def chance_to_pass(items: float, margin: float = 0.03, alpha: float = 0.05) -> float:
    """Return the probability that a checkpoint that lost nothing passes on this many independent items."""
    return _planned_power(max(1, int(items)), PLANNED_DISCORDANCE, margin, alpha)


def items_to_pass(margin: float = 0.03, alpha: float = 0.05) -> int | None:
    """Return on how many independent items a checkpoint that lost nothing passes with a power of 80 %.

    None where that takes more than MOST_PAIRS."""
    return _planned_pairs(PLANNED_DISCORDANCE, margin, alpha)


def items_to_ask(margin: float = 0.03) -> int:
    """Return how many items are worth asking at most: without end where no number of them passes."""
    return items_to_pass(margin) or MOST_PAIRS


def compare(
    after: ArrayLike,
    before: ArrayLike,
    alpha: float = 0.05,
    clusters: Sequence[object] | None = None,
    corrected: float | None = None,
) -> PairedComparison:
    """Compare two checkpoints: McNemar's exact test decides, the interval is the exact paired one.

    Clusters are treated as in non_inferiority; each bound rounds the counts towards a wider interval. The two
    tests may differ a little: the interval says of 0 what the words do. `detectable` holds at `corrected`."""
    change = _changes(after, before)
    gained, lost, n = _sums(change)
    effect = cautious_effect(change, clusters)
    p_mcnemar = _clustered_mcnemar(gained, lost, n, effect)
    words = "not distinguishable"
    if p_mcnemar <= alpha:
        words = "better" if gained > lost else "worse"
    low = paired_lower_bound(*_shrink(gained, lost, n, effect), alpha / 2)
    high = _upper_bound(gained, lost, n, effect, alpha / 2)
    return PairedComparison(
        words=words,
        difference=(gained - lost) / n,
        interval=saying_the_same(words, low, high),
        **_flips(change),
        n=n,
        p_mcnemar=p_mcnemar,
        detectable=detectable(max(1, round(n / effect)), (gained + lost) / n, corrected or alpha),
        design_effect=effect,
    )


def saying_the_same(words: str, low: float, high: float) -> Interval:
    """Return an interval that says of 0 what the words of its comparison do."""
    return (
        max(low, 0.0) if words == "better" else min(low, 0.0),
        min(high, 0.0) if words == "worse" else max(high, 0.0),
    )


# --- pairs -----------------------------------------------------------------------------------------------


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p-value of McNemar's exact test that gains and losses are equally likely."""
    n = gained + lost
    return float(min(1.0, 2 * special.bdtr(min(gained, lost), n, 0.5))) if n else 1.0


def mcnemar_power(n: int, gain: float, loss: float, alpha: float = 0.05) -> float:
    """Return the power of McNemar's exact test with n pairs, given the true shares of gains and losses."""
    flips = np.arange(n + 1)
    log_mass = special.gammaln(n + 1) - special.gammaln(flips + 1) - special.gammaln(n - flips + 1)
    rate = gain + loss
    mass = np.exp(log_mass + special.xlogy(flips, rate) + special.xlog1py(n - flips, -rate))
    edge = np.floor(np.nan_to_num(special.bdtrik(alpha / 2, flips, 0.5), nan=-1.0) + 1e-9)
    edge = np.where(special.bdtr(np.maximum(edge, 0), flips, 0.5) <= alpha / 2, edge, -1.0)
    gain_share = gain / rate if rate else 0.5
    few_gains = special.bdtr(np.maximum(edge, 0), flips, gain_share)
    few_losses = special.bdtr(np.maximum(edge, 0), flips, 1 - gain_share)
    rejected = np.where(edge >= 0, few_gains + few_losses, 0.0)
    return float((mass * rejected).sum())


def detectable(n: int, discordance: float, alpha: float = 0.05) -> float:
    """Return the smallest true difference that n pairs detect with a power of 80 %; 1 if there is none."""

    def missing_power(difference: float) -> float:
        flips = max(discordance, difference)
        return WANTED_POWER - mcnemar_power(n, (flips - difference) / 2, (flips + difference) / 2, alpha)

    if missing_power(1.0) >= 0:
        return 1.0
    return float(optimize.brentq(missing_power, 0.0, 1.0, xtol=1e-4))


def _clustered_mcnemar(gained: float, lost: float, n: int, effect: float) -> float:
    """Return McNemar's p-value of counts divided by the design effect, rounded towards no difference."""
    more = max(gained, lost)
    fewer = min(gained, lost)
    more, fewer, _ = _shrink(more, fewer, n, effect)
    return mcnemar(more, fewer)


# --- many comparisons ------------------------------------------------------------------------------------


def holm(p_values: ArrayLike) -> Floats:
    """Return Holm's adjusted p-values, which bound the family-wise error rate."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)
    steps = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    return np.minimum(steps, 1.0)[np.argsort(order)]


# --- shared ----------------------------------------------------------------------------------------------


def _changes(after: ArrayLike, before: ArrayLike) -> Floats:
    a, b = np.asarray(after, dtype=float), np.asarray(before, dtype=float)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"{a.size} results against {b.size}: pairs need the same items in the same order")
    if a.size == 0:
        raise InputError("no items to compare: evaluate both checkpoints on the same prompts first")
    return a - b


def _sums(change: Floats) -> tuple[float, float, int]:
    """Return what was gained and lost, in whole answers, and the number of pairs."""
    gained, lost = change[change > 0].sum(), -change[change < 0].sum()
    return round(float(gained), _DIGITS), round(float(lost), _DIGITS), change.size


def _flips(change: Floats) -> dict[str, int]:
    """Return how many items gained and lost."""
    return {"gained": int((change > 0).sum()), "lost": int((change < 0).sum())}


def _shrink(gained: float, lost: float, n: int, effect: float) -> tuple[int, int, int]:
    """Return effective counts under clustering: gains rounded down, losses up."""
    fewer_gained = int(gained / effect)
    more_lost = ceil(lost / effect)
    return fewer_gained, more_lost, max(round(n / effect), fewer_gained + more_lost, 1)
