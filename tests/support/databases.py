"""Databases for tests, new each time: SQLite, and the PostgreSQL that RECOVER_TEST_POSTGRES names."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.reads import queries
from db.reads.rows import Row
from db.session import Database
from db.writes.points import Point, store
from db.writes.tracker import Tracker

BACKENDS = ("sqlite", "postgres")


@contextmanager
def new_database(backend: str, folder: Path) -> Iterator[str]:
    """A path or URL where nothing is yet; on a server it is a schema, dropped at the end."""
    if backend == "sqlite":
        yield str(folder / "recover.db")
        return
    server = os.environ.get("RECOVER_TEST_POSTGRES")
    if not server:
        pytest.skip("RECOVER_TEST_POSTGRES names no PostgreSQL server")
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    name = f"recover_{secrets.token_hex(6)}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE SCHEMA {name}"))
    try:
        here = url.update_query_dict({"options": f"-csearch_path={name}"})
        yield here.render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            connection.execute(sa.text(f"DROP SCHEMA {name} CASCADE"))
        engine.dispose()


def migrated(where: str | Path) -> str | Path:
    """Put a database without rows at a path, a copy of one: to migrate it takes longer than most tests."""
    if "://" not in str(where):
        shutil.copy(_without_rows(), where)
    return where


@cache
def _without_rows() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="recover-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Tracker(folder / "recover.db").close()
    return folder / "recover.db"


def items(*passed: bool) -> list[dict[str, Any]]:
    """Items p0, p1, … that passed or not."""
    return [
        {
            "key": f"p{i}",
            "prompt": f"prompt {i}",
            "response": f"answer {i} {ok}",
            "passed": ok,
            "detail": {"i": i},
        }
        for i, ok in enumerate(passed)
    ]


def flips_between(database: Database, a: str, b: str, suite: str, **options: Any) -> list[Row]:
    """The flips between the newest scores of two checkpoints on the same prompts."""
    return queries.flips_of_scores(database, *queries.compared_scores(database, a, b, suite), **options)


def score(suite: str, value: float, *passed: bool, n: int = 100, metric: str = "") -> dict[str, Any]:
    """A score as evals hands it over."""
    headline = metric or ("prompt_strict" if suite == "ifeval" else "lenient")
    return {
        "suite": suite,
        "metric": headline,
        "value": value,
        "n": n,
        "interval": [value - 0.05, value + 0.05],
        "items": items(*passed),
        "details": {"note": suite},
    }


def record_metrics(tracker: Tracker, run_id: str, step: int, values: Mapping[str, float]) -> None:
    """One step's points, stored before this returns."""
    points = [Point.of(run_id, name, step, value) for name, value in values.items()]
    tracker.db.write(lambda session: store(session, points))


def record_score(tracker: Tracker, run_id: str, checkpoint_id: str | None, score: Mapping[str, Any]) -> int:
    """A single score, in the place of an earlier one of its suite and metric. Returns its number."""
    return tracker.record_scores(run_id, checkpoint_id, [score])[0]


def record_cycle(tracker: Tracker, values: dict[str, dict[str, float]], parent: str | None = None) -> int:
    """A whole cycle as the pipeline records it; `values` is suite -> stage -> value. Returns its number."""
    run = tracker.start_run("cycle", parent=parent)
    number = tracker.record_cycle(run.id)
    ids = {"clean": "clean0", "midtrained": f"mid{number}", "recovered": f"rec{number}"}
    for stage, checkpoint in ids.items():
        work = tracker.start_run("distill", parent=run.id, key=stage)
        tracker.record_checkpoint(
            checkpoint,
            path=f"/c/{checkpoint}",
            kind="full",
            sha256=checkpoint * 8,
            run_id=work.id,
            parent=None if stage == "clean" else "clean0",
        )
        column: dict[str, Any] = {f"{stage}_id": checkpoint}
        tracker.record_cycle(run.id, **column)
        tracker.finish_run(work.id, cost={"tokens_sampled": 10, "tokens_trained": 5, "seconds": 1.5})
        asked = tracker.start_run("eval", parent=run.id, key=f"eval:{stage}")
        for suite, by_stage in values.items():
            if stage in by_stage:
                record_score(
                    tracker, asked.id, checkpoint, score(suite, by_stage[stage], True, stage != "midtrained")
                )
        tracker.finish_run(asked.id, cost={"tokens_sampled": 100, "seconds": 0.5, "peak_bytes": 7})
    tracker.record_cycle(run.id, status="accepted")
    tracker.finish_run(run.id)
    return number
