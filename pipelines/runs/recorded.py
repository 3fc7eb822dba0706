"""Read what is recorded about a cycle, a run or a checkpoint."""

from __future__ import annotations

from typing import Any

from db.errors import NotFound
from db.reads import queries
from db.session import Database
from pipelines.runs.kinds import KINDS
from recovery.errors import InputError


def recorded(db: Database, reference: str) -> dict[str, Any]:
    """Return everything about cycle:N, a run by its id, or a checkpoint by its id or alias."""
    if is_cycle(reference):
        return queries.cycle(db, cycle_number(reference))
    if reference.startswith(tuple(f"{kind}-" for kind in KINDS)):
        return queries.run(db, reference)
    try:
        return queries.checkpoint(db, reference)
    except NotFound as error:
        if reference.isdecimal():
            raise InputError(
                f"no checkpoint is named {reference}: write cycle:{reference} for a cycle"
            ) from error
        raise


def is_cycle(reference: str) -> bool:
    return reference.startswith("cycle:") and reference.count(":") == 1


def cycle_number(reference: str) -> int:
    digits = reference.removeprefix("cycle:")
    if not (digits.isascii() and digits.isdigit()):
        raise InputError(f"{reference}: write cycle:N, as in cycle:1")
    return int(digits)
