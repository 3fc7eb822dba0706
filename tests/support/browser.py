"""The browser of benchmarks/dashboard/chromium.py; tests that need one are skipped where there is none."""

from __future__ import annotations

import pytest

from benchmarks.dashboard.chromium import Page, chromium, missing, serving, until

__all__ = ["Page", "chromium", "require", "serving", "until"]


def require() -> None:
    if why := missing():
        pytest.skip(why)
