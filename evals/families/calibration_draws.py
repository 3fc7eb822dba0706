"""Draw calibration errors at random: bootstrap samples, weights with an unseen cluster, and permutations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evals.intervals import numbered

Floats = NDArray[np.float64]
BINS = 10
DRAWS = 4000


def _bins(sure_N: Floats) -> NDArray[np.intp]:
    return np.minimum((sure_N * BINS).astype(np.intp), BINS - 1)


def gaps(confidence: ArrayLike, right: ArrayLike) -> Floats:
    """Return confidence minus correctness of each item, in the column of its bin."""
    sure_N, right_N = np.asarray(confidence, dtype=float), np.asarray(right, dtype=float)
    gaps_NB = np.zeros((len(sure_N), BINS))
    gaps_NB[np.arange(len(sure_N)), _bins(sure_N)] = sure_N - right_N
    return gaps_NB


def errors(sure_N: Floats, right_DN: NDArray[np.bool_]) -> Floats:
    """Return the error of each draw of right answers."""
    bins_NB = np.eye(BINS)[_bins(sure_N)]
    return np.asarray(np.abs((sure_N - right_DN) @ bins_NB).sum(1) / len(sure_N))


def distances(drawn_DB: Floats, gaps_NB: Floats) -> Floats:
    """Return the sum over bins of how far each draw's gaps lie from those seen."""
    return np.asarray(np.abs(drawn_DB - gaps_NB.mean(0)).sum(1))


def with_unseen(tables: Sequence[Floats], clusters: Sequence[object]) -> tuple[list[Floats], Floats]:
    """Draw mean gaps with random weights of the clusters seen, and the weight of one that was not.

    The weights are Dirichlet's, with the unseen cluster's at its worst (Gaffke 2005): of passes alone this is
    Clopper and Pearson's bound, and answers that are all alike still have an interval."""
    sums, sizes_K = _by_cluster(tables, clusters)
    weights_DK = np.random.default_rng(0).standard_exponential((DRAWS, len(sizes_K) + 1))
    unseen_D = weights_DK[:, -1] * sizes_K.max()
    total_D = weights_DK[:, :-1] @ sizes_K + unseen_D
    return [weights_DK[:, :-1] @ sums_KB / total_D[:, None] for sums_KB in sums], unseen_D / total_D


def drawn(tables: Sequence[Floats], clusters: Sequence[object]) -> list[Floats]:
    """Return the errors of bootstrap samples of whole clusters, the same samples for each table of gaps."""
    sums, sizes_K = _by_cluster(tables, clusters)
    count = len(sizes_K)
    weights_DK = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=DRAWS)
    items_D = weights_DK @ sizes_K
    return [np.abs(weights_DK @ sums_KB).sum(1) / items_D for sums_KB in sums]


def p_of_no_difference(now_NB: Floats, then_NB: Floats, clusters: Sequence[object]) -> float:
    """Return the larger p-value of both permutation tests, each with random signs of whole clusters."""
    sums, sizes_K = _by_cluster([now_NB, then_NB], clusters)
    signs_DK = np.random.default_rng(0).choice([-1.0, 1.0], size=(DRAWS, len(sizes_K)))
    now_DB, then_DB = (signs_DK @ sums_KB for sums_KB in sums)  # gaps with their signs changed
    total_B, moved_DB = (now_NB + then_NB).sum(0), then_DB - now_DB
    changed_D = np.abs(then_DB).sum(1) - np.abs(now_DB).sum(1)
    exchanged_D = (np.abs(total_B + moved_DB).sum(1) - np.abs(total_B - moved_DB).sum(1)) / 2
    seen = abs(np.abs(then_NB.sum(0)).sum() - np.abs(now_NB.sum(0)).sum()) - 1e-9
    counts = [(np.abs(one_D) >= seen).sum() for one_D in (changed_D, exchanged_D)]
    return float((1 + max(counts)) / (1 + DRAWS))


def _by_cluster(
    tables: Sequence[Floats], clusters: Sequence[object]
) -> tuple[list[Floats], NDArray[np.intp]]:
    """Return each table's gaps summed over the items of a cluster, and how many items each cluster has."""
    index_N = numbered(clusters, len(tables[0]))
    sizes_K = np.bincount(index_N)
    sums = [np.zeros((len(sizes_K), BINS)) for _ in tables]
    for sums_KB, gaps_NB in zip(sums, tables, strict=True):
        np.add.at(sums_KB, index_N, gaps_NB)
    return sums, sizes_K
