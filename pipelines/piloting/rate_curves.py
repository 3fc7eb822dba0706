"""Fit how the KL to the clean model and knowledge grow with learning rate and length of a midtraining.

Both are taken as power laws of the rate r and of the length s, in passes over the documents at the full rate:

    KL      = e^a · r^b · s^c
    learned = 1 − exp(−e^a · r^b · s^c)      share of what was unknown before

So log KL, and log(−log(1 − learned)), are linear in log r and log s: three parameters each, by least squares.
Points of one training follow each other closely. The lag-1 correlation of the residuals within a training
says how many independent points they are worth, and the interval is Student's t of so many. It is that of a
new measurement: the uncertainty of the curve and the scatter around it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from pipelines.knowledge.forecast import CONFIDENCE

Floats = NDArray[np.float64]
Kind = Literal["kl", "learned"]
PARAMETERS = 3
FEWEST = 3  # points of each training
WIDEST = 4.0  # most that the interval's upper bound may be, as a multiple of its lower bound
MOST_CORRELATION = 0.9
LARGEST_EXPONENT = 700.0  # little more, and the exponential is no number


@dataclass(frozen=True)
class Point:
    """A value measured along a training: at which rate, after how many passes at the full rate."""

    rate: float
    passes: float
    value: float


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def through(self, change: Callable[[float], float]) -> Estimate:
        """Return the estimate after a change that keeps the order."""
        return Estimate(change(self.value), change(self.low), change(self.high))

    def row(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Curve:
    """A fitted power law: its parameters, their covariance, and the scatter of points around it."""

    kind: Kind
    parameters: Floats  # a, b, c
    covariance: Floats
    variance: float  # of one measurement, on the linear scale
    freedom: float  # degrees of freedom, for correlated points

    def at(self, rate: float, passes: float) -> Estimate:
        """Estimate a new measurement at this rate and length."""
        return self._linear(rate, passes).through(FROM_LINEAR[self.kind])

    def spread(self, rate: float, passes: float) -> float:
        """Return how many times the lower bound of the power law the upper one is."""
        bounds = self._linear(rate, passes)
        return _exponential(bounds.high - bounds.low)

    def _linear(self, rate: float, passes: float) -> Estimate:
        place = np.array([1.0, math.log(rate), math.log(passes)])
        value = float(place @ self.parameters)
        variance = float(place @ self.covariance @ place) + self.variance
        half = float(special.stdtrit(self.freedom, (1 + CONFIDENCE) / 2)) * math.sqrt(variance)
        return Estimate(value, value - half, value + half)

    def row(self) -> dict[str, float]:
        """Return the parameters with their standard errors."""
        errors = np.sqrt(np.diag(self.covariance))
        names = ("log_scale", "rate_exponent", "length_exponent")
        found = {name: float(value) for name, value in zip(names, self.parameters, strict=True)}
        found |= {f"{name}_error": float(error) for name, error in zip(names, errors, strict=True)}
        return found | {"residual": math.sqrt(self.variance), "degrees_of_freedom": self.freedom}


def fit(points: Sequence[Point], kind: Kind) -> Curve | None:
    """Fit the law to points of two trainings or more, each in its order; None for too few usable points."""
    runs: dict[float, list[Point]] = defaultdict(list)
    for point in points:
        if usable(point, kind):
            runs[point.rate].append(point)
    if len(runs) < 2 or any(len(run) < FEWEST for run in runs.values()):
        return None
    used = [point for run in runs.values() for point in run]
    design = np.array([[1.0, math.log(point.rate), math.log(point.passes)] for point in used])
    values = np.array([TO_LINEAR[kind](point.value) for point in used])
    parameters, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    if rank < PARAMETERS:
        return None
    residuals = values - design @ parameters
    redundancy = _redundancy(residuals, [len(run) for run in runs.values()])
    variance = float(residuals @ residuals) / (len(used) - PARAMETERS)
    return Curve(
        kind=kind,
        parameters=parameters,
        covariance=np.linalg.inv(design.T @ design) * variance * redundancy,
        variance=variance,
        freedom=max(1.0, len(used) / redundancy - PARAMETERS),
    )


def usable(point: Point, kind: Kind) -> bool:
    """Return whether a point has a place on the linear scale: something was moved, and not all learned."""
    return point.passes > 0 and 0 < point.value < (math.inf if kind == "kl" else 1.0)


def too_poor(curve: Curve | None, rate: float, passes: float) -> str | None:
    """Return why nothing should be read off the curve at this place; None if it is good enough."""
    if curve is None:
        return f"fewer than {FEWEST} points of a training show any change"
    spread = curve.spread(rate, passes)
    if not spread <= WIDEST:
        return f"the interval's upper bound is {spread:.3g} times its lower one (at most {WIDEST:g})"
    return None


def _redundancy(residuals: Floats, lengths: Sequence[int]) -> float:
    """Return how many correlated points are worth one independent point: (1 + r) / (1 − r)."""
    runs = np.split(residuals, np.cumsum(lengths)[:-1])
    together = sum(float(run[1:] @ run[:-1]) for run in runs)
    total = float(residuals @ residuals)
    correlation = min(max(together / total, 0.0), MOST_CORRELATION) if total else 0.0
    return (1 + correlation) / (1 - correlation)


def _learned(linear: float) -> float:
    return -math.expm1(-_exponential(linear))


def _unlearned(learned: float) -> float:
    return math.log(-math.log1p(-learned))


def _exponential(linear: float) -> float:
    return math.exp(min(linear, LARGEST_EXPONENT))


TO_LINEAR: dict[Kind, Callable[[float], float]] = {"kl": math.log, "learned": _unlearned}
FROM_LINEAR: dict[Kind, Callable[[float], float]] = {"kl": _exponential, "learned": _learned}
