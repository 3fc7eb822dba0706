"""What a live page looks at every few seconds: each row that it shows changes the version, metrics do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from db.reads import changes
from db.writes.tracker import Tracker
from tests.support.databases import record_metrics, record_score, score


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set the clock of all rows but heartbeats."""

    def at(second: str) -> None:
        for module in ("tracker", "transactions"):
            monkeypatch.setattr(f"db.writes.{module}.now", lambda: f"2026-01-01T00:00:{second}.000Z")

    at("00")
    return at


def changed(tracker: Tracker, work: Callable[[], object]) -> bool:
    before = changes.structure_version(tracker.db)
    work()
    return changes.structure_version(tracker.db) != before


def test_every_row_of_a_run_changes_the_version(tracker: Tracker, clock: Callable[[str], None]) -> None:
    assert changed(tracker, lambda: tracker.start_run("eval", key="one"))
    assert changed(tracker, lambda: tracker.start_run("eval", key="one"))  # goes on
    run = tracker.start_run("eval", key="one").id
    for name in ("a", "b"):
        record = partial(tracker.record_checkpoint, name, path="/c", kind="full", sha256=name)
        assert changed(tracker, record)
        assert changed(tracker, partial(tracker.set_alias, "current", name))
    assert changed(tracker, lambda: tracker.set_alias("current", "a"))
    assert changed(tracker, lambda: record_score(tracker, run, "a", score("ifeval", 0.5)))
    clock("01")
    assert changed(tracker, lambda: record_score(tracker, run, "a", score("ifeval", 0.6)))  # in its place
    assert changed(tracker, lambda: tracker.fail_run(run, "no"))
    assert changed(tracker, lambda: tracker.new_project("notes", "host:/notes"))


def test_every_row_of_a_cycle_changes_the_version(tracker: Tracker, clock: Callable[[str], None]) -> None:
    run, other = tracker.start_run("cycle").id, tracker.start_run("cycle").id
    assert changed(tracker, lambda: tracker.record_cycle(run))
    tracker.record_cycle(other)
    assert changed(tracker, lambda: tracker.record_verdicts(1, {"behaviour": {"outcome": "passed"}}))
    assert changed(tracker, lambda: tracker.add_review(1, "reject", "no", "ada"))
    clock("02")
    assert changed(tracker, lambda: tracker.record_cycle(run, status="rejected"))
    clock("03")
    assert changed(tracker, lambda: tracker.record_cycle(run, status="accepted"))
    clock("01")  # set back
    assert changed(tracker, lambda: tracker.record_cycle(other, status="accepted"))


def test_metrics_and_progress_change_what_is_live_alone(tracker: Tracker) -> None:
    run = tracker.start_run("distill").id
    tracker.finish_run(tracker.start_run("eval").id)
    assert changes.live_version(tracker.db) == [(run, "{}", False)]
    assert not changed(tracker, lambda: record_metrics(tracker, run, 1, {"loss": 1.0}))
    with tracker.live(run) as live:
        live.progress(1, 2)
        assert not changed(tracker, live.flush)
    assert changes.live_version(tracker.db) != [(run, "{}", False)]
