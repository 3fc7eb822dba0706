"""The expected calibration error: numbers worked by hand, and what its bootstrap may claim."""

from __future__ import annotations

import numpy as np
import pytest

from evals.families import calibration_error as ce
from evals.families.calibration_draws import BINS, DRAWS, p_of_no_difference
from evals.families.calibration_error import Answers
from tests.support.present import present


def test_the_error_is_the_mean_gap_of_the_bins() -> None:
    """Two at 0.9 of which one is right (gap 0.4), two at 0.55 of which both are (gap 0.45)."""
    assert ce.error([0.9, 0.9, 0.55, 0.55], [True, False, True, True]) == pytest.approx(
        (2 * 0.4 + 2 * 0.45) / 4
    )


def test_gaps_of_opposite_sign_cancel_within_a_bin_only() -> None:
    assert ce.error([0.52, 0.58], [True, False]) == pytest.approx(abs(0.52 - 1 + 0.58) / 2)
    assert ce.error([0.25, 0.75], [False, True]) == pytest.approx(0.25)
    assert ce.error([1.0, 1.0], [True, True]) == 0.0


def drawn(rng: np.random.Generator, n: int, overconfident: float) -> Answers:
    """Answers right with the probability of their confidence minus `overconfident`."""
    sure = rng.uniform(0.5, 1.0, n)
    return sure.tolist(), (rng.random(n) < sure - overconfident).tolist()


def test_the_same_answers_are_as_well_calibrated() -> None:
    """With 400 questions of one sort a change in 1.3 % of the answers may have gone unseen."""
    answers = drawn(np.random.default_rng(0), 400, 0.1)
    found = ce.non_inferiority(answers, answers, 0.05, 0.01, range(400))
    assert (found.outcome, found.difference) == ("passed", 0) and 0 < found.upper_bound < 0.3
    assert found.lower_bound == pytest.approx(0.005 ** (1 / 400) - 1)
    compared = ce.compare(answers, answers, 0.05, range(400))
    assert (compared.words, compared.p_value) == ("not distinguishable", 1.0)


def test_a_model_that_became_sure_of_everything_has_lost_it() -> None:
    before = drawn(np.random.default_rng(1), 300, 0.0)
    after = [1.0] * 300, before[1]
    found = ce.non_inferiority(after, before, 0.05, 0.05, range(300))
    assert found.outcome == "failed" and found.difference < -0.1
    assert found.lower_bound < found.difference < found.upper_bound < -0.05
    assert found.error_after == pytest.approx(1 - np.mean(before[1]))
    assert (found.gained, found.lost, found.n) == (0, 0, 300)
    assert ce.compare(after, before, 0.05, range(300)).words == "worse"
    assert ce.compare(before, after, 0.05, range(300)).words == "better"


def test_few_questions_are_underpowered_and_say_how_many_it_takes() -> None:
    rng = np.random.default_rng(2)
    found = ce.non_inferiority(drawn(rng, 30, 0.0), drawn(rng, 30, 0.0), 0.05, 0.05, range(30))
    assert found.outcome == "underpowered" and present(found.needed_n) > 30


def test_questions_of_one_cluster_stand_or_fall_together() -> None:
    sure, right = drawn(np.random.default_rng(3), 40, 0.2)
    one = ce.interval(sure, right, range(40))
    several = ce.interval([*sure] * 3, [*right] * 3, [*range(40)] * 3)
    assert several == pytest.approx(one)
    lone = ce.interval([*sure] * 3, [*right] * 3, range(120))
    assert lone[1] - lone[0] < several[1] - several[0]


