"""Write a number with its noun."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 step, 2,000 steps."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: float, noun: str) -> str:
    """Return a noun as it stands behind a number: step, steps."""
    return noun if number == 1 else f"{noun}s"
