"""The stages of a cycle, from settings to recorded results; `Home` runs them from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.home import Home as Home


def __getattr__(name: str) -> Any:
    """Import `Home` at its first use, so that importing one room loads no other."""
    if name != "Home":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pipelines.home import Home

    return Home
