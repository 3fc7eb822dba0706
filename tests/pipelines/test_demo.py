"""A demo: its budget counts what its cycles took, and its key finds it again after an upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from db.reads import queries
from pipelines import demo
from pipelines.config.jobs import DemoJob, RealDemo
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


class LaterDemo(DemoJob):
    """The job as a later version has it, with one more setting."""

    added: int = 1


def test_a_setting_that_a_later_version_adds_leaves_an_unfinished_demo_its_key() -> None:
    asked = RealDemo(model="org/model")
    key = demo.resumable_key(DemoJob(cycles=1, real=asked))
    assert demo.resumable_key(LaterDemo(cycles=1, real=asked)) == key
    others = (DemoJob(cycles=3, real=asked), DemoJob(cycles=1, seed=1, real=asked), DemoJob(cycles=1))
    assert key not in set(map(demo.resumable_key, others))
