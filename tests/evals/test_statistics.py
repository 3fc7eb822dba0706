"""The statistics against scipy, brute force and hand-worked numbers, by exact sums and by simulation."""

from __future__ import annotations

from functools import cache
from math import ceil, comb, log

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from evals import exact, intervals, statistics
from evals.statistics import non_inferiority
from recovery.errors import InputError
from tests.support.present import present

SHARE = st.floats(0, 1, allow_subnormal=False)


def pairs(gained: int, lost: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(after, before) with that many flips; the rest pass both times."""
    after, before = np.ones(n, bool), np.ones(n, bool)
    before[:gained] = False
    after[gained : gained + lost] = False
    return after, before


def draw(n: int, gain: float, loss: float, times: int, seed: int = 0) -> list[tuple[int, int]]:
    counts = np.random.default_rng(seed).multinomial(n, [gain, loss, 1 - gain - loss], size=times)
    return [(int(b), int(c)) for b, c, _ in counts]


# --- pairs


@given(st.integers(0, 200), st.integers(0, 200))
def test_mcnemar_is_the_binomial_test(gained: int, lost: int) -> None:
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert statistics.mcnemar(gained, lost) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("n", "gain", "loss"), [(20, 0.4, 0.1), (20, 0.1, 0.4), (12, 0.3, 0.3)])
def test_mcnemars_power_by_brute_force(n: int, gain: float, loss: float) -> None:
    rejected = [
        (b, c)
        for b in range(n + 1)
        for c in range(n + 1 - b)
        if b + c and stats.binomtest(b, b + c).pvalue <= 0.05
    ]
    chances = [gain, loss, 1 - gain - loss]
    power = sum(stats.multinomial.pmf([b, c, n - b - c], n, chances) for b, c in rejected)
    assert statistics.mcnemar_power(n, gain, loss) == pytest.approx(power, abs=1e-9)


@settings(max_examples=40)
@given(
    st.integers(0, 15), st.integers(0, 15), st.integers(20, 60), st.floats(-0.4, 0.4, allow_subnormal=False)
)
def test_tango_score_is_the_likelihoods(gained: int, lost: int, extra: int, difference: float) -> None:
    n = gained + lost + extra

    def loss(share: float) -> float:
        rest = 1 - 2 * share - difference
        terms = ((gained, share + difference), (lost, share), (extra, rest))
        return -sum(k * np.log(max(p, 1e-300)) for k, p in terms if k)

    bounds = (max(0.0, -difference), (1 - difference) / 2)
    share = optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
    variance = n * (2 * share + difference * (1 - difference))
    expected = (gained - lost - n * difference) / variance**0.5
    assert float(exact.tango_score(gained, lost, n, difference)) == pytest.approx(expected, abs=2e-2)


@pytest.mark.parametrize(
    ("gained", "lost", "n", "difference"),
    [
        (0, 0, 14, -0.1),
        (2, 1, 14, -0.1),
        (1, 3, 14, -0.25),
        (4, 0, 14, 0.1),
        (24, 6, 30, 0.3),  # nearly all flip: two peaks, of which a coarse search sees the lower one
        (9, 15, 30, -0.1),
        (15, 15, 30, 0.0),  # without the interval the worst share of losses would be one that is ruled out
        (10, 5, 30, -0.05),
    ],
)
def test_exact_p_is_the_worst_case_by_brute_force(gained: int, lost: int, n: int, difference: float) -> None:
    seen = float(exact.tango_score(gained, lost, n, difference))
    outcomes = [(b, c) for b in range(n + 1) for c in range(n + 1 - b)]
    extreme = [(b, c) for b, c in outcomes if exact.tango_score(b, c, n, difference) >= seen - 1e-9]
    interval = stats.binomtest(lost, n).proportion_ci(1 - 5e-4, method="exact")
    share = np.linspace(max(interval[0], -difference), min(interval[1], (1 - difference) / 2), 2001)
    gain, same = share + difference, np.maximum(1 - 2 * share - difference, 0)
    tail = sum(comb(n, b) * comb(n - b, c) * gain**b * share**c * same ** (n - b - c) for b, c in extreme)
    assert exact.exact_p(gained, lost, n, difference) == pytest.approx(np.max(tail) + 5e-4, abs=2e-4)


@pytest.mark.parametrize(
    ("gained", "lost", "n", "margin"), [(15, 12, 60, 0.1), (20, 15, 100, 0.05), (12, 22, 200, 0.1)]
)
def test_bound_and_outcome_agree_where_the_p_value_crosses_its_level_twice(
    gained: int, lost: int, n: int, margin: float
) -> None:
    passed = exact.exact_p(gained, lost, n, -margin) <= 0.05
    assert (exact.paired_lower_bound(gained, lost, n) > -margin) != passed  # a bound that knows of no margin
    result = non_inferiority(*pairs(gained, lost, n), margin=margin)
    assert (result.outcome == "passed") == (result.lower_bound > -margin) == passed


def test_no_flips_is_the_rule_of_three() -> None:
    # Nothing lost among n: a loss of 3 % stays hidden with chance 0.97^n, below 5 % from n = 99 on.
    assert non_inferiority(*pairs(0, 0, 98)).outcome == "underpowered"
    result = non_inferiority(*pairs(0, 0, 99))
    assert result.outcome == "passed"
    assert result.lower_bound == pytest.approx(-(1 - (0.05 - 5e-4) ** (1 / 99)), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 250), SHARE, SHARE, st.sampled_from([0.02, 0.03, 0.1]))
def test_bounds_hold_together(n: int, flips: float, gains: float, margin: float) -> None:
    gained = round(n * flips * gains)
    lost = min(round(n * flips * (1 - gains)), n - gained)
    result = non_inferiority(*pairs(gained, lost, n), margin=margin)
    assert -1 <= result.lower_bound <= result.difference <= result.upper_bound <= 1
    assert (result.outcome == "passed") == (result.lower_bound > -margin) == (result.p_value <= 0.05)
    assert (result.outcome == "failed") == (result.upper_bound < -margin)
    assert result.outcome != "passed" or result.difference > -margin
    if result.needed_n is None:  # on the margin, or next to it: the search ends beyond 4 million pairs
        needed_times_distance = (1.6449 + 0.8416) ** 2 * (gained + lost) / n
        assert 4e6 * (result.difference + margin) ** 2 <= needed_times_distance
    assert result.outcome != "underpowered" or (result.needed_n or n + 1) > n
    mirrored = exact.paired_lower_bound(lost, gained, n)
    # The exact p-value is not quite monotone: a bound kept on its side of the margin may be another root.
    assert result.upper_bound == pytest.approx(-mirrored, abs=0.03)


# --- stated error rates

LEFT_OUT = 1e-6  # the chance of more losses than are counted


@cache
def rejecting(n: int, difference: float, loss: float, alpha: float = 0.05) -> np.ndarray:
    """The fewest gains by which the exact test rejects a difference, for each likely number of losses.

    More gains reject it too, as the p-value of as many losses falls with them."""
    fewest, gained = [], 0
    for lost in range(int(stats.binom.isf(LEFT_OUT, n, loss)) + 1):
        while gained <= n - lost and exact.exact_p(gained, lost, n, difference, alpha) > alpha:
            gained += 1
        assert gained == 0 or exact.exact_p(gained - 1, lost, n, difference, alpha) > alpha
        fewest.append(gained)
    return np.array(fewest)


def chance(fewest: np.ndarray, n: int, gain: float, loss: float) -> float:
    """The chance of as many gains, summed over the numbers of losses."""
    losses = np.arange(len(fewest))
    gains = stats.binom.sf(fewest - 1, n - losses, gain / (1 - loss))
    return float(stats.binom.pmf(losses, n, loss) @ gains)


@pytest.mark.parametrize(
    ("n", "gain", "loss", "margin"),
    [
        (541, 0.035, 0.065, 0.03),  # a tenth of the prompts flip
        (541, 0.0, 0.03, 0.03),  # the clean model passes everything: losses only
        (450, 0.0, 0.03, 0.03),  # where Tango's score test itself is above 5 %
        (700, 0.01, 0.04, 0.03),
        (120, 0.15, 0.25, 0.1),
    ],
)
def test_false_recovered_at_the_margin_is_at_most_five_percent(
    n: int, gain: float, loss: float, margin: float
) -> None:
    assert chance(rejecting(n, -margin, loss), n, gain, loss) <= 0.05 + LEFT_OUT


@pytest.mark.parametrize("alpha", [0.05 / 20, 0.05 / 200, 0.05 / 2000])
@pytest.mark.parametrize(
    ("n", "gain", "loss", "margin"),
    [(541, 0.035, 0.065, 0.03), (1500, 0.01, 0.04, 0.03), (200, 0.05, 0.15, 0.1)],
)
def test_each_of_many_trials_keeps_its_share_of_the_error_rate_and_uses_it(
    n: int, gain: float, loss: float, margin: float, alpha: float
) -> None:
    found = chance(rejecting(n, -margin, loss, alpha), n, gain, loss)
    assert 0.5 * alpha < found <= alpha + LEFT_OUT


@pytest.mark.parametrize("trials", [50, 100, 200, 2000])
def test_equal_answers_pass_in_every_one_of_many_trials(trials: int) -> None:
    found = non_inferiority(*pairs(0, 0, 5000), alpha=0.05 / trials)
    assert (found.outcome, found.lower_bound > -0.003) == ("passed", True)
    assert present(found.needed_n) < 5000
    worse = non_inferiority(*pairs(0, 500, 5000), alpha=0.05 / trials)
    assert (worse.outcome, worse.upper_bound < -0.03) == ("failed", True)


def test_error_rate_summed_over_every_outcome() -> None:
    n = 60
    margin = 0.05
    region = [
        (b, c)
        for c in range(8)
        for b in range(n + 1 - c)
        if b - c > -margin * n and b < 12 and exact.exact_p(b, c, n, -margin) <= 0.05
    ]
    sizes = []
    for loss in np.linspace(margin, 0.1, 12):
        chances = [loss - margin, loss, 1 - 2 * loss + margin]
        sizes.append(sum(stats.multinomial.pmf([b, c, n - b - c], n, chances) for b, c in region))
    assert 0.01 < max(sizes) <= 0.05


@pytest.mark.parametrize(("gain", "loss"), [(0.05, 0.05), (0.02, 0.08), (0.12, 0.03)])
def test_lower_bound_covers(gain: float, loss: float) -> None:
    # The bound lies below the truth exactly when the truth is not rejected.
    covered = 1 - chance(rejecting(300, gain - loss, loss), 300, gain, loss)
    assert 0.95 - LEFT_OUT <= covered <= 0.97


@pytest.mark.parametrize(
    ("n", "discordance", "margin"),
    [
        (60, 0.2, 0.15),
        (100, 0.1, 0.1),
        (200, 0.1, 0.05),
        (200, 0.2, 0.1),
        (300, 0.05, 0.03),
        (541, 0.1, 0.03),
    ],
)
def test_power_is_at_most_that_of_the_exact_test_and_hardly_less(
    n: int, discordance: float, margin: float
) -> None:
    share = discordance / 2
    found = chance(rejecting(n, -margin, share), n, share, share)
    assert found - 0.03 < exact.power(n, discordance, margin) <= found


def test_needed_pairs() -> None:
    # (1.645 + 0.842)^2 * 0.10 / 0.03^2 = 687 by the normal approximation; the exact test asks a little more.
    assert 687 <= present(exact.needed_pairs(0.10)) <= 740
    assert 1546 <= present(exact.needed_pairs(0.10, 0.02)) <= 1620
    n = present(exact.needed_pairs(0.07))
    assert exact.power(n, 0.07) >= 0.8 > exact.power(n - 20, 0.07)


# --- outcomes


def test_a_claim_passes_fails_or_says_how_many_pairs_would_decide() -> None:
    assert non_inferiority(*pairs(20, 20, 700)).outcome == "passed"
    assert non_inferiority(*pairs(0, 200, 700)).outcome == "failed"
    few = non_inferiority(*pairs(6, 8, 200))
    assert few.outcome == "underpowered"
    assert few.needed_n == present(exact.needed_pairs(14 / 200)) > 200


@pytest.mark.parametrize(("gained", "lost", "n"), [(0, 2, 20), (10, 32, 900), (40, 66, 700), (20, 45, 700)])
def test_an_estimate_near_or_beyond_the_margin_is_no_proof_of_worse(gained: int, lost: int, n: int) -> None:
    result = non_inferiority(*pairs(gained, lost, n))
    assert result.upper_bound >= -0.03
    assert result.outcome == "underpowered"
    assert present(result.needed_n) > n


def test_needed_items_of_a_loss_beyond_the_margin_prove_it() -> None:
    seen = non_inferiority(*pairs(10, 42, 800))  # 4 points lost
    needed = present(seen.needed_n)
    times = needed / 800
    larger = pairs(round(10 * times), round(42 * times), needed)
    assert seen.outcome == "underpowered"
    assert non_inferiority(*larger).outcome == "failed"


def test_no_number_of_pairs_decides_a_difference_on_the_margin() -> None:
    found = non_inferiority(*pairs(0, 30, 1000))
    assert (found.outcome, found.needed_n) == ("underpowered", None)
    assert exact.needed_pairs(0.1, margin=1e-4) is None
    narrow = non_inferiority(*pairs(20, 20, 700), margin=1e-4)
    assert (narrow.outcome, narrow.needed_n) == ("underpowered", None)


WORLDS = {
    # name: (share of gains, share of losses, words that would be false)
    "equal": (0.05, 0.05, {"failed"}),
    "on the margin": (0.035, 0.065, {"passed", "failed"}),
    "worse": (0.02, 0.10, {"passed"}),
    "better": (0.08, 0.02, {"failed"}),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("n", [96, 270, 700])
def test_each_claim_is_false_at_most_as_often_as_stated(name: str, n: int) -> None:
    gain, loss, false_words = WORLDS[name]
    passing, failing = rejecting(n, -0.03, 0.1), rejecting(n, 0.03, 0.1)  # of which losses are the gains
    for gained, lost in draw(n, gain, loss, 30, seed=n):
        passes, fails = gained >= passing[lost], lost >= failing[gained]
        word = "passed" if passes else "failed" if fails else "underpowered"
        assert statistics.outcome(gained, lost, n) == word
    chances = {"passed": chance(passing, n, gain, loss), "failed": chance(failing, n, loss, gain)}
    assert all(chances[word] <= 0.05 + LEFT_OUT for word in false_words)
    if n == 700:  # enough pairs for the true word to be the common one
        chances["underpowered"] = 1 - sum(chances.values())
        true_word = {"worse": "failed", "better": "passed", "equal": "passed"}.get(name, "underpowered")
        assert chances[true_word] > 0.5


def test_each_claim_keeps_its_error_rate_under_clusters() -> None:
    """Both questions about a fact flip together; the true difference lies on the margin."""
    labels = list(np.repeat(np.arange(200), 2))
    rng = np.random.default_rng(9)
    times = 1000
    outcomes = []
    for _ in range(times):
        flips = np.repeat(rng.choice([1, -1, 0], size=200, p=[0.05, 0.15, 0.8]), 2)
        effect = intervals.design_effect(flips, labels)
        gained, lost = int((flips > 0).sum()), int((flips < 0).sum())
        outcomes.append(statistics.outcome(gained, lost, 400, margin=0.1, effect=effect))
    for word in ("passed", "failed"):
        assert outcomes.count(word) / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize("clusters", [1, 2, 3, 8, 25])
def test_few_clusters_do_not_claim_too_much(clusters: int) -> None:
    """Each cluster has a difference of its own; over all clusters it is minus the margin."""
    rng = np.random.default_rng(clusters)
    size, margin, times = 400 // clusters, 0.1, 400
    labels = list(np.repeat(np.arange(clusters), size))
    wrong = 0
    for _ in range(times):
        lost_share = np.repeat(rng.choice([0.0, 0.2], size=clusters), size)
        flips = -(rng.random(clusters * size) < lost_share).astype(int)
        gained, lost = int((flips > 0).sum()), int((flips < 0).sum())
        effect = intervals.cautious_effect(flips, labels)
        wrong += statistics.outcome(gained, lost, len(labels), margin, effect=effect) == "passed"
    assert wrong / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize("strays", [0.005, 0.02])
def test_facts_that_are_lost_as_a_whole_are_not_hidden_by_a_few_stray_answers(strays: float) -> None:
    """Three questions each about 60 facts, of which as many are lost as the margin allows."""
    rng = np.random.default_rng(6)
    labels, times, wrong = list(np.repeat(np.arange(60), 3)), 1000, 0
    for _ in range(times):
        lost = np.repeat(rng.random(60) < 0.03, 3)
        stray = rng.choice([1, -1, 0], size=180, p=[strays / 2, strays / 2, 1 - strays])
        flips = np.where(lost, -1, stray)
        effect = intervals.cautious_effect(flips, labels)
        counts = int((flips > 0).sum()), int((flips < 0).sum())
        wrong += statistics.outcome(*counts, 180, margin=0.03, effect=effect) == "passed"
    assert wrong / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5


def test_an_answer_more_that_is_lost_never_shows_that_nothing_was_lost() -> None:
    labels = list(np.repeat(np.arange(60), 3))
    same, lost = np.zeros(180, dtype=int), np.zeros(180, dtype=int)
    lost[0] = -1
    for flips in (same, lost):
        effect = intervals.cautious_effect(flips, labels)
        assert statistics.outcome(0, int((flips < 0).sum()), 180, effect=effect) == "underpowered"


def test_an_open_claim_about_few_clusters_takes_more_items_than_it_had() -> None:
    """Six questions about each of 130 sentences: where one answer is lost, a sentence counts as one item."""
    sentences = list(np.repeat(np.arange(130), 6))
    found = non_inferiority(*pairs(0, 1, 780), clusters=sentences)
    assert (found.outcome, found.lost, found.design_effect) == ("underpowered", 1, 6.0)
    assert found.needed_n == 6 * present(exact.needed_pairs(1 / 130)) > 780


@pytest.mark.parametrize(
    ("gained", "lost", "n"),
    [
        (
            6,
            15,
            300,
        ),  # fewer than the planned difference needs: 3 points, on the margin, are not yet believed
        (10, 42, 800),  # more: the observed one, 4 points
    ],
)
def test_items_that_go_together_in_twos_need_twice_as_many(gained: int, lost: int, n: int) -> None:
    after, before = pairs(gained, lost, n)
    alone = non_inferiority(after, before)
    both = non_inferiority(np.repeat(after, 2), np.repeat(before, 2), clusters=list(np.arange(2 * n) // 2))
    assert alone.outcome == both.outcome == "underpowered"
    assert present(both.needed_n) == pytest.approx(2 * present(alone.needed_n), rel=0.05)


def test_flips_that_go_together_are_rounded_towards_a_loss() -> None:
    """Pairs of equal items count half: 2.5 gains are 2, 2.5 losses are 3."""
    assert statistics._shrink(5, 5, 40, 2.0) == (2, 3, 20)


def test_mcnemar_counts_clusters_as_the_bounds_do() -> None:
    flips = np.repeat([1] * 3 + [-1] * 12 + [0] * 85, 4)
    labels = list(np.repeat(np.arange(100), 4))
    alone = non_inferiority(flips > 0, flips < 0)
    together = non_inferiority(flips > 0, flips < 0, clusters=labels)
    one_each = non_inferiority(flips[::4] > 0, flips[::4] < 0)
    assert one_each.p_mcnemar <= together.p_mcnemar <= 2 * one_each.p_mcnemar
    assert alone.p_mcnemar < one_each.p_mcnemar / 10


def test_half_of_ifeval_rarely_shows_that_nothing_was_lost() -> None:
    assert statistics.chance_to_pass(541) > 0.65
    assert statistics.chance_to_pass(541 / 2) < 0.5
    assert statistics.chance_to_pass(present(statistics.items_to_pass())) >= 0.8
    assert statistics.items_to_pass(1e-4) is None and statistics.items_to_ask(1e-4) > 10**6


@pytest.mark.parametrize("lead", [0.7, 0.9, 0.99, 0.999, 0.99999])
def test_a_lead_is_planned_by_items_that_are_all_gained_however_close_to_one_it_is(lead: float) -> None:
    """The worst model below it gains each with (1 + lead) / 2. Tried one by one, the items took minutes."""
    left = 0.05 - 0.0005  # of alpha, beside the interval of the share of losses
    by_hand = ceil(log(left) / log((1 + lead) / 2))
    assert statistics.items_to_pass(-lead) == pytest.approx(by_hand, rel=1e-3)


def test_no_number_of_items_shows_a_lead_of_almost_all() -> None:
    assert statistics.items_to_pass(1e-9 - 1) is None


def test_a_checkpoint_against_itself() -> None:
    same = np.arange(541) % 3 > 0
    assert non_inferiority(same, same).outcome == "passed"
    assert statistics.compare(same, same).words == "not distinguishable"


def test_known_damage_is_found_at_the_stated_power() -> None:
    # 7 % lost against 2 % gained of 541: McNemar's power by its own binomial is about 0.97.
    found = [statistics.mcnemar(b, c) <= 0.05 for b, c in draw(541, 0.02, 0.07, 2000, seed=3)]
    assert np.mean(found) > 0.93
    assert statistics.compare(*pairs(11, 38, 541)).words == "worse"
    assert statistics.compare(*pairs(38, 11, 541)).words == "better"


def test_compare_interval_is_two_sided() -> None:
    result = statistics.compare(*pairs(30, 30, 541))
    low, high = result.interval
    assert low == pytest.approx(-high)
    assert low < exact.paired_lower_bound(30, 30, 541, 0.05) < 0


@pytest.mark.parametrize(("gained", "lost"), [(10, 40), (20, 26)])
def test_a_comparison_of_items_that_go_together_in_twos_is_that_of_one_each(gained: int, lost: int) -> None:
    after, before = pairs(gained, lost, 300)
    alone = statistics.compare(after, before)
    labels = list(np.arange(600) // 2)
    both = statistics.compare(np.repeat(after, 2), np.repeat(before, 2), clusters=labels)
    assert (both.words, both.gained, both.n) == (alone.words, 2 * gained, 600)
    assert alone.p_mcnemar <= both.p_mcnemar <= 2 * alone.p_mcnemar
    assert both.interval == pytest.approx(alone.interval, abs=0.01)
    assert both.detectable == pytest.approx(alone.detectable, rel=0.02)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(80, 600))
@example(16, 6, 541)  # McNemar's p-value is 0.053, and the exact bound alone lies 0.15 points above 0
@example(6, 16, 541)
@settings(max_examples=60, deadline=None)
def test_the_interval_of_a_comparison_says_of_no_difference_what_its_words_say(
    gained: int, lost: int, n: int
) -> None:
    found = statistics.compare(*pairs(gained, lost, n))
    low, high = found.interval
    assert low <= found.difference <= high
    assert low >= 0 if found.words == "better" else low <= 0
    assert high <= 0 if found.words == "worse" else high >= 0


def test_items_that_go_together_count_as_less() -> None:
    after, before = pairs(12, 16, 600)
    alone = non_inferiority(after, before)
    order = np.argsort(after.astype(int) - before, kind="stable")  # the flips of one fact fall together
    both = non_inferiority(after[order], before[order], clusters=list(np.arange(600) // 2))
    assert both.design_effect == pytest.approx(2.0, abs=0.05)
    assert both.lower_bound < alone.lower_bound
    assert present(both.needed_n) > present(alone.needed_n)
    assert (both.gained, both.lost, both.n) == (12, 16, 600)


def test_scores_are_judged_by_what_they_gained_and_lost_in_all() -> None:
    """Ten answers lose 0.5 and four gain 0.25: in all 5 lost and 1 gained of 100."""
    before = [1.0] * 10 + [0.5] * 90
    after = [0.5] * 10 + [0.75] * 4 + [0.5] * 86
    found, whole = non_inferiority(after, before), non_inferiority(*pairs(1, 5, 100))
    assert (found.gained, found.lost, found.difference) == (4, 10, -0.04)
    assert (found.lower_bound, found.upper_bound) == (whole.lower_bound, whole.upper_bound)
    assert (found.outcome, found.needed_n) == (whole.outcome, whole.needed_n)


def test_what_is_no_whole_answer_is_rounded_against_each_claim() -> None:
    """1.5 answers lost: 2 for the claim that little was, 1 for the claim that much was."""
    found = non_inferiority([0.5] * 3 + [1.0] * 97, [1.0] * 100)
    assert found.lower_bound == non_inferiority(*pairs(0, 2, 100)).lower_bound
    assert found.upper_bound == non_inferiority(*pairs(0, 1, 100)).upper_bound


@pytest.mark.parametrize("shape", [(0.5, 0.5), (1, 4), (8, 2)])
def test_a_claim_about_scores_is_false_at_most_as_often_as_stated(shape: tuple[float, float]) -> None:
    """Changes of every size, many or few of them: 15 of 100 answers in all, a third gained. The true
    difference is minus the margin of 5 points."""
    rng, times, n = np.random.default_rng(5), 250, 200
    changed = 0.15 * sum(shape) / shape[0]
    outcomes = []
    for _ in range(times):
        sign = rng.choice([1, -1, 0], size=n, p=[changed / 3, 2 * changed / 3, 1 - changed])
        change = sign * rng.beta(*shape, size=n)
        gained, lost = change[change > 0].sum(), -change[change < 0].sum()
        outcomes.append(statistics.outcome(gained, lost, n, margin=0.05))
    for word in ("passed", "failed"):
        assert outcomes.count(word) / times <= 0.05 + 3 * (0.05 * 0.95 / times) ** 0.5


@pytest.mark.parametrize(("after", "before"), [([], []), ([True], [True, False]), ([[True]], [[True]])])
def test_unpaired_input_is_refused(after: list[float], before: list[float]) -> None:
    with pytest.raises(InputError):
        non_inferiority(after, before)


@pytest.mark.parametrize("margin", [0, -0.03, 1, 3])
def test_margin_is_a_share(margin: float) -> None:
    with pytest.raises(InputError, match="margin"):
        non_inferiority([True], [True], margin=margin)


# --- many comparisons


def test_holm_by_hand() -> None:
    # Sorted .01 .02 .03 .04 times 4 3 2 1 = .04 .06 .06 .04, made non-decreasing.
    assert statistics.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize(("gained", "lost"), [(3, 12), (0, 5), (7, 7), (40, 61)])
def test_agrees_with_statsmodels(gained: int, lost: int) -> None:
    contingency = pytest.importorskip("statsmodels.stats.contingency_tables")
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_value = contingency.mcnemar([[100, gained], [lost, 50]], exact=True).pvalue
    assert statistics.mcnemar(gained, lost) == pytest.approx(p_value)
    several = [p_value, 0.01, 0.2, 0.04]
    assert statistics.holm(several) == pytest.approx(multitest.multipletests(several, method="holm")[1])
