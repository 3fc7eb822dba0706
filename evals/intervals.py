"""Compute intervals of shares and means over clustered items: pure functions on arrays, without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from recovery.errors import InputError

Floats = NDArray[np.float64]
Interval = tuple[float, float]
CONFIDENCE = 0.95
LEAST_EFFECT = 0.8  # floor of an interval's design effect; simulated in tests/evals/test_intervals.py

# From which on a claim's error rate holds without widening; simulated in test_statistics.py. Clusters with a
# value other than the commonest alone show what a cluster's items have in common.
FEW_CLUSTERS = 20
FEW_UNUSUAL = 10


def wilson_interval(passed: float, n: float) -> Interval:
    """Return Wilson's score interval of a share; (0, 1) for no items."""
    if n <= 0:
        return 0.0, 1.0
    low, high = _wilson(passed / n, n)
    return float(low), float(high)


def clustered_interval(passed: ArrayLike, clusters: Sequence[object]) -> Interval:
    """Return the interval of a share of clustered items, such as the instructions of one prompt.

    Clusters whose items all agree count as one item each; clusters of one item give Wilson's interval."""
    hits = np.asarray(passed, dtype=float)
    if hits.size == 0:
        return 0.0, 1.0
    ((low, high),) = clustered_intervals(hits[None, :], clusters)
    return float(low), float(high)


def clustered_intervals(passed_SN: ArrayLike, clusters: Sequence[object]) -> Floats:
    """Compute clustered_interval for S data sets with the same clusters: S rows of (low, high).

    Wilson's interval with n divided by the design effect and by the squared ratio of Student's t for the
    clusters to that for the items (Korn & Graubard 1998). Estimated design effects below 1 are used down to
    LEAST_EFFECT: a floor of 1 would widen the intervals of independent items.
    """
    hits_SN = np.asarray(passed_SN, dtype=float)
    index_N = numbered(clusters, np.shape(passed_SN)[1])
    n = hits_SN.shape[1]
    k = int(index_N.max()) + 1
    widening = _student(k) / _student(n)
    effects_S = np.maximum(_design_effects(hits_SN, index_N), LEAST_EFFECT)
    return np.stack(_wilson(hits_SN.mean(1), n / effects_S / widening**2), axis=1)


def mean_interval(values: ArrayLike) -> Interval:
    """Return Student's t interval of a mean of numbers from 0 to 1, such as shares per item.

    Numbers that are all alike show nothing of their spread: theirs is as wide as that of passes."""
    x = np.asarray(values, dtype=float)
    if x.size < 2:
        return 0.0, 1.0
    if np.ptp(x) == 0:
        return wilson_interval(float(x.sum()), x.size)
    half = _student(x.size) * x.std(ddof=1) / sqrt(x.size)
    return float(max(0.0, x.mean() - half)), float(min(1.0, x.mean() + half))


def design_effect(values: ArrayLike, clusters: Sequence[object] | None) -> float:
    """Return the variance of the clustered mean relative to independent items; never below 1."""
    items = np.asarray(values, dtype=float)
    if clusters is None:
        return 1.0
    return max(1.0, float(_design_effects(items[None, :], numbered(clusters, items.size))[0]))


def cautious_effect(values: ArrayLike, clusters: Sequence[object] | None) -> float:
    """Return the design effect, widened where it is estimated from few clusters.

    By the squared ratio of Student's t for the clusters to that for the items, as in clustered_intervals.
    Where few clusters hold a value that is not the commonest, each cluster counts as one item at most: one
    answer lost says nothing of whether the answers about a fact are lost together."""
    effect = design_effect(values, clusters)
    n = np.size(values)
    k = n if clusters is None else len(set(map(str, clusters)))
    if clusters is not None and _unusual(np.asarray(values), clusters) < FEW_UNUSUAL:
        effect = max(effect, n / k)
    return effect * (_student(k) / _student(n)) ** 2 if k < min(n, FEW_CLUSTERS) else effect


def _unusual(values_N: NDArray[Any], clusters: Sequence[object]) -> int:
    """Return how many clusters hold a value other than the commonest."""
    found, counts = np.unique(values_N, return_counts=True)
    commonest = found[counts.argmax()]
    return len({str(one) for one, value in zip(clusters, values_N, strict=True) if value != commonest})


def numbered(clusters: Sequence[object], items: int) -> NDArray[np.intp]:
    """Number each item's cluster from 0."""
    if len(clusters) != items:
        raise InputError(f"{items} items with {len(clusters)} cluster labels: give one label an item")
    return np.unique(np.asarray([str(label) for label in clusters]), return_inverse=True)[1]


def _design_effects(values_SN: Floats, index_N: NDArray[np.intp]) -> Floats:
    """Return design effects of S data sets, not floored; items over clusters where all items agree."""
    n = len(index_N)
    k = int(index_N.max()) + 1
    if k == n:
        return np.ones(len(values_SN))
    if k == 1:  # what one cluster's items have in common shows in no difference
        return np.full(len(values_SN), float(n))
    centred_SN = values_SN - values_SN.mean(1, keepdims=True)
    order_N = np.argsort(index_N, kind="stable")
    starts_K = np.searchsorted(index_N[order_N], np.arange(k))
    between_S = (np.add.reduceat(centred_SN[:, order_N], starts_K, axis=1) ** 2).sum(1) * k / max(k - 1, 1)
    total_S = (centred_SN**2).sum(1)
    return np.divide(between_S, total_S, out=np.full(len(values_SN), n / k), where=total_S > 0)


def _wilson(share: Any, n: Any) -> tuple[Any, Any]:
    """Return Wilson's interval for numbers or arrays of shares."""
    z = float(special.ndtri((1 + CONFIDENCE) / 2))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return np.maximum(0.0, centre - half), np.minimum(1.0, centre + half)


def _student(clusters: int) -> float:
    """Return the two-sided quantile of Student's t with one degree of freedom fewer than clusters."""
    return float(special.stdtrit(max(clusters - 1, 1), (1 + CONFIDENCE) / 2))
