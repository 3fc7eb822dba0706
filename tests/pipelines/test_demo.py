"""A demo: its budget counts what its cycles took, and its key finds it again after an upgrade."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from db.reads import queries
from pipelines import demo
from pipelines.config.jobs import DemoJob, RealDemo
from pipelines.runs.workspace import Workspace
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


def test_a_setting_that_a_later_version_adds_leaves_an_unfinished_demo_its_key(tmp_path: Path) -> None:
    asked = RealDemo(model="org/model")
    with Workspace.open(tmp_path) as ws:
        key = demo.resumable_key(ws, DemoJob(cycles=1, real=asked))
        assert demo.resumable_key(ws, LaterDemo(cycles=1, real=asked)) == key
        others = (DemoJob(cycles=3, real=asked), DemoJob(cycles=1, seed=1, real=asked), DemoJob(cycles=1))
        assert key not in {demo.resumable_key(ws, other) for other in others}


def test_a_demo_that_an_earlier_version_began_keeps_its_key(tmp_path: Path) -> None:
    job = DemoJob(cycles=1, real=RealDemo())
    with Workspace.open(tmp_path) as ws:
        before = "demo:" + hashlib.sha256(job.model_dump_json().encode()).hexdigest()[:16]
        assert demo.resumable_key(ws, job) != before
        ws.tracker.start_run("demo", key=before)
        assert demo.resumable_key(ws, job) == before
