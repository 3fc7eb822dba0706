"""Curves of rate and length: exact on exact points, and the interval holds as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.piloting.rate_curves import FEWEST, Curve, Estimate, Kind, Point, fit, too_poor

RATES = (1e-4, 4e-4)
PASSES = tuple(0.3 * n for n in range(1, 11))
KINDS: list[Kind] = ["kl", "learned"]


def law(kind: Kind, truth: tuple[float, float, float], rate: float, passes: float, noise: float = 0) -> float:
    a, b, c = truth
    power = math.exp(a + noise) * rate**b * passes**c
    return power if kind == "kl" else 1 - math.exp(-power)


def drawn(
    kind: Kind, truth: tuple[float, float, float], rng: np.random.Generator, sd: float, correlation: float = 0
) -> list[Point]:
    """Points with noise on the linear scale, each correlated with the one before."""
    points = []
    for rate in RATES:
        noise = 0.0
        for number, passes in enumerate(PASSES):
            fresh = sd * float(rng.standard_normal())
            share = correlation if number else 0.0
            noise = share * noise + math.sqrt(1 - share**2) * fresh
            points.append(Point(rate, passes, law(kind, truth, rate, passes, noise)))
    return points


def fitted(points: list[Point], kind: Kind) -> Curve:
    found = fit(points, kind)
    assert found is not None
    return found


def test_a_fit_by_hand() -> None:
    """KL = 1000 r s^(1/2): 0.1 and 0.4 after one pass, twice that after four."""
    points = [Point(r, s, 1000 * r * math.sqrt(s)) for r in RATES for s in (1.0, 2.0, 4.0)]
    curve = fitted(points, "kl")
    assert curve.parameters == pytest.approx([math.log(1000), 1.0, 0.5], abs=1e-9)
    assert curve.at(2e-4, 9.0).value == pytest.approx(0.6)
    assert curve.variance == pytest.approx(0, abs=1e-20)


def test_the_interval_by_hand() -> None:
    """Residuals +d −d −d +d at four corners of a square: the fit is the plane, s² = 4 d² / (4 − 3)."""
    d, e = 0.1, math.e
    corners = [(1.0, 1.0, d), (1.0, e, -d), (e, 1.0, -d), (e, e, d)]
    middle = [(1.0, math.sqrt(e), 0.0), (e, math.sqrt(e), 0.0)]
    points = [Point(r, s, math.exp(noise)) for r, s, noise in sorted([*corners, *middle])]
    curve = fitted(points, "kl")
    assert curve.parameters == pytest.approx([0, 0, 0], abs=1e-12)
    assert curve.variance == pytest.approx(4 * d * d / 3)
    # The residuals of a training are (d, 0, −d) and (−d, 0, d): their neighbours' products are 0.
    assert curve.freedom == 3
    centre = curve.at(math.sqrt(e), math.sqrt(e))  # 1/6 of s² by the mean, and s² of a new point
    half = 3.182446 * math.sqrt(4 * d * d / 3 * (1 + 1 / 6))
    assert (math.log(centre.low), math.log(centre.high)) == pytest.approx((-half, half), abs=1e-5)
    assert curve.spread(math.sqrt(e), math.sqrt(e)) == pytest.approx(math.exp(2 * half), rel=1e-5)


def test_correlated_points_are_worth_fewer() -> None:
    """A slow wave around the line: neighbours agree, so that forty points count as fewer than ten."""
    fast = [Point(r, s, math.exp(0.1 * (-1) ** s)) for r in (1.0, 2.0) for s in range(1, 21)]
    assert fitted(fast, "kl").freedom == 40 - 3  # they alternate: no more than all points count
    slow = [Point(r, s, math.exp(0.1 * math.sin(s / 3))) for r in (1.0, 2.0) for s in range(1, 21)]
    assert fitted(slow, "kl").freedom < 40 / 4 - 3


@pytest.mark.parametrize("kind", KINDS)
@given(
    a=st.floats(-1, 1, allow_subnormal=False),
    b=st.floats(0.01, 1.5),
    c=st.floats(0.1, 1.2),
    sd=st.floats(0.01, 0.3),
    seed=st.integers(0, 2**32 - 1),
)
def test_parameters_lie_within_their_errors(
    kind: Kind, a: float, b: float, c: float, sd: float, seed: int
) -> None:
    """Six standard errors: no draw of thousands should fall outside."""
    truth = (a - b * math.log(2e-4), b, c)
    if law(kind, truth, RATES[1], PASSES[-1], 4 * sd) > 0.999 and kind == "learned":
        return  # learned to the last digit: no place on the scale
    curve = fitted(drawn(kind, truth, np.random.default_rng(seed), sd), kind)
    errors = np.sqrt(np.diag(curve.covariance))
    assert (np.abs(curve.parameters - np.array(truth)) < 6 * errors + 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.88)])
def test_the_interval_covers_as_often_as_it_says(kind: Kind, correlation: float, least: float) -> None:
    truth, rng = (math.log(0.5) - 0.7 * math.log(2e-4), 0.7, 0.6), np.random.default_rng(5)
    inside, place = 0, (2e-4, 2.5)
    for _ in range(400):
        bounds = fitted(drawn(kind, truth, rng, 0.1, correlation), kind).at(*place)
        new = law(kind, truth, *place, 0.1 * float(rng.standard_normal()))
        inside += bounds.low <= new <= bounds.high
    assert least <= inside / 400 <= 0.99


def test_too_little_to_fit() -> None:
    flat = [Point(r, s, 0.0) for r in RATES for s in PASSES]  # nothing moved
    assert fit(flat, "kl") is None and fit(flat, "learned") is None
    one = [Point(1e-4, s, 0.1 * s) for s in PASSES]
    assert fit(one, "kl") is None  # one rate says nothing about rates
    assert fit([*one, Point(4e-4, 1.0, 0.4)], "kl") is None
    same = [Point(r, 1.0, r) for r in RATES for _ in range(FEWEST)]
    assert fit(same, "kl") is None  # one length says nothing about lengths
    assert "fewer than 3 points" in str(too_poor(None, 1e-4, 1.0))


def test_a_curve_that_scatters_is_too_poor_to_read() -> None:
    rng, truth = np.random.default_rng(0), (math.log(0.5), 0.0, 0.6)
    good = fitted(drawn("kl", truth, rng, 0.05), "kl")
    assert too_poor(good, RATES[1], 3.0) is None
    wild = fitted(drawn("kl", truth, rng, 1.5), "kl")
    assert "times its lower one (at most 4)" in str(too_poor(wild, RATES[1], 3.0))


def test_an_estimate_keeps_its_order() -> None:
    assert Estimate(1, 0, 2).through(lambda x: x / 2) == Estimate(0.5, 0, 1)
    assert Estimate(1, 0, 2).row() == {"value": 1, "low": 0, "high": 2}
