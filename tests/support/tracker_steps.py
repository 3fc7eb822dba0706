"""Work on a tracker step by step, as a resumed pipeline does, and what must be there after any end of it."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from db.reads import queries
from db.schema import AliasMove, Item, Metric, Review, Run, Score
from db.writes.live import LiveRun
from db.writes.tracker import Tracker
from tests.support.lives import acknowledge

METRICS, ITEMS = 3, 4


def work(where: str, first: int) -> None:
    """Record step after step, and acknowledge each; a step that was cut off is done again."""
    with Tracker(where) as tracker:
        run = tracker.start_run("cycle", key="cycle:1")
        number = tracker.record_cycle(run.id)
        with tracker.live(run.id) as live:
            for step in range(first, 10**9):
                record(tracker, live, run.id, number, step)
                acknowledge(step)


def record(tracker: Tracker, live: LiveRun, run: str, cycle: int, step: int) -> None:
    live.metrics(step, {f"metric {i}": step + i / 10 for i in range(METRICS)})
    stage = tracker.start_run("eval", parent=run, key=f"eval:{step}")
    items = [
        {"key": f"p{i}", "prompt": "?", "response": str(step), "passed": True, "detail": {}}
        for i in range(ITEMS)
    ]
    name = f"c{step}"
    tracker.record_checkpoint(name, path="/c", kind="full", sha256="00", run_id=stage.id)
    score = {"suite": "ifeval", "metric": "prompt_strict", "value": 1.0, "n": ITEMS, "items": items}
    tracker.record_scores(stage.id, name, [score])
    tracker.set_alias("current", name)
    tracker.add_review(cycle, "reject", "", "ada", token=f"review {step}")
    flushed = live.flush()
    tracker.finish_run(stage.id)
    assert flushed


def check(tracker: Tracker, done: int) -> None:
    """Assert that the steps below `done` are there; the one after may be there in part, never twice."""
    with tracker.db.read() as connection:

        def count(query: sa.Select[Any]) -> int:
            return connection.scalar(query) or 0

        number = sa.func.count()
        assert count(sa.select(number).select_from(Metric).where(Metric.step < done)) == METRICS * done
        assert count(sa.select(number).select_from(Metric)) <= METRICS * (done + 1)
        assert count(sa.select(number).where(Run.kind == "eval", Run.status == "done")) in (done, done + 1)
        for model in (Score, Review, AliasMove):
            assert count(sa.select(number).select_from(model)) in (done, done + 1)
        assert count(sa.select(number).select_from(Item)) == ITEMS * count(
            sa.select(number).select_from(Score)
        )
        assert count(sa.select(number).select_from(Run)) <= 1 + done + 1
        rows = connection.execute(
            sa.select(Metric.step, Metric.name, Metric.value).where(Metric.step < done)
        ).all()
    assert all(value == step + int(name[-1]) / 10 for step, name, value in rows)
    assert len(queries.cycles(tracker.db)) == 1 or not done
    check_file(tracker)


def check_file(tracker: Tracker) -> None:
    """Assert that SQLite itself finds nothing damaged."""
    if tracker.db.path is None:
        return
    assert queries.select(tracker.db, "SELECT count(*) AS n FROM sqlite_master")[0]["n"] > 10
    with tracker.db.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
