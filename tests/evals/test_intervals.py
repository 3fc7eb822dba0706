"""Intervals of shares against scipy, against hand-worked numbers, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evals import intervals

SHARE = st.floats(0, 1, allow_subnormal=False)


@given(st.integers(1, 600), SHARE)
def test_wilson_is_scipys(n: int, part: float) -> None:
    passed = round(part * n)
    expected = stats.binomtest(passed, n).proportion_ci(0.95, method="wilson")
    assert intervals.wilson_interval(passed, n) == pytest.approx(tuple(expected), abs=1e-12)


def test_wilson_of_nothing_says_nothing() -> None:
    assert intervals.wilson_interval(0, 0) == (0.0, 1.0)


def test_design_effect_by_hand() -> None:
    # Two clusters of two, all alike inside: mean 1/2, cluster sums of (x - mean) are +1 and -1.
    # between = (1 + 1) * 2 / (2 - 1) = 4, within = 4 * 1/4 = 1.
    assert intervals.design_effect([1, 1, 0, 0], "aabb") == pytest.approx(4.0)
    assert intervals.design_effect([1, 0, 1, 0], "aabb") == 1.0  # never better than independent
    assert intervals.design_effect([1, 0, 1, 0], "abcd") == 1.0
    assert intervals.design_effect([1, 1, 1, 1], "aabb") == 2.0  # all agree: the clusters count
    assert intervals.design_effect([1, 0, 1, 0], "aaaa") == 4.0  # one cluster is one item


def test_few_clusters_are_widened_by_student_s_t() -> None:
    t_of_one, t_of_three = 12.7062, 3.1824
    assert intervals.cautious_effect([1, 1, 0, 0], "aabb") == pytest.approx(
        4 * (t_of_one / t_of_three) ** 2, 1e-4
    )
    assert intervals.cautious_effect([1, 1, 0, 0], "abcd") == intervals.cautious_effect([1, 0], None) == 1.0
    many = [number // 2 for number in range(80)]
    assert intervals.cautious_effect([1, 0] * 40, many) == intervals.design_effect([1, 0] * 40, many)


@given(st.integers(1, 400), SHARE)
def test_clustered_interval_without_clusters_is_wilsons(n: int, part: float) -> None:
    hits = np.arange(n) < round(part * n)
    expected = intervals.wilson_interval(int(hits.sum()), n)
    assert intervals.clustered_interval(hits, list(range(n))) == pytest.approx(expected, abs=1e-12)


def test_clustered_interval_where_all_agree_counts_the_clusters() -> None:
    # Korn and Graubard: 4 clusters of 3, all passed: worth 4 items, less by (t11 / t3)^2 = (2.201 / 3.182)^2.
    low, high = intervals.clustered_interval(np.ones(12), list(range(4)) * 3)
    assert (low, high) == pytest.approx((1 / (1 + 1.96**2 / (4 * (2.201 / 3.182) ** 2)), 1.0), abs=1e-3)


def clustered(prompts: int, alike: float, times: int, seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """(true shares, data sets, clusters): one to three instructions a prompt, as in IFEval; `alike` is the
    correlation of the instructions of one prompt, and every data set has a true share of its own."""
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(prompts), np.resize([1, 2, 1, 3, 1, 2, 1, 1, 2], prompts))
    share = rng.uniform(0.3, 0.95, size=(times, 1))
    scale = 1 / np.clip(alike, 1e-9, 1 - 1e-9) - 1
    rates = rng.beta(share * scale, (1 - share) * scale, size=(times, prompts))
    return share[:, 0], rng.random((times, len(clusters))) < rates[:, clusters], clusters.tolist()


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("prompts", [40, 120, 541])
def test_clustered_intervals_cover_as_often_as_they_say(prompts: int, alike: float) -> None:
    share, passed, clusters = clustered(prompts, alike, 8000 if prompts < 500 else 3000, seed=prompts)
    low, high = intervals.clustered_intervals(passed, clusters).T
    covered = ((low <= share) & (share <= high)).mean()
    assert covered == pytest.approx(0.95, abs=0.01)
    alone = intervals.clustered_interval(passed[0], clusters)
    assert alone == pytest.approx((low[0], high[0]))
    if alike >= 0.7 and prompts < 500:  # what the clusters are for: taken as independent they would not
        n = passed.shape[1]
        naive = np.array([intervals.wilson_interval(k, n) for k in range(n + 1)])[passed.sum(1)]
        assert ((naive[:, 0] <= share) & (share <= naive[:, 1])).mean() < 0.94


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("prompts", [8, 20])
def test_with_few_prompts_clustered_intervals_are_rather_too_wide(prompts: int, alike: float) -> None:
    share, passed, clusters = clustered(prompts, alike, 8000, seed=prompts)
    low, high = intervals.clustered_intervals(passed, clusters).T
    assert 0.94 < ((low <= share) & (share <= high)).mean() < 0.98


def test_numbers_that_are_all_alike_have_an_interval_all_the_same() -> None:
    """Of equal numbers the spread is not known: at most that of passes with the same mean."""
    assert intervals.mean_interval([0.3] * 50) == pytest.approx(intervals.wilson_interval(15, 50))
    low, high = intervals.mean_interval([0.2, 0.4] * 25)
    assert (low, high) == pytest.approx(tuple(stats.t.interval(0.95, 49, 0.3, stats.sem([0.2, 0.4] * 25))))
