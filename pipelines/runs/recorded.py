"""Read what is recorded about a cycle, a run or a checkpoint."""

from __future__ import annotations

from typing import Any

from db.reads import queries
from pipelines.runs.kinds import KINDS
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError


def recorded(ws: Workspace, reference: str) -> dict[str, Any]:
    """Return everything about cycle:N, a run by its id, or a checkpoint by its id or alias."""
    db = ws.tracker.db
    if is_cycle(reference):
        return queries.cycle(db, cycle_number(reference))
    if reference.startswith(tuple(f"{kind}-" for kind in KINDS)):
        return queries.run(db, reference)
    return with_its_place(ws, queries.checkpoint(db, reference))


def with_its_place(ws: Workspace, row: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the path of its files in this home; where there are none, with its places.

    What is recorded is the path at which it was made: a home may have been moved since.
    """
    folder = ws.store.root / row["id"]
    if not folder.is_dir():
        return row | {"path": None, "places": queries.checkpoint_places(ws.tracker.db, row["id"])}
    return row if row["kind"] == "reference" else row | {"path": str(folder)}


def is_cycle(reference: str) -> bool:
    return reference.startswith("cycle:") and reference.count(":") == 1


def cycle_number(reference: str) -> int:
    digits = reference.removeprefix("cycle:")
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(f"{reference}: write cycle:N, as in cycle:1")
    return int(digits)
