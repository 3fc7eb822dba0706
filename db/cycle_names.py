"""Name a cycle's stages, axes and broken-off states, in the order shown; imports no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

STAGES = ("clean", "midtrained", "recovered")
AXES = ("behaviour", "knowledge", "retention", "updates")
BROKEN_OFF = ("failed", "stopped")  # states of a run that did not come to its end
GIVEN_UP = "given up"  # how the reason begins of a run that is never resumed


def is_given_up(row: Mapping[str, Any]) -> bool:
    """Return whether a run, or that of a cycle, is never resumed."""
    return str(row.get("error")).startswith(GIVEN_UP)


def without(numbers: Sequence[int]) -> str:
    """Name, behind a model, cycles in use that it lacks: ", without cycle 4 (accepted or approved)"."""
    if not numbers:
        return ""
    *before, last = map(str, numbers)
    named = f"cycles {', '.join(before)} and {last}" if before else f"cycle {last}"
    return f", without {named} (accepted or approved)"
