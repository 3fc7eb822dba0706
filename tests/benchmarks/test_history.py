"""A long history stays readable: no query of a page walks through a big table, and curves stay exact."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks.dashboard import history, synthetic_history
from db.reads import curves, overview, queries
from db.session import Database

CYCLES = 8
BIG = ("metrics", "items", "scores", "traces", "documents")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    home = tmp_path_factory.mktemp("history")
    assert history.generate(home, CYCLES, long_steps=5000) == CYCLES * (20 * 750 + 12 * 250) + 5000
    with closing(Database.open(home / "recover.db", create=False)) as opened:
        yield opened


@pytest.fixture(scope="module")
def plans(database: Database) -> dict[str, list[str]]:
    """Per question of the benchmark: how SQLite answers each of its statements."""
    found: dict[str, list[str]] = {}
    asked: list[tuple[str, Any]] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *a: asked.append((a[2], a[3])))
    for name, ask in history.queries_of(database, CYCLES).items():
        asked.clear()
        assert ask(), name
        with closing(sqlite3.connect(str(database.path))) as connection:
            steps = [
                connection.execute(f"EXPLAIN QUERY PLAN {sql}", given)
                for sql, given in list(asked)
                if sql.startswith(("SELECT", "WITH"))
            ]
            found[name] = [row[3] for rows in steps for row in rows]
    return found


def test_no_page_walks_through_a_big_table(plans: dict[str, list[str]]) -> None:
    walks = {
        name: [step for step in steps if step.startswith("SCAN") and step.split()[1] in BIG]
        for name, steps in plans.items()
    }
    assert not {name: steps for name, steps in walks.items() if steps}
    assert all(plans.values())


def test_a_thinned_curve_has_the_extremes_and_the_mean_of_all_points(database: Database) -> None:
    with database.read() as connection:
        sql = "SELECT step, value FROM metrics WHERE run_id = 'distill-long' AND name = 'loss' ORDER BY step"
        points = connection.exec_driver_sql(sql).all()
    first = points[0][0]
    assert [step for step, _ in points] == list(range(first, first + len(points)))
    for wanted in (7, 100, 999, 5000, 9000):
        rows = curves.metric_series(database, "distill-long", "loss", points=wanted)
        assert len(rows) <= min(wanted, len(points)) and sum(row["n"] for row in rows) == len(points)
        for row in rows:
            values = [value for _, value in points[row["step"] - first : row["last_step"] - first + 1]]
            assert (row["low"], row["high"], row["n"]) == (
                pytest.approx(min(values)),
                pytest.approx(max(values)),
                len(values),
            )
            assert row["value"] == pytest.approx(sum(values) / len(values))
    thumb = curves.metric_glance(database, "distill-long", "loss", points=50)
    assert len(thumb) == 50 and thumb[0]["step"] == 1
    known = dict(tuple(point) for point in points)
    assert all(row["value"] == pytest.approx(known[row["step"]], rel=1e-12) for row in thumb)  # through JSON


def test_means_of_curves_are_those_of_their_points(database: Database) -> None:
    found = curves.metric_means(database, ["distill-0001", "midtrain-0002"], ["loss", "reverse_kl"])
    assert set(found) == {"distill-0001", "midtrain-0002"} and set(found["midtrain-0002"]) == {"loss"}
    rows = curves.metric_series(database, "distill-0001", "loss", points=1)
    assert found["distill-0001"]["loss"] == pytest.approx(rows[0]["value"])


def test_the_race_has_every_recovery_with_its_scores(database: Database) -> None:
    rows = overview.recoveries(database)
    assert [row["checkpoint"] for row in rows][1:] == [f"rec{n:04d}" for n in range(CYCLES, 0, -1)]
    last = rows[1]
    assert last["student"] == f"mid{CYCLES:04d}" and last["cost"]["tokens_trained"] == 400_000
    shown = queries.cycle(database, CYCLES)["scores"]
    assert {suite: row["value"] for suite, row in last["scores"].items()} == {
        suite: shown[suite]["recovered"] for suite in ("ifeval", "knowledge", "retention")
    }
    (only,) = (row for row in rows if row["student"] == "mid0003")
    assert (only["cycle"], only["teacher"]) == (3, "clean0")


def test_knowledge_is_told_by_cycle_documents_and_kind(database: Database) -> None:
    rows = overview.knowledge(database)
    after = {(row["cycle"], row["documents"]): row for row in rows if row["stage"] == "recovered"}
    assert set(after) == {(n, k) for n in range(1, CYCLES + 1) for k in range(1, n + 1)}
    assert set(after[3, 3]["kinds"]) == {"direct", "heldout"}
    with_earlier = queries.cycle(database, 5)["knowledge_by_cycle"]
    assert [after[5, k]["value"] for k in range(1, 5)] == [row["score"] for row in with_earlier]
    page = overview.knowledge(database, before=5, limit=2)
    assert {row["cycle"] for row in page} == {3, 4}


def test_training_runs_are_named(database: Database) -> None:
    rows = overview.training_runs(database, run_ids=["distill-0002", "midtrain-0002", "eval-0002-clean"])
    assert {row["id"]: row["cycle"] for row in rows}["distill-0002"] == 2
    newest = overview.training_runs(database, limit=3)
    assert newest[0]["id"] == synthetic_history.LONG_RUN and newest[0]["cycle"] is None
