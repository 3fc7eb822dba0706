"""Answered questions of a suite, as an evaluation gives them."""

from __future__ import annotations

from evals.scores import Item


def items(passed: str) -> list[Item]:
    """Answers that pass (p) or fail (f)."""
    return [Item(str(key), "", "", letter == "p", {}) for key, letter in enumerate(passed)]
