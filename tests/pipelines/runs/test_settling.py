"""How long the processes of one command are waited for, once one of them has ended."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.runs import launch


@pytest.mark.parametrize(
    ("first", "other", "waited"),
    [
        (0, 0, 0),
        (100, 0, 100),  # the first one saves the last step of its training
        (0, 10, 10),
        (0, math.inf, launch.GRACE_SECONDS),
        (math.inf, 0, launch.SAVING_SECONDS),
        (10, math.inf, launch.GRACE_SECONDS),
    ],
)
def test_the_first_process_is_waited_for_longer_than_the_others(
    monkeypatch: pytest.MonkeyPatch, first: float, other: float, waited: float
) -> None:
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def child(ends: float) -> Any:
        return SimpleNamespace(poll=lambda: 0 if now >= 1000 + ends else None)

    monkeypatch.setattr(launch, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    launch._settle([child(first), child(other)])
    assert now - 1000 == pytest.approx(waited, abs=0.2)
