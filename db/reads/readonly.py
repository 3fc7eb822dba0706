"""Run a user's SQL read-only."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from db import sqlite
from db.errors import BadRequest, TrackerError, driver_code, explain, first_line
from db.reads.rows import Row
from db.session import Database
from db.values import plain, storable

MOST_ROWS = 100_000
MOST_SECONDS = 60.0
MOST_BYTES = 100_000_000  # per value, so that `SELECT zeroblob(…)` cannot exhaust memory

READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}

STOPPED = ("SQLITE_INTERRUPT", "57014")  # codes of a query that took too long

# Codes that report a failure of the database; any other reports a faulty query.
SQLITE_BROKEN = ("BUSY", "CANTOPEN", "CORRUPT", "FULL", "IOERR", "NOTADB", "READONLY")
# Connection, user, database, resources, shutdown, system, internal.
POSTGRES_BROKEN = ("08", "28", "3D", "53", "57P", "58", "XX")
BROKEN = (*(f"SQLITE_{name}" for name in SQLITE_BROKEN), *POSTGRES_BROKEN)

# Codes of a query that the database cannot run (a name that does not exist, a syntax error, a wrong type). Of
# these, PostgreSQL also gives its syntax error for what is no SELECT: a cursor takes nothing else.
WRONG = ("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_TOOBIG", "22", "42")
NO_SELECT = ("42601",)


def select(database: Database, sql: str) -> list[Row]:
    """Return the rows of one SELECT (or VALUES, WITH … SELECT) as JSON-able objects; refuse anything else."""
    if not sql.strip().rstrip(";").strip():
        raise BadRequest("the query is empty: give a SELECT")
    if storable(sql) != sql:
        raise BadRequest("the query holds characters that are no UTF-8: save or type it as UTF-8")
    deadline = time.monotonic() + MOST_SECONDS
    if database.path is None:
        return _postgres(database, sql, deadline)
    return _sqlite(database.path, sql, deadline)


def _sqlite(path: Path, sql: str, deadline: float) -> list[Row]:
    try:
        with closing(_read_only(path, deadline)) as connection:
            cursor = connection.execute(sql)
            return _rows([column[0] for column in cursor.description or ()], cursor, deadline)
    except (sqlite3.Error, sqlite3.Warning) as error:
        raise _refusal(error, str(path)) from error


def _read_only(path: Path, deadline: float) -> sqlite3.Connection:
    """Open with three protections: read-only file, query_only connection, checked statements."""
    connection = sqlite3.connect(sqlite.read_only_file(path), uri=True, timeout=10)
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON")
    for name in ("json_each", "json_tree"):  # their first use builds them, which is denied below
        connection.execute(f"SELECT 1 FROM {name}('[]')")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
    connection.set_authorizer(
        lambda action, *_: sqlite3.SQLITE_OK if action in READING else sqlite3.SQLITE_DENY
    )
    connection.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
    return connection


def _refusal(error: Exception, where: str) -> TrackerError:
    """Say why there are no rows: the query took too long, the database fails, or the query is at fault."""
    code = driver_code(error)
    if code in STOPPED:
        return _too_slow()
    if code.startswith(BROKEN):
        return explain(error, where)
    return _faulty(error)


def _too_slow() -> BadRequest:
    return BadRequest(f"the query took more than {MOST_SECONDS:.0f} s and was stopped: ask for less")


def _faulty(error: Exception) -> BadRequest:
    """Pass on what the database said of a query: that it is not one SELECT, or what is wrong with it."""
    said, code = first_line(error), driver_code(error)
    if code.startswith(WRONG) and code not in NO_SELECT:
        return BadRequest(f"the query failed ({said}): correct it; `recover export --help` lists the tables")
    return BadRequest(f"the query was refused ({said}): give one SELECT")


def _postgres(database: Database, sql: str, deadline: float) -> list[Row]:
    """Run the SQL as a cursor's query, which must be a SELECT, in a read-only transaction."""
    options = {"postgresql_readonly": True, "no_parameters": True}
    try:
        with database.engine.connect().execution_options(**options) as connection:
            connection.execute(text(f"SET LOCAL statement_timeout = {MOST_SECONDS * 1000:.0f}"))
            result = connection.execution_options(stream_results=True).exec_driver_sql(
                sql.strip().rstrip(";")
            )
            try:
                return _rows(list(result.keys()), result, deadline)
            finally:
                connection.invalidate()  # a query may have changed the session, e.g. by set_config
    except SQLAlchemyError as error:
        if driver_code(error):
            raise _refusal(error, database.where) from error
        raise explain(error, database.where) from error


def _rows(columns: Sequence[str], values: Iterable[Sequence[Any]], deadline: float) -> list[Row]:
    names = _unique(columns)
    rows: list[Row] = []
    for row in values:
        if time.monotonic() > deadline:  # PostgreSQL's own limit holds for each fetch of rows
            raise _too_slow()
        if len(rows) == MOST_ROWS:
            raise BadRequest(f"the query has more than {MOST_ROWS:,} rows: add a LIMIT or aggregate")
        rows.append({name: plain(value) for name, value in zip(names, row, strict=True)})
    return rows


def _unique(columns: Sequence[str]) -> list[str]:
    """Make column names unique: in `SELECT a.id, b.id` the second becomes id_2."""
    names: list[str] = []
    for column in columns:
        name, count = column, 1
        while name in names:
            count += 1
            name = f"{column}_{count}"
        names.append(name)
    return names