def test_claims_about_clusters_are_those_of_one_question_each() -> None:
    """Every question three times, with the same answers: no more is known than of one each."""
    rng = np.random.default_rng(4)
    answers = [drawn(rng, 60, overconfident) for overconfident in (0.1, 0.0)]
    thrice = [([*sure] * 3, [*right] * 3) for sure, right in answers]
    one = ce.non_inferiority(answers[0], answers[1], 0.05, 0.05, range(60))
    several = ce.non_inferiority(thrice[0], thrice[1], 0.05, 0.05, [*range(60)] * 3)
    for name in ("outcome", "lower_bound", "upper_bound", "p_value"):
        assert getattr(several, name) == pytest.approx(getattr(one, name)), name
    found = ce.compare(thrice[0], thrice[1], 0.05, [*range(60)] * 3)
    alone = ce.compare(answers[0], answers[1], 0.05, range(60))
    for name in ("words", "interval", "p_value", "detectable"):
        assert getattr(found, name) == pytest.approx(getattr(alone, name)), name


def test_of_two_proofs_each_holds_at_half_the_level() -> None:
    """The growth is smaller than by chance with a probability of 3.6 %, which would pass alone at 5 %."""
    before, after = (
        ([share] * 800, [place < round(share * 800) for place in range(800)]) for share in (0.8, 0.7)
    )
    found = ce.non_inferiority(after, before, 0.05, 0.05, range(800))
    assert found.outcome == "underpowered" and found.lower_bound < -0.05
    assert found.p_value == pytest.approx(2 * 0.036)
    assert ce.non_inferiority(after, before, 0.05, 0.1, range(800)).outcome == "passed"


@pytest.mark.parametrize(("sure", "right"), [(1.0, True), (1.0, False), (0.25, True), (0.25, False)])
@pytest.mark.parametrize("n", [1, 3, 10])
def test_answers_that_are_all_alike_have_an_interval_and_show_no_loss(
    n: int, sure: float, right: bool
) -> None:
    answers, perfect = ([sure] * n, [right] * n), ([1.0] * n, [True] * n)
    low, high = ce.interval(*answers, range(n))
    assert low <= ce.error(*answers) <= high and high - low > 0.2
    assert n > 3 or ce.non_inferiority(answers, perfect, 0.05, 0.05, range(n)).outcome == "underpowered"
    assert ce.compare(answers, perfect, 0.05, range(n)).words == "not distinguishable" or n == 10


@pytest.mark.parametrize("overconfident", [0.0, 0.15])
@pytest.mark.parametrize("n", [5, 25])
def test_the_interval_covers_the_error_of_few_questions(n: int, overconfident: float) -> None:
    """Confidences lie within single bins, so that the true error is the overconfidence."""
    rng = np.random.default_rng([n, int(100 * overconfident)])
    rounds = 50
    covered = exact = 0
    for _ in range(rounds):
        answers = drawn(rng, n, overconfident)
        low, high = ce.interval(*answers, range(n))
        assert low <= ce.error(*answers) <= high
        covered += low <= overconfident <= high
        other = drawn(rng, n, overconfident)
        exact += ce.compare(answers, other, 0.05, range(n)).p_value <= 0.05
    assert covered / rounds >= 0.95 - 3 * (0.05 * 0.95 / rounds) ** 0.5
    assert exact / rounds <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


@pytest.mark.parametrize("spread", [(0.75, 0.75), (0.5, 1.0)])
@pytest.mark.parametrize("n", [10, 40])
def test_models_as_well_calibrated_rarely_differ_however_sure_they_are(
    n: int, spread: tuple[float, float]
) -> None:
    """One model is of one confidence, in one bin: sampling biases its error less than the other's."""
    rng = np.random.default_rng([n, int(100 * spread[0])])
    rounds = 100
    found = []
    for _ in range(rounds):
        luck, sure = rng.random(n), (rng.uniform(*spread, n), rng.uniform(0.3, 1.0, n))
        after, before = ((one.tolist(), (luck < one).tolist()) for one in sure)
        found.append(ce.compare(after, before, 0.05, range(n)).words != "not distinguishable")
    assert np.mean(found) <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


def table(*gaps: tuple[int, float]) -> np.ndarray:
    """The gaps of items, each given as its bin and its gap."""
    gaps_NB = np.zeros((len(gaps), BINS))
    for item, (column, gap) in enumerate(gaps):
        gaps_NB[item, column] = gap
    return gaps_NB


