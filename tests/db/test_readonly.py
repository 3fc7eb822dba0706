"""A user's own SQL can only read, whatever it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from db.errors import BadRequest, TrackerError
from db.reads import queries, readonly
from db.session import Database
from db.writes.tracker import Tracker
from tests.support.databases import BACKENDS, new_database, record_cycle


@pytest.fixture(scope="module", params=BACKENDS)
def tracker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracker]:
    """One for all tests: none of them may change anything."""
    with new_database(request.param, tmp_path_factory.mktemp("readonly")) as where, Tracker(where) as opened:
        record_cycle(opened, {"ifeval": {"clean": 0.9, "midtrained": 0.1, "recovered": 0.8}})
        yield opened


def is_sqlite(tracker: Tracker) -> bool:
    return tracker.db.path is not None


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT number, status FROM cycles", [{"number": 1, "status": "accepted"}]),
        ("select count(*) as n from scores where suite = 'ifeval';  ", [{"n": 3}]),
        ("WITH best AS (SELECT max(value) AS value FROM scores) SELECT * FROM best", [{"value": 0.9}]),
        ("SELECT 1 AS x, 2 AS x, 3 AS x", [{"x": 1, "x_2": 2, "x_3": 3}]),
        ("SELECT avg(n) AS mean, sum(n * 0.5) AS half FROM scores", [{"mean": 100, "half": 150}]),
        ("SELECT avg(number + 0.5) AS mean FROM cycles", [{"mean": 1.5}]),
        ("SELECT 'a%b' AS x -- a comment", [{"x": "a%b"}]),
        ("SELECT id FROM runs WHERE kind LIKE 'none%'", []),
        (
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
            [{"i": 1}, {"i": 2}, {"i": 3}],
        ),
    ],
)
def test_reading(tracker: Tracker, sql: str, rows: list[dict[str, object]]) -> None:
    assert queries.select(tracker.db, sql) == rows


def test_lists_in_details_can_be_taken_apart(tracker: Tracker) -> None:
    sqlite = "SELECT value FROM json_each('[1, 2]') UNION ALL SELECT count(*) FROM json_tree('[]')"
    server = "SELECT value::text::int AS value FROM json_array_elements('[1, 2, 1]') AS value"
    for _ in range(2):
        rows = queries.select(tracker.db, sqlite if is_sqlite(tracker) else server)
        assert [row["value"] for row in rows] == [1, 2, 1]


def test_what_is_no_utf8_is_refused(tracker: Tracker) -> None:
    with pytest.raises(BadRequest, match="characters that are no UTF-8"):
        queries.select(tracker.db, "SELECT 'caf\udce9'")


def test_rows_are_json(tracker: Tracker) -> None:
    sqlite = "SELECT x'ff00' AS bytes, 9e999 AS big, NULL AS absent, passed FROM items"
    server = "SELECT '\\xff00'::bytea AS bytes, 'Infinity'::float AS big, NULL AS absent, passed FROM items"
    rows = queries.select(tracker.db, sqlite if is_sqlite(tracker) else server)
    assert json.loads(json.dumps(rows, allow_nan=False))[0] | {"passed": 1} == {
        "bytes": "ff00",
        "big": "inf",
        "absent": None,
        "passed": 1,
    }


WRITES = [
    "INSERT INTO aliases VALUES ('default', 'x', 'clean0', 'now')",
    "UPDATE cycles SET status = 'rejected'",
    "DELETE FROM cycles",
    "WITH gone AS (SELECT 1) DELETE FROM items",
    "WITH gone AS (DELETE FROM items RETURNING *) SELECT * FROM gone",
    "INSERT INTO aliases VALUES ('default', 'x', 'clean0', 'now') RETURNING name",
    "SELECT 1; DELETE FROM items",
    "SELECT 1;; DELETE FROM items; --",
    "COMMIT; DELETE FROM items",
    "BEGIN",
    "COMMIT",
    "CREATE TABLE x (y int)",
    "CREATE TEMP TABLE x AS SELECT 1",
    "DROP TABLE items",
    "ALTER TABLE items ADD COLUMN x int",
    "VACUUM",
    "REINDEX",
    "ANALYZE",
]
SQLITE_WRITES = [
    "PRAGMA query_only=OFF",
    "PRAGMA journal_mode=DELETE",
    "PRAGMA user_version=7",
    "PRAGMA writable_schema=ON",
    "SELECT * FROM pragma_user_version",
    "ATTACH DATABASE '/tmp/other.db' AS other",
    "DETACH DATABASE main",
    "VACUUM INTO '/tmp/copy.db'",
    "REPLACE INTO aliases VALUES ('default', 'x', 'clean0', 'now')",
    "SAVEPOINT x",
    "CREATE VIRTUAL TABLE x USING fts5(y)",
    "CREATE TRIGGER x AFTER INSERT ON items BEGIN DELETE FROM runs; END",
    "SELECT load_extension('/tmp/x.so')",
]
SERVER_WRITES = [
    "TRUNCATE items",
    "SELECT 1 INTO x",
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "COPY items TO '/tmp/items'",
    "COPY items TO PROGRAM 'cat'",
    "SELECT nextval('items_id_seq')",
    "DO $$ BEGIN DELETE FROM items; END $$",
    "CALL x()",
    "EXPLAIN ANALYZE DELETE FROM items",
    "LOCK TABLE items",
]


@pytest.mark.parametrize(
    "sql", [*WRITES, *SQLITE_WRITES, *SERVER_WRITES, "", " ; ", "-- nothing", "SELECT FROM", "nonsense"]
)
def test_anything_else_is_refused(tracker: Tracker, sql: str) -> None:
    before = _everything(tracker)
    try:
        rows = queries.select(tracker.db, sql)
    except BadRequest as error:
        assert "\n" not in str(error) and error.exit_code == 2
    else:
        assert rows == [], f"{sql} gave {rows}"  # a comment is no statement and has no rows
    assert _everything(tracker) == before


def _everything(tracker: Tracker) -> list[object]:
    tables = ["runs", "cycles", "scores", "items", "aliases", "checkpoints"]
    server = (
        "(SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()) AS names"
    )
    places = [*tables, "sqlite_master" if is_sqlite(tracker) else server]
    return [sorted(map(repr, queries.select(tracker.db, f"SELECT * FROM {place}"))) for place in places]


def test_a_wrong_query_says_what_the_database_said(tracker: Tracker) -> None:
    for sql, name in (("SELECT nope FROM runs", "nope"), ("SELECT * FROM nope", "nope")):
        with pytest.raises(BadRequest, match=name) as refused:
            queries.select(tracker.db, sql)
        assert "correct it" in str(refused.value) and "give one SELECT" not in str(refused.value)
    for sql in ("DELETE FROM runs", "SELECT 1; SELECT 2"):
        with pytest.raises(BadRequest, match="give one SELECT"):
            queries.select(tracker.db, sql)


def test_what_a_function_does_is_undone(tracker: Tracker) -> None:
    """PostgreSQL before 16 lets a read-only transaction make large objects."""
    if is_sqlite(tracker):
        pytest.skip("SQLite has no large objects")
    queries.select(tracker.db, "SELECT lo_create(424242)")
    assert queries.select(tracker.db, "SELECT oid FROM pg_largeobject_metadata WHERE oid = 424242") == []


def test_reading_does_not_make_the_tracker_read_only(tracker: Tracker) -> None:
    queries.select(tracker.db, "SELECT 1")
    with pytest.raises(BadRequest):
        queries.select(tracker.db, "DELETE FROM items")
    assert tracker.start_run("demo").status == "running"


def test_more_rows_than_memory_should_hold(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "MOST_ROWS", 5)
    assert len(queries.select(tracker.db, "SELECT * FROM items LIMIT 5")) == 5
    with pytest.raises(BadRequest, match="more than 5 rows: add a LIMIT"):
        queries.select(tracker.db, "SELECT * FROM items")


def test_a_query_without_an_end_is_stopped(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readonly, "MOST_SECONDS", 0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT count(*) FROM n"
    with pytest.raises(BadRequest, match="was stopped: ask for less"):
        queries.select(tracker.db, endless)


def test_rows_that_come_after_the_time_is_over_are_not_waited_for(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's own limit, which 0 turns off, holds for each fetch of rows and never for all of them."""
    monkeypatch.setattr(readonly, "MOST_SECONDS", 0.0)
    with pytest.raises(BadRequest, match="was stopped: ask for less"):
        queries.select(tracker.db, "SELECT * FROM items")


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [
        ("UndefinedTable", BadRequest, "correct it; `recover export --help` lists the tables"),
        ("DivisionByZero", BadRequest, "correct it"),
        ("SyntaxError", BadRequest, "give one SELECT"),  # PostgreSQL's for a DELETE in a cursor, too
        ("ReadOnlySqlTransaction", BadRequest, "give one SELECT"),
        ("QueryCanceled", BadRequest, "was stopped: ask for less"),
        ("AdminShutdown", TrackerError, "check it or give another --home"),
        ("DiskFull", TrackerError, "free some space on the server"),
    ],
)
def test_what_postgresql_says_becomes_one_line_with_a_remedy(
    name: str, kind: type[TrackerError], remedy: str
) -> None:
    """Each error is the driver's own, without a server."""
    errors = pytest.importorskip("psycopg.errors")

    def answer() -> None:
        raise getattr(errors, name)("the server's words")

    database = Database(sa.create_engine("postgresql+psycopg://", creator=answer), "here", path=None)
    with pytest.raises(kind, match=re.escape(remedy)) as refused:
        queries.select(database, "SELECT 1")
    assert type(refused.value) is kind and "\n" not in str(refused.value)


def test_one_value_cannot_eat_the_memory(tracker: Tracker) -> None:
    if not is_sqlite(tracker):
        pytest.skip("zeroblob is SQLite's")
    with pytest.raises(BadRequest, match="too big"):
        queries.select(tracker.db, "SELECT zeroblob(1000000000)")
