"""How an attack may end otherwise than by its evidence."""

from __future__ import annotations


class NotHeld(Exception):
    """A promise that was broken; the message is the evidence, and names the input."""


class LeftOut(Exception):
    """An attack that this machine cannot run."""
