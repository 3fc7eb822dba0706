"""Locate the small clean model that ships with the package."""

from __future__ import annotations

from pathlib import Path


def shipped_model() -> Path:
    return Path(__file__).parent / "checkpoint"