GROWN = table(*[(0, 0.0)] * 4), table(*[(0, 0.5)] * 4)  # all four in one bin
SPREAD = table(*[(0, 0.0)] * 4), table(*((column, 0.5) for column in range(4)))
ONE_OF_FOUR = table((0, 0.0), *[(0, 0.2)] * 3), table((0, 0.8), *[(0, 0.2)] * 3)


@pytest.mark.parametrize(
    ("tables", "clusters", "share"),
    [
        # All of one sign, or all exchanged or none: two patterns of sixteen.
        (GROWN, range(4), 1 / 8),
        # Two pairs of questions about one thing each: two patterns of four.
        (GROWN, (0, 0, 1, 1), 1 / 2),
        # Signs change no error of four bins with an item each, so any pattern shows what was seen; exchanged
        # items would show it in two patterns of sixteen.
        (SPREAD, range(4), 1.0),
        # Exchanging equal items changes nothing, and the other one's moves the error by 0.8 either way; with
        # its sign against that of the three others' sum, the error moves by 0.4 only: half of the patterns.
        (ONE_OF_FOUR, range(4), 1.0),
    ],
    ids=["both", "clusters", "signs", "exchange"],
)
def test_a_difference_needs_both_permutation_tests(
    tables: tuple[np.ndarray, np.ndarray], clusters: range | tuple[int, ...], share: float
) -> None:
    for one, other in (tables, tables[::-1]):
        assert p_of_no_difference(one, other, list(clusters)) == pytest.approx(share, abs=0.02)


def test_a_p_value_is_never_zero() -> None:
    """Of 4,000 patterns of 40 items none but the one seen has all of one sign."""
    now, then = table(*[(0, 0.0)] * 40), table(*[(0, 0.5)] * 40)
    assert p_of_no_difference(now, then, range(40)) == 1 / (1 + DRAWS)


@pytest.mark.parametrize("n", [1, 3, 10, 400])
def test_answers_that_are_all_alike_still_leave_a_difference_undetected(n: int) -> None:
    answers = [1.0] * n, [True] * n
    compared = ce.compare(answers, answers, 0.05, range(n))
    assert 1 / n < compared.detectable <= 1 or n < 3
    low, high = compared.interval
    assert -1 <= low < 0 < high <= 1


def test_no_number_of_questions_decides_an_error_grown_by_the_margin() -> None:
    before = [0.5] * 4000, [True, False] * 2000
    after = [0.5] * 4000, [True, False, True, True] * 1000
    found = ce.non_inferiority(after, before, 0.25, 0.05, range(4000))
    assert (found.difference, found.outcome, found.needed_n) == (-0.25, "underpowered", None)
    assert ce.items_to_pass(1e-5, 0.05) is None


MANY = [pytest.param(320, overconfident, marks=pytest.mark.slow) for overconfident in (0.0, 0.1)]


@pytest.mark.parametrize(("n", "overconfident"), [(1, 0.0), (10, 0.0), (40, 0.1), *MANY])
def test_a_loss_of_the_margin_is_rarely_called_kept(n: int, overconfident: float) -> None:
    """The error grows by exactly the margin: "kept" is wrong, and must stay near its level of 5 %."""
    rng = np.random.default_rng(n)
    passed = 0
    rounds = 60
    for _ in range(rounds):
        sure = rng.uniform(0.5, 1.0, n)
        luck = rng.random(n)
        before = sure.tolist(), (luck < sure - overconfident).tolist()
        after = sure.tolist(), (luck < sure - overconfident - 0.05).tolist()
        passed += ce.non_inferiority(after, before, 0.05, 0.05, range(n)).outcome == "passed"
    assert passed / rounds <= 0.05 + 3 * (0.05 * 0.95 / rounds) ** 0.5


def test_an_improvement_of_an_overconfident_model_is_kept() -> None:
    rng = np.random.default_rng(5)
    sure = rng.uniform(0.5, 1.0, 400)
    luck = rng.random(400)
    before = sure.tolist(), (luck < sure - 0.2).tolist()
    after = sure.tolist(), (luck < sure).tolist()
    assert ce.non_inferiority(after, before, 0.05, 0.05, range(400)).outcome == "passed"
