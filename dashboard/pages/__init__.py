"""List the pages in the order of the navigation (see dashboard/README.md)."""

from __future__ import annotations

from types import ModuleType

from dashboard.pages import (
    behaviour,
    compare,
    curves,
    cycle,
    cycles,
    export,
    families,
    knowledge,
    locate,
    methods,
    samples,
    tokens,
)

PAGES: tuple[ModuleType, ...] = (
    cycles,
    cycle,
    behaviour,
    families,
    samples,
    tokens,
    curves,
    compare,
    methods,
    knowledge,
    locate,
    export,
)
