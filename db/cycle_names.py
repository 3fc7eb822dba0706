"""Name a cycle's stages, suites, axes, broken-off states and documents; imports no SQLAlchemy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

STAGES = ("clean", "midtrained", "recovered")
IFEVAL, KNOWLEDGE, RETENTION, UPDATES = "ifeval", "knowledge", "retention", "updates"  # suites
AXES = ("behaviour", KNOWLEDGE, RETENTION, UPDATES)
NOT_MEASURED = "not measured"  # the outcome of an axis without scores
ENDED = ("accepted", "rejected")  # states of a cycle that came to its end
BROKEN_OFF = ("failed", "stopped")  # states of a run that did not come to its end
NAMED = "named:"  # how the key begins of a run that was named (`recover cycle --name`)
GIVEN_UP = "given up"  # how the reason begins of a run that is never resumed


def is_given_up(row: Mapping[str, Any]) -> bool:
    """Return whether a run, or that of a cycle, is never resumed."""
    return str(row.get("error")).startswith(GIVEN_UP)


def given_name(key: str | None) -> str | None:
    """Return the name that a cycle was given, of its run's key."""
    return key.removeprefix(NAMED) if key and key.startswith(NAMED) else None


def may_go_on(cycle: Mapping[str, Any]) -> bool:
    """Return whether a cycle may still be measured and judged: it has not ended, and was not given up."""
    return cycle["status"] not in ENDED and not is_given_up(cycle)


def shown_axes(verdict: Mapping[str, Any]) -> list[str]:
    """Return the axes of a verdict, updates only if measured, and then its families and tasks."""
    measured = verdict.get(UPDATES, NOT_MEASURED) != NOT_MEASURED
    names = (*AXES, *other_axes(verdict))
    return [name for name in names if name in verdict and (name != UPDATES or measured)]


def other_axes(verdict: Mapping[str, Any] | None) -> list[str]:
    """Return the families and tasks that a verdict, if there is one, judges."""
    return [name for name in (verdict or {}).get("axes", {}) if name not in AXES]


def short_folder(path: str) -> str:
    """Return the end of a folder's path, by which a cycle's documents are known: …/project/february."""
    parts = PurePath(path).parts
    return path if len(parts) <= 3 else "/".join(("…", *parts[-2:]))


def without(numbers: Sequence[int]) -> str:
    """Name, behind a model, cycles in use that it lacks: ", without cycle 4 (accepted or approved)"."""
    if not numbers:
        return ""
    *before, last = map(str, numbers)
    named = f"cycles {', '.join(before)} and {last}" if before else f"cycle {last}"
    return f", without {named} (accepted or approved)"
