"""How an attack may end otherwise than by its evidence."""

from __future__ import annotations

from collections import Counter

FEW = 40  # inputs: of fewer none may get through by chance


class NotHeld(Exception):
    """A promise that was broken; the message is the evidence, and names the input."""


class LeftOut(Exception):
    """An attack that this machine cannot run."""


def require_some(ends: Counter[str], good: str) -> None:
    """Raise NotHeld where no input of many ended well: what refuses everything was not attacked."""
    if ends.total() >= FEW and not ends[good]:
        raise NotHeld(f"of {ends.total():,} inputs none ended as {good}: nothing was attacked")
