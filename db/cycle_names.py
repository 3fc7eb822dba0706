"""Name a cycle's stages, axes and broken-off states, in the order shown; imports no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGES = ("clean", "midtrained", "recovered")
AXES = ("behaviour", "knowledge", "retention", "updates")
BROKEN_OFF = ("failed", "stopped")  # states of a run that did not come to its end
GIVEN_UP = "given up"  # how the reason begins of a run that is never resumed


def is_given_up(row: Mapping[str, Any]) -> bool:
    """Return whether a run, or that of a cycle, is never resumed."""
    return str(row.get("error")).startswith(GIVEN_UP)
