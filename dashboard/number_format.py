"""Format numbers, durations and moments for display."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from db.values import seconds_since
from evals.scores import bound_in_points

NONE = "–"


def share(value: float | None, digits: int = 1) -> str:
    """Format a share in percent: 0.987 -> 98.7."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """Format a share with its unit: 0.987 -> 98.7 %."""
    return NONE if value is None else f"{share(value, digits)} %"


def bounds(ends: Sequence[float | None] | None, between: str = "–") -> str:
    """Format the ends of an interval in percent: 0.62, 0.7 -> 62.0–70.0; nothing where one is not known."""
    low, high = ends or (None, None)
    return "" if low is None or high is None else f"{share(low)}{between}{share(high)}"


def points(value: float | None) -> str:
    """Format a difference of shares in signed percentage points: -0.012 -> −1.2."""
    return NONE if value is None else f"{100 * value:+.1f}".replace("-", "−")


def bound(value: float | None, margin: float | None) -> str:
    """Format a bound in points, with as many digits as tell it from minus the margin."""
    if value is None or margin is None:
        return points(value)
    return bound_in_points(value, margin).replace("-", "−")


def limit(margin: float | None) -> str:
    """Format what a bound must exceed, minus the margin, with all its digits: 0.0325 -> −3.25."""
    if margin is None:
        return NONE
    digits = len(f"{100 * margin:g}".partition(".")[2])
    return f"{-100 * margin:+.{max(1, digits)}f}".replace("-", "−")


def count(value: float | None) -> str:
    """Format a count: 53_000 -> 53 k."""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:  # 999,700 rounds to 1 M
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """Format bytes: 1_100_000_000 -> 1.1 GB."""
    shown = count(value)
    return shown if value is None else f"{shown}B" if " " in shown else f"{shown} B"


def duration(seconds: float | None) -> str:
    """Format seconds: 4000 -> 1 h 07 min."""
    if seconds is None:
        return NONE
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def moment(at: str | None) -> str:
    """Format a timestamp: 2026-11-20T08:21:07.123Z -> 2026-11-20 08:21 UTC."""
    return NONE if not at else f"{at[:16].replace('T', ' ')} UTC"


def number(value: float | None) -> str:
    """Format with a few significant digits: 12.3 k, 0.0012, 3e-07."""
    if value is None or not math.isfinite(value):
        return NONE
    size, unit = _unit(abs(value))
    digits = ".4g" if value == 0 or abs(value) >= 1e-4 else ".1e"
    return f"{value / size:{digits}}{unit}".replace("-", "−")


def alike(values: Sequence[float]) -> Callable[[float], str]:
    """Return a format of an axis's ticks, all in the unit of the largest: 0, 5 k, 10 k."""
    size, unit = _unit(max(map(abs, values), default=0.0))
    if not unit:
        return number
    return lambda value: f"{value / size:.4g}{unit}".replace("-", "−") if value else "0"


def _unit(value: float) -> tuple[float, str]:
    """Return the size and the name of the unit in which a number is written; 9999.7 rounds to 10 k."""
    units = ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k"))
    return next(((size, name) for least, size, name in units if value >= least * 0.99995), (1.0, ""))


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit of an axis up to so many seconds, in seconds, and its name."""
    units = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
    return next((unit for unit in units if seconds >= unit[0]), (1.0, "s"))


def short_duration(seconds: float) -> str:
    """Format seconds in one unit: 90 -> 1.5 min."""
    size, unit = time_unit(abs(seconds))
    return f"{seconds / size:.3g} {unit}"


def ago(at: str) -> str:
    return f"{duration(max(0.0, seconds_since(at)))} ago"
