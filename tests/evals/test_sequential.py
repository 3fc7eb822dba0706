"""Looking more than once: published boundaries, error rates by simulation, bounds that hold at every look."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from evals.exact import exact_p
from evals.sequential import Looks, boundaries, confidence_sequence, spent
from recovery.errors import InputError

FIFTHS = [0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("spending", "published"),
    [  # z of five equal looks, one-sided alpha 0.025: R's gsDesign and ldbounds
        ("obrien-fleming", [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
        ("pocock", [2.4380, 2.4268, 2.4101, 2.3966, 2.3859]),
    ],
)
def test_boundaries_are_the_published_ones(spending: str, published: list[float]) -> None:
    found = -special.ndtri(boundaries(FIFTHS, 0.025, spending))
    assert found == pytest.approx(published, abs=0.005)


def test_one_look_spends_everything() -> None:
    for spending in ("obrien-fleming", "pocock", "bonferroni"):
        assert boundaries([1.0], 0.05, spending) == pytest.approx([0.05], abs=1e-6)
        assert spent([0.5, 1.0], 0.05, spending)[-1] == pytest.approx(0.05)


@pytest.mark.parametrize("spending", ["obrien-fleming", "pocock", "bonferroni"])
def test_looks_at_growing_data_err_at_most_as_often_as_stated(spending: str) -> None:
    """Truly 3 points worse, looked at five times up to 300 pairs: "shown" at any look is false."""
    rng, looks, wrong, times = np.random.default_rng(5), Looks(FIFTHS, 0.03, spending=spending), 0, 1000
    for _ in range(times):
        drawn = rng.multinomial(60, [0.04, 0.07, 0.89], size=5).cumsum(axis=0)
        wrong += any(
            exact_p(int(b), int(c), 60 * (i + 1), -0.03) <= looks.levels[i]
            for i, (b, c, _) in enumerate(drawn)
        )
    assert wrong / times <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / times)


def test_looking_without_a_plan_does_fool_oneself() -> None:
    """The same at 0.05 each time: what the levels are there for."""
    rng, wrong = np.random.default_rng(6), 0
    z = rng.standard_normal((4000, 5)).cumsum(axis=1) / np.sqrt(np.arange(1, 6))
    wrong = (z > -special.ndtri(0.05)).any(axis=1).mean()
    planned = (z > -special.ndtri(boundaries(FIFTHS))).any(axis=1).mean()
    assert wrong > 0.12
    assert planned <= 0.06


def test_a_look_says_what_it_saw() -> None:
    looks = Looks([0.5, 1.0], 0.03, spending="bonferroni")
    early, late = looks.look(1, 3, 3, 120), looks.look(2, 6, 6, 900)
    assert (early.stop, late.stop) == (False, True)
    assert early.lower_bound <= -0.03 < late.lower_bound
    for wrong in (0, 3):
        with pytest.raises(InputError, match="2 were planned"):
            looks.look(wrong, 0, 0, 10)


@pytest.mark.parametrize("gain", [0.02, 0.2])
def test_the_confidence_sequence_covers_at_every_moment(gain: float) -> None:
    rng, missed, times = np.random.default_rng(8), 0, 300
    true = gain - 0.1
    for _ in range(times):
        x = rng.choice([1.0, -1.0, 0.0], size=800, p=[gain, 0.1, 0.9 - gain])
        low, high = confidence_sequence(x)
        missed += bool(((low > true) | (high < true)).any())
    assert missed / times <= 0.05
    assert high[-1] - low[-1] < 0.25


@pytest.mark.parametrize("shares", [[], [0.5, 0.4], [0.0, 1.0], [0.5, 1.5]])
def test_wrong_plans_are_refused(shares: list[float]) -> None:
    with pytest.raises(InputError, match="rising shares"):
        boundaries(shares)
