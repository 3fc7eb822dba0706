"""Say how an extra of this project is installed, for errors that name a missing package."""

from __future__ import annotations


def to_install(extra: str) -> str:
    """Return where and by which command an extra is installed."""
    return f"in the checkout: .venv/bin/pip install --constraint requirements.lock --editable '.[{extra}]'"
