"""Proposals worked by hand: what a nat costs, and the best setting within a budget."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipelines.knowledge.forecast import LossPerKL
from pipelines.piloting.proposal import (
    LENGTHS,
    RATES,
    BehaviourLaw,
    Forecasts,
    Length,
    best,
    candidates,
    gentlest,
    of_checkpoints,
    of_cycles,
)
from pipelines.piloting.rate_curves import Curve, Estimate, Kind


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def curve(kind: Kind, scale: float, rate: float = 1.0, length: float = 1.0) -> Curve:
    """e^a r^b s^c without any scatter."""
    return Curve(kind, np.array([math.log(scale), rate, length]), np.zeros((3, 3)), 0.0, 10.0)


def forecasts(law: BehaviourLaw, error: float = 0.0) -> Forecasts:
    """KL = 1000 r s; learned = 1 − exp(−2000 r s)."""
    return Forecasts(curve("kl", 1000), curve("learned", 2000), law, error)


HALF = BehaviourLaw(((1.0, exactly(0.5)),), "hand")  # a nat costs half of the behaviour


def test_earlier_cycles_give_a_slope_with_students_interval() -> None:
    """Slope (0.45 + 2 + 0.5) / 6; residuals −0.0417, 0.0167, 0.0083: s² = 0.00104, s / √6 = 0.013176."""
    law = of_cycles(LossPerKL(((1.0, 0.45), (2.0, 1.0), (1.0, 0.5))))
    assert law is not None
    found = law.loss(exactly(1.0))
    assert found.value == pytest.approx(2.95 / 6)
    assert found.low == pytest.approx(2.95 / 6 - 4.3027 * 0.013176, abs=1e-4)  # t(2) = 4.3027
    assert found.high == pytest.approx(2.95 / 6 + 4.3027 * 0.013176, abs=1e-4)
    assert law.source == "3 earlier cycles"


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((1.0, 0.4),),
        ((0, 0), (0, 1)),
        ((1.0, 0.0), (2.0, 0.0)),
        ((1.0, -0.02), (2.0, 0.0)),
        ((1.0, 0.4), (2.0, 1.0)),  # 0.48 a nat, but from −0.03 on
    ],
)
def test_earlier_cycles_that_show_no_loss_give_no_law(points: tuple[tuple[float, float], ...]) -> None:
    """Nor does the forecast of a midtraining foretell any then."""
    assert of_cycles(LossPerKL(points)) is None
    assert LossPerKL(points).expected(1.0) is None


def test_measured_checkpoints_are_joined_by_lines() -> None:
    law = of_checkpoints([(1.2, Estimate(0.8, 0.7, 0.9)), (0.8, Estimate(0.1, 0.0, 0.2))], 64)
    assert law is not None
    assert law.loss(exactly(0.8)) == Estimate(0.1, 0.0, 0.2)  # as measured
    assert law.loss(exactly(1.0)).value == pytest.approx(0.45)
    assert law.loss(exactly(0.4)).value == pytest.approx(0.05)  # half way to the origin
    wide = law.loss(Estimate(1.0, 0.8, 1.2))
    assert (wide.low, wide.high) == pytest.approx((0.0, 0.9))
    assert law.loss(exactly(1.35)).value == pytest.approx(0.9)  # an eighth beyond the last: an eighth more
    assert law.loss(exactly(9.0)).value == 1.0
    assert of_checkpoints([(0.0, exactly(0.1))], 64) is None


def test_the_most_may_be_lost_at_a_knot_within_the_interval() -> None:
    """The gentler checkpoint lost more than the other: prompts are few, and a line may fall."""
    law = of_checkpoints([(0.8, Estimate(0.3, 0.2, 0.4)), (1.2, Estimate(0.1, 0.0, 0.2))], 64)
    assert law is not None
    found = law.loss(Estimate(0.9, 0.4, 1.2))
    assert (found.low, found.high) == pytest.approx((0.0, 0.4))  # at its ends no more than 0.2
    valley = of_checkpoints([(0.5, Estimate(0.0, -0.1, 0.1)), (1.0, Estimate(0.5, 0.4, 0.6))], 64)
    assert valley is not None and valley.loss(Estimate(0.6, 0.25, 0.9)).low == pytest.approx(-0.1)


def test_the_best_learns_most_within_the_budget() -> None:
    lengths = [Length(100, 1.0), Length(200, 2.0)]
    found = candidates(forecasts(HALF), (1e-4, 4e-4), lengths)
    assert len(found) == RATES * len(lengths) and LENGTHS > 1
    assert [found[0].rate, found[-1].rate] == pytest.approx([1e-4, 4e-4])
    chosen = best(found, 0.2)  # r s ≤ 4e-4: the rate at once, or half of it twice as long
    assert chosen is not None
    assert chosen.rate * chosen.length.passes == pytest.approx(4e-4)
    assert (chosen.kl.value, chosen.loss.value) == pytest.approx((0.4, 0.2))
    assert chosen.learned.value == pytest.approx(1 - math.exp(-0.8))
    assert best(found, 0.01) is None
    assert gentlest(found).rate == pytest.approx(1e-4) and gentlest(found).length.steps == 100


def test_what_is_shown_to_keep_to_the_budget_comes_before_what_is_expected_to() -> None:
    """A nat costs 0.5, give or take half of it: 0.2 is shown up to a KL of 0.267, expected up to 0.4."""
    law = BehaviourLaw(((1.0, Estimate(0.5, 0.25, 0.75)),), "hand")
    length = Length(100, 1.0)
    gentle, bold = (forecasts(law).at(rate, length) for rate in (0.25e-3, 0.35e-3))
    assert best([gentle, bold], 0.2) == gentle
    assert best([bold], 0.2) == bold
    assert best([bold], 0.17) is None


def test_the_choice_of_questions_widens_the_interval() -> None:
    """Without scatter the whole interval is that of the questions: 1.96 standard errors to each side."""
    found = forecasts(HALF, error=0.05).at(2e-4, Length(100, 1.0))
    middle = 1 - math.exp(-0.4)
    assert found.learned.low == pytest.approx(middle - 1.959964 * 0.05)
    assert found.learned.high == pytest.approx(middle + 1.959964 * 0.05)
    assert found.row()["learned"]["value"] == pytest.approx(middle)
