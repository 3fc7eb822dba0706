"""Every test of the core tries its models itself, but where it only samples: no passed trial is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recovery.forward import passed_trials

SAMPLING = ("engines", "sampling")  # rooms whose tests are about what comes after a trial


@pytest.fixture(autouse=True)
def no_trial_yet_passed(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name in SAMPLING:
        yield
        return
    passed_trials._passed.clear()
    yield
    passed_trials._passed.clear()
