"""Choose rate and length of a midtraining within a budget of behaviour, by curves of KL and knowledge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import special

from pipelines.knowledge.forecast import CONFIDENCE, LossPerKL
from pipelines.piloting.rate_curves import Curve, Estimate
from recovery.counted import counted

RATES, LENGTHS = 9, 8  # of the grid: between the two rates measured, and in parts of the whole length


@dataclass(frozen=True)
class BehaviourLaw:
    """Share of behaviour lost at a KL to the clean model: straight lines from the origin through the knots.

    Beyond the last knot the last one's proportion goes on.
    """

    knots: tuple[tuple[float, Estimate], ...]  # KL, and the loss there
    source: str

    def loss(self, kl: Estimate) -> Estimate:
        """Return the loss at a KL; both intervals count in full.

        The lines need not rise throughout: the least and the most may lie at a knot within the interval."""
        within = [kl.low, *(knot for knot, _ in self.knots if kl.low < knot < kl.high), kl.high]
        return Estimate(
            self._read(kl.value, lambda loss: loss.value),
            min(self._read(place, lambda loss: loss.low) for place in within),
            max(self._read(place, lambda loss: loss.high) for place in within),
        )

    def _read(self, kl: float, bound: Callable[[Estimate], float]) -> float:
        places = [0.0, *(knot for knot, _ in self.knots)]
        values = [0.0, *(bound(loss) for _, loss in self.knots)]
        beyond = max(1.0, kl / places[-1])
        return max(-1.0, min(1.0, beyond * float(np.interp(kl, places, values))))

    def row(self) -> dict[str, Any]:
        knots = [{"kl": kl, "behaviour_lost": loss.row()} for kl, loss in self.knots]
        return {"source": self.source, "knots": knots}


def of_cycles(law: LossPerKL) -> BehaviourLaw | None:
    """Take the loss as proportional to the KL, as in earlier cycles; None where they show no loss.

    Cycles that lost nothing, such as gentler ones, do not show that a nat costs nothing."""
    if law.slopes is None or law.slopes[1] <= 0:
        return None
    return BehaviourLaw(((1.0, Estimate(*law.slopes)),), counted(len(law.points), "earlier cycle"))


def of_checkpoints(measured: Sequence[tuple[float, Estimate]], prompts: int) -> BehaviourLaw | None:
    """Read the loss between checkpoints whose KL and loss were measured; None if none has moved."""
    moved = sorted((one for one in measured if one[0] > 0), key=lambda one: one[0])
    if not moved:
        return None
    asked = f"{counted(prompts, 'prompt')} asked of {counted(len(moved), 'checkpoint')} of the pilot"
    return BehaviourLaw(tuple(moved), asked)


@dataclass(frozen=True)
class Forecasts:
    """The two curves, the law of behaviour, and the error of knowledge by the choice of questions."""

    kl: Curve
    learned: Curve
    law: BehaviourLaw
    questions_error: float

    def at(self, rate: float, length: Length) -> Candidate:
        kl, learned = self.kl.at(rate, length.passes), self.learned.at(rate, length.passes)
        return Candidate(rate, length, kl, self._with_questions(learned), self.law.loss(kl))

    def _with_questions(self, learned: Estimate) -> Estimate:
        """Widen the interval by the error that the choice of questions adds, independent of the curve's."""
        other = float(special.ndtri((1 + CONFIDENCE) / 2)) * self.questions_error
        low = learned.value - math.hypot(learned.value - learned.low, other)
        high = learned.value + math.hypot(learned.high - learned.value, other)
        return Estimate(learned.value, max(0.0, low), min(1.0, high))


@dataclass(frozen=True)
class Length:
    """The length of a midtraining: its steps, and the passes over the documents at the full rate."""

    steps: int
    passes: float


@dataclass(frozen=True)
class Candidate:
    """A rate and a length, and what is expected of them."""

    rate: float
    length: Length
    kl: Estimate
    learned: Estimate  # share of what was unknown
    loss: Estimate  # of behaviour, as a share

    def row(self) -> dict[str, Any]:
        return {
            "rate": self.rate,
            "steps": self.length.steps,
            "passes": self.length.passes,
            "kl": self.kl.row(),
            "learned": self.learned.row(),
            "behaviour_lost": self.loss.row(),
        }


def candidates(
    forecasts: Forecasts, rates: tuple[float, float], lengths: Sequence[Length]
) -> list[Candidate]:
    """Return every rate of the grid at every length."""
    return [forecasts.at(float(rate), length) for rate in np.geomspace(*rates, RATES) for length in lengths]


def best(found: Sequence[Candidate], budget: float) -> Candidate | None:
    """Return the candidate that learns most of those shown to keep to the budget, by the end of the interval.

    Where none is shown, those count that are expected to; None if none is."""
    shown = [one for one in found if one.loss.high <= budget]
    expected = [one for one in found if one.loss.value <= budget]
    return max(shown or expected, key=lambda one: (one.learned.value, -one.loss.value), default=None)


def gentlest(found: Sequence[Candidate]) -> Candidate:
    return min(found, key=lambda one: (one.loss.value, one.kl.value))
