"""Every test of the core tries its models itself: no trial that another test's model passed is remembered."""

from __future__ import annotations

import pytest

from recovery.forward import passed_trials


@pytest.fixture(autouse=True)
def no_trial_yet_passed() -> None:
    passed_trials._passed.clear()
