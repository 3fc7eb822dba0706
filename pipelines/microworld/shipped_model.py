"""Locate the small clean model that ships with the package."""

from __future__ import annotations

from pathlib import Path

MICROWORLD = "microworld"  # its name in recover.yaml


def shipped_model() -> Path:
    return Path(__file__).parent / "checkpoint"


def place_of(model: str) -> str:
    """Return where to look for a model of recover.yaml: the shipped one has a name alone."""
    return str(shipped_model()) if model == MICROWORLD else model
