"""The budget of a demo counts what its cycles took, whether or not it was interrupted between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.reads import queries
from pipelines import demo
from pipelines.config.jobs import DemoJob
from tests.support.small_cycles import make_home


@pytest.mark.parametrize(
    ("minutes", "over"),
    [(None, False), (29.9, True), (30.1, False)],  # two cycles of 8 and 12 minutes: a third makes 30
)
def test_another_cycle_has_to_fit_beside_those_that_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, over: bool
) -> None:
    seconds = {1: 8 * 60.0, 2: 12 * 60.0}
    monkeypatch.setattr(queries, "cycle", lambda _, number, **__: {"cost": {"seconds": seconds[number]}})
    with make_home(tmp_path) as ws:
        assert demo._over_budget(ws, DemoJob(cycles=5, minutes_budget=minutes), [1, 2]) is over
