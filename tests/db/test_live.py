"""Metrics while training: never raised, never waited for, tried again, stored once."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from db.errors import TrackerError
from db.export import export
from db.reads import changes, curves, queries, traces
from db.session import Database
from db.writes import live as live_module
from db.writes.tracker import Tracker
from tests.support import views


def until(happened: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
    return happened()


def steps(tracker: Tracker, run_id: str, name: str = "loss") -> list[int]:
    return [row["step"] for row in curves.metric_series(tracker.db, run_id, name, points=10**6)]


def test_what_is_flushed_is_stored(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    with tracker.live(run.id) as live:
        for step in range(50):
            live.metrics(step, {"loss": 1 / (step + 1), "kl": math.nan})
        assert live.flush()
        assert steps(tracker, run.id) == list(range(50))
    assert {row["special"] for row in curves.metric_series(tracker.db, run.id, "kl")} == {"nan"}


def test_what_is_not_flushed_is_stored_at_the_end_or_soon(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    with live_module.LiveRun(tracker.db, run.id, interval=0.05) as live:
        live.metrics(1, {"loss": 1.0})
        assert until(lambda: steps(tracker, run.id) == [1])
        live.metrics(2, {"loss": 1.0})
    assert steps(tracker, run.id) == [1, 2]


def test_progress_and_life_reach_the_parents_too(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "HEARTBEAT", 0.05)
    parent = tracker.start_run("cycle")
    run = tracker.start_run("distill", parent=parent.id)
    with live_module.LiveRun(tracker.db, run.id, interval=0.02) as live:
        live.progress(3, 10, eta_seconds=7.0, message="distilling")
        live.progress(4, 10, eta_seconds=6.0, message="distilling")
        assert live.flush()
        assert queries.run(tracker.db, run.id)["progress"] == {
            "step": 4,
            "steps": 10,
            "eta_seconds": 6.0,
            "message": "distilling",
        }
        for name in (run.id, parent.id):  # without a word from the stage
            seen = queries.run(tracker.db, name)["heartbeat_at"]
            assert until(lambda: queries.run(tracker.db, name)["heartbeat_at"] > seen)  # noqa: B023


def test_a_run_without_a_sign_of_life_is_stalled(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tracker.start_run("distill")
    assert not queries.run(tracker.db, run.id)["stalled"]
    monkeypatch.setattr(changes, "STALLED_SECONDS", -1.0)
    assert queries.run(tracker.db, run.id)["stalled"]
    tracker.finish_run(run.id)
    assert not queries.run(tracker.db, run.id)["stalled"]


def test_a_clock_set_back_hides_neither_a_dead_run_nor_a_change(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = datetime.now(UTC) + timedelta(hours=2)
    text = later.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    with monkeypatch.context() as patched:
        for module in ("tracker", "transactions"):
            patched.setattr(f"db.writes.{module}.now", lambda: text)
        first, second = tracker.start_run("demo"), tracker.start_run("demo")
        tracker.finish_run(first.id)
    assert queries.run(tracker.db, second.id)["stalled"]
    before = queries.structure_version(tracker.db)
    tracker.finish_run(second.id)
    assert queries.structure_version(tracker.db) != before


def test_what_is_no_number_is_left_out(tracker: Tracker, caplog: pytest.LogCaptureFixture) -> None:
    run = tracker.start_run("distill")
    with tracker.live(run.id) as live:
        live.metrics(1, {"loss": 1.0, "note": "high", "shape": [1, 2]})
        live.metrics("last", {"loss": 1.0})  # type: ignore[arg-type]
        assert live.flush()
    assert steps(tracker, run.id) == [1] and curves.metric_names(tracker.db, run.id) == ["loss"]
    assert len(caplog.messages) == 3 and "metric 'note' at step 1 is a str" in caplog.text


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event; while it is set, nothing can be written to a database."""
    is_away, write = threading.Event(), Database.write

    def gone(self: Database, work: object) -> object:
        if is_away.is_set():
            raise TrackerError("the disk is full")
        return write(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", gone)
    return is_away


def test_a_database_that_is_away_for_a_while(
    tracker: Tracker, away: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run = tracker.start_run("distill")
    with live_module.LiveRun(tracker.db, run.id, interval=0.01) as live:
        away.set()
        for step in range(20):
            live.metrics(step, {"loss": 0.5})
            live.metrics(step, {"loss": float(step)})
        live.progress(20, 20)
        assert not live.flush()
        assert steps(tracker, run.id) == []
        away.clear()
        assert live.flush()
    assert steps(tracker, run.id) == list(range(20))
    assert curves.metric_series(tracker.db, run.id, "loss")[-1]["value"] == 19.0
    assert queries.run(tracker.db, run.id)["progress"]["step"] == 20
    assert [message for message in caplog.messages if "tried again" in message] != []
    assert "lost" not in caplog.text


def test_each_time_that_the_database_is_away_is_reported_once(
    tracker: Tracker, away: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    run = tracker.start_run("distill")
    with live_module.LiveRun(tracker.db, run.id, interval=0.01) as live:
        for step in range(2):
            away.set()
            live.metrics(step, {"loss": 1.0})
            assert not live.flush() and not live.flush()
            away.clear()
            assert until(live.flush)
    assert sum("tried again" in message for message in caplog.messages) == 2


def test_the_pause_between_tries_doubles_up_to_its_limit(tracker: Tracker) -> None:
    with live_module.LiveRun(tracker.db, tracker.start_run("distill").id, interval=1.0) as live:
        assert [live._pause(failures) for failures in (0, 1, 4, 5, 2000)] == [1.0, 2.0, 16.0, 30.0, 30.0]


def test_points_that_could_never_be_written_are_counted(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "MOST_POINTS", 5)
    with live_module.LiveRun(tracker.db, "nobody", interval=0.01) as live:  # a run that is not recorded
        for step in range(8):
            live.metrics(step, {"loss": 1.0})
        assert not live.flush()
    assert "8 metric points of run nobody could not be written and are lost" in caplog.text


def test_a_trace_of_broken_numbers_comes_back_as_it_was_and_can_be_exported(tracker: Tracker) -> None:
    run = tracker.start_run("distill").id
    broken = views.broken_trace()
    with tracker.live(run) as live:
        live.traces(1, [broken])
    found = traces.trace(tracker.db, run, 1, 0)
    assert {name: repr(one) for name, one in found["tokens"].items()} == {
        name: repr(one) for name, one in broken["tokens"].items()
    }  # as text, since no NaN equals another
    assert found["mean"] is None and traces.traces(tracker.db, run)[0]["mean"] is None
    [row] = json.loads(b"".join(export(tracker.db, "traces", "json")))
    assert row["tokens"]["divergence"] == [0.1, "nan", "inf"]


def test_traces_that_could_never_be_written_are_bounded_and_counted(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live_module, "MOST_TRACES", 5)
    with live_module.LiveRun(tracker.db, "nobody", interval=10.0) as live:  # a run that is not recorded
        for step in range(4):
            live.traces(step, [{"prompt": "x" * 1000}] * 2)
            live.metrics(step, {"loss": 1.0})
        assert not live.flush()
        assert list(live._waiting.traces) == [(1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]  # the newest
    assert "4 metric points and 8 token traces of run nobody could not be written and are lost" in caplog.text


def test_a_failed_write_lets_no_more_wait_than_may(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was logged while a write was under way waits together with what that write could not store."""
    monkeypatch.setattr(live_module, "MOST_POINTS", 5)
    run, writing, let_fail = tracker.start_run("distill"), threading.Event(), threading.Event()

    def gone(self: Database, work: object) -> object:
        writing.set()
        let_fail.wait(20)
        raise TrackerError("the server is away")

    with monkeypatch.context() as patched:
        patched.setattr(Database, "write", gone)
        live = live_module.LiveRun(tracker.db, run.id, interval=10.0)
        for step in range(4):
            live.metrics(step, {"loss": 1.0})
        live.flush(timeout=0.01)
        assert writing.wait(20)
        for step in range(4, 8):
            live.metrics(step, {"loss": 1.0})
        let_fail.set()
        assert not live.flush()
        assert len(live._waiting.points) <= 5
        live.close()


def test_logging_does_not_wait_for_a_slow_database(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run, write = tracker.start_run("distill"), Database.write
    answers, written = threading.Event(), list[object]()

    def slow(self: Database, work: object) -> object:
        if not written:
            answers.wait(20)
        written.append(work)
        return write(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", slow)
    with live_module.LiveRun(tracker.db, run.id, interval=0.0) as live:
        for step in range(100):
            live.metrics(step, {"loss": 1.0})
        assert not written
        assert not live.flush(timeout=0.01)
        answers.set()
        assert live.flush()
    assert len(steps(tracker, run.id)) == 100


def test_a_database_that_is_away_for_a_night(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause doubles with every failure; after 1,024 of them the doubled number was no float."""
    run, away, write = tracker.start_run("distill"), threading.Event(), Database.write
    failures = 0

    def gone(self: Database, work: object) -> object:
        nonlocal failures
        if away.is_set():
            failures += 1
            raise TrackerError("the server is away")
        return write(self, work)  # type: ignore[arg-type]

    monkeypatch.setattr(Database, "write", gone)
    monkeypatch.setattr(live_module, "LONGEST_PAUSE", 1e-5)
    away.set()
    with live_module.LiveRun(tracker.db, run.id, interval=1e-5) as live:
        live.metrics(1, {"loss": 0.5})
        assert until(lambda: failures > 1100)
        away.clear()
        assert until(lambda: steps(tracker, run.id) == [1])
