"""Generate years of synthetic history in a home, then time the tracker's queries on it.

    python -m benchmarks.dashboard.history DIR             500 cycles, 10 million metric points (about 1 GB)
    python -m benchmarks.dashboard.history DIR --measure   median, slowest and CPU time of each query
    python -m benchmarks.dashboard.history DIR --browser   how long the dashboard's pages take in Chromium

The numbers are random and no model is trained: only the amount of data matters. SQLite only.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.dashboard.synthetic_history import (
    DISTILL_STEPS,
    LONG_RUN,
    LONG_STEPS,
    MANY_DOCUMENTS,
    Rows,
    points,
    tables,
)
from db.session import Database

IN_ORDER = (
    "UPDATE runs SET ordinal = started.n FROM (SELECT id, row_number() OVER (ORDER BY started_at, id) AS n "
    "FROM runs) AS started WHERE started.id = runs.id"
)
INSERT_POINT = "INSERT INTO metrics VALUES (?, ?, ?, ?, NULL, ?)"


def generate(home: Path, cycles: int, long_steps: int = LONG_STEPS) -> int:
    """Write the history; return the number of metric points."""
    path = home / "recover.db"
    if path.exists():
        raise SystemExit(f"{path} is there already: give an empty folder")
    Database.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for table, rows in tables(cycles).items():
            _insert(connection, table, rows)
        connection.execute("INSERT INTO checkpoint_places SELECT id, 'default', path FROM checkpoints")
        connection.execute(IN_ORDER)
        written = sum(
            connection.executemany(INSERT_POINT, rows).rowcount for rows in points(cycles, long_steps)
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return written


def _insert(connection: sqlite3.Connection, table: str, rows: Rows) -> None:
    first = next(rows, None)
    if first is not None:
        columns = connection.execute(f"PRAGMA table_info({table})")
        names = [column[1] for column in columns if column[1] not in ("project", "ordinal")]
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        connection.execute(statement, first)
        connection.executemany(statement, rows)


def queries_of(database: Database, cycles: int) -> dict[str, Callable[[], Any]]:
    """Return the queries that the pages run."""
    from db.reads import curves, overview, queries, traces

    middle = cycles // 2
    last = f"distill-{cycles:04d}"
    return {
        "has anything changed?": lambda: queries.structure_version(database),
        "cycles page (the newest 50)": lambda: queries.cycles(database, limit=50),
        "one cycle": lambda: queries.cycle(database, middle),
        "the newest cycle": lambda: queries.cycle(database, cycles),
        "runs page": lambda: queries.runs(database),
        "metric names": lambda: curves.metric_names(database, last),
        "latest metrics": lambda: curves.latest_metrics(database, last),
        f"a curve of {DISTILL_STEPS} points": lambda: curves.metric_series(database, last, "loss"),
        "the long curve": lambda: curves.metric_series(database, LONG_RUN, "loss"),
        "the long curve, as a thumb": lambda: curves.metric_glance(database, LONG_RUN, "loss"),
        "documents": lambda: queries.documents(database, f"midtrain-{middle:04d}"),
        f"totals of {MANY_DOCUMENTS:,} documents": lambda: queries.document_totals(
            database, f"midtrain-{cycles:04d}"
        ),
        "flips of two checkpoints": lambda: queries.flips_of_scores(
            database,
            *queries.compared_scores(database, f"mid{middle:04d}", f"rec{middle:04d}", "ifeval"),
        ),
        "traced runs": lambda: traces.traced_runs(database),
        "a run's traces": lambda: traces.traces(database, last),
        "one trace": lambda: traces.trace(database, last, 75, 1),
        "recoveries (100 runs)": lambda: overview.recoveries(database),
        "knowledge (40 cycles)": lambda: overview.knowledge(database),
        "reviews": lambda: queries.reviews(database),
    }


def measure(home: Path, repeats: int) -> None:
    with closing(Database.open(home / "recover.db", create=False)) as database:
        with database.read() as connection:
            cycles = int(connection.exec_driver_sql("SELECT max(number) FROM cycles").scalar() or 0)
        print(f"{'query':<34}{'median ms':>10}{'slowest':>10}{'CPU ms':>10}")
        for name, ask in queries_of(database, cycles).items():
            times = [_milliseconds(ask) for _ in range(repeats)]
            wall = sorted(wall for wall, _ in times)
            cpu = sorted(cpu for _, cpu in times)
            middle = repeats // 2
            print(f"{name:<34}{wall[middle]:>10.1f}{wall[-1]:>10.1f}{cpu[middle]:>10.1f}", flush=True)


def _milliseconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Return wall and CPU time; the second is robust on a busy machine."""
    begun = time.perf_counter()
    begun_cpu = time.process_time()
    work()
    return 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - begun_cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--measure", action="store_true", help="time the queries of a history written before")
    parser.add_argument("--browser", action="store_true", help="time the dashboard's pages on it in Chromium")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    if given.measure:
        measure(given.home, given.repeats)
        return
    if given.browser:
        from benchmarks.dashboard import clicks

        raise SystemExit(0 if clicks.measure(given.home, LONG_RUN, given.repeats) else 1)
    begun = time.perf_counter()
    written = generate(given.home, given.cycles)
    seconds = time.perf_counter() - begun
    print(f"{given.cycles} cycles, {written:,} points in {seconds:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
