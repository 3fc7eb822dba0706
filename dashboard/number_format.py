"""Format numbers, durations and moments for display."""

from __future__ import annotations

from db.writes.values import seconds_since

NONE = "–"


def share(value: float | None, digits: int = 1) -> str:
    """Format a share in percent: 0.987 -> 98.7."""
    return NONE if value is None else f"{100 * value:.{digits}f}"


def points(value: float | None) -> str:
    """Format a difference of shares in signed percentage points: -0.012 -> −1.2."""
    return NONE if value is None else f"{100 * value:+.1f}".replace("-", "−")


def count(value: float | None) -> str:
    """Format a count: 53_000 -> 53 k."""
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


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
    """Format a timestamp: 2026-11-20T08:21:07.123Z -> 2026-11-20 08:21."""
    return NONE if not at else at[:16].replace("T", " ")


def ago(at: str) -> str:
    return f"{duration(max(0.0, seconds_since(at)))} ago"
