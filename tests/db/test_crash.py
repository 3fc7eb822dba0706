"""kill -9 at any moment: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.reads import queries
from db.schema import AliasMove, Item, Metric, Review, Run, Score
from db.writes.tracker import Tracker
from tests.support.databases import BACKENDS, new_database

METRICS, ITEMS = 3, 4

# Works like a resumed pipeline: goes on after its last acknowledgement, so a step cut off is done again.
WORKER = """
import sys
from pathlib import Path
from db.writes.tracker import Tracker

where, acknowledged = sys.argv[1], Path(sys.argv[2])
lines = acknowledged.read_text().split() if acknowledged.exists() else []
with Tracker(where) as tracker, acknowledged.open("a") as log:
    run = tracker.start_run("cycle", key="cycle:1")
    number = tracker.record_cycle(run.id)
    with tracker.live(run.id) as live:
        print("working", flush=True)
        for step in range(int(lines[-1]) + 1 if lines else 0, 10**9):
            live.metrics(step, {f"metric {i}": step + i / 10 for i in range(3)})
            stage = tracker.start_run("eval", parent=run.id, key=f"eval:{step}")
            items = [{"key": f"p{i}", "prompt": "?", "response": str(step), "passed": True, "detail": {}}
                     for i in range(4)]
            name = f"c{step}"
            tracker.record_checkpoint(name, path="/c", kind="full", sha256="00", run_id=stage.id)
            score = {"suite": "ifeval", "metric": "prompt_strict", "value": 1.0, "n": 4, "items": items}
            tracker.record_score(stage.id, name, score)
            tracker.set_alias("current", name)
            tracker.add_review(number, "reject", "", "ada", token=f"review {step}")
            assert live.flush()
            tracker.finish_run(stage.id)
            log.write(f"{step}\\n")
            log.flush()
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_killed_at_random_moments_nothing_is_lost_or_doubled(backend: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    acknowledged = tmp_path / "acknowledged"
    with new_database(backend, tmp_path) as where:
        for _ in range(5):
            _work_and_die(where, acknowledged, seconds=chance.uniform(0.0, 0.5))
        with Tracker(where) as tracker:
            _check(tracker, steps=int(acknowledged.read_text().split()[-1]))


def _work_and_die(where: str, acknowledged: Path, seconds: float) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", WORKER, where, str(acknowledged)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "working\n"
        begun = acknowledged.stat().st_size
        while acknowledged.stat().st_size == begun:  # at least one step in each life
            time.sleep(0.01)
        time.sleep(seconds)
        worker.send_signal(signal.SIGKILL)


def _check(tracker: Tracker, steps: int) -> None:
    """Steps 0…steps are acknowledged; the one after may be there in part, never twice."""
    done = steps + 1
    with tracker.db.read() as connection:

        def count(query: sa.Select[Any]) -> int:
            return connection.scalar(query) or 0

        number = sa.func.count()
        assert done > 4
        assert count(sa.select(number).select_from(Metric).where(Metric.step <= steps)) == METRICS * done
        assert count(sa.select(number).select_from(Metric)) <= METRICS * (done + 1)
        assert count(sa.select(number).where(Run.kind == "eval", Run.status == "done")) in (done, done + 1)
        for model in (Score, Review, AliasMove):
            assert count(sa.select(number).select_from(model)) in (done, done + 1)
        assert count(sa.select(number).select_from(Item)) == ITEMS * count(
            sa.select(number).select_from(Score)
        )
        assert count(sa.select(number).select_from(Run)) <= 1 + done + 1
        rows = connection.execute(
            sa.select(Metric.step, Metric.name, Metric.value).where(Metric.step <= steps)
        ).all()
    assert all(value == step + int(name[-1]) / 10 for step, name, value in rows)
    assert len(queries.cycles(tracker.db)) == 1
    if tracker.db.path is not None:
        assert queries.select(tracker.db, "SELECT count(*) AS n FROM sqlite_master")[0]["n"] > 10
        with tracker.db.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
