"""Map numbers to pixels, on linear and logarithmic axes, with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SHARE_ENDS = (0.1, 0.25, 0.5, 1.0)  # of an axis of shares


@dataclass(frozen=True)
class Scale:
    """Map numbers to pixels, on a linear or logarithmic axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    unit: float = 1.0  # in which ticks are round

    @classmethod
    def around(cls, values: Iterable[float], start: float, end: float, *, log: bool = False) -> Scale:
        """Return a scale that covers all values with a small margin; without values, 0 to 1."""
        kept = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
        low = min(kept, default=0.1 if log else 0.0)
        high = max(kept, default=1.0)
        if log:
            return cls(low / 1.1, high * 1.1 if high > low else low * 10, start, end, True)
        room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
        return cls(low - room if low != 0 else 0.0, high + room, start, end)

    @classmethod
    def around_shares(cls, values: Iterable[float | None], start: float, end: float) -> Scale:
        """Return a scale over the part of 0 to 1 that the values need."""
        kept = [value for value in values if value is not None]
        low, high = min(kept, default=0.0), max(kept, default=1.0)
        room = max(0.02, 0.08 * (high - low))
        return cls(max(-0.02, low - room), min(1.02, high + room), start, end)

    @classmethod
    def from_zero(cls, shares: Iterable[float | None], start: float, end: float) -> Scale:
        """Return a scale of shares from 0 to the first round end that none exceeds."""
        highest = max((share for share in shares if share is not None), default=1.0)
        return cls(0.0, next((one for one in SHARE_ENDS if highest <= one), 1.0), start, end)

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value = math.log10(max(value, 1e-300))
            low = math.log10(low)
            high = math.log10(high)
        share = (value - low) / ((high - low) or 1.0)
        return round(self.start + share * (self.end - self.start), 1)

    def clamped(self, value: float) -> float:
        """Return the pixel of the value, or of the end of the axis that it lies beyond."""
        return self(min(self.high, max(self.low, value)))

    def holds(self, value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round tick values within the scale."""
        if self.log:
            found = _decades(self.low, self.high)
            if len(found) >= 2:
                return found
        step = self.unit * _round_step((self.high - self.low) / self.unit / max(count, 1))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [place * step for place in range(first, last + 1) if place * step > 0 or not self.log]


def _decades(low: float, high: float) -> list[float]:
    exponents = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    every = max(1, math.ceil(len(exponents) / 7))
    found = [10.0**e for e in exponents][::every]
    if len(found) < 3:
        found = [
            m * 10.0**e
            for e in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for m in (1, 2, 5)
            if low <= m * 10.0**e <= high
        ]
    return found


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return positions close to `wanted`, at least `gap` apart, between low and high.

    They are in the order of `wanted`; those that lie within about a gap are as they were given."""
    order = sorted(range(len(wanted)), key=lambda i: round(wanted[i] / gap))
    places = [0.0] * len(wanted)
    last = low - gap
    for i in order:
        places[i] = last = max(wanted[i], last + gap)
    edge = high + gap
    for i in reversed(order):
        places[i] = edge = min(places[i], edge - gap)
    return [round(place, 1) for place in places]
