"""Generate years of synthetic history in a home, then time the tracker's queries on it.

    python -m benchmarks.dashboard.history DIR             500 cycles, 10 million metric points (about 1 GB)
    python -m benchmarks.dashboard.history DIR --measure   median, slowest and CPU time of each query
    python -m benchmarks.dashboard.history DIR --browser   how long the dashboard's pages take in Chromium

The numbers are random and no model is trained: only the amount of data matters. SQLite only.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from db.session import Database

DISTILL_STEPS, MIDTRAIN_STEPS, LONG_STEPS = 750, 250, 1_000_000
MANY_DOCUMENTS = 100_000  # documents of the newest cycle; the others have 20
MIDTRAIN_METRICS = (
    "batch_seconds",
    "entropy",
    "eta_seconds",
    "grad_norm",
    "logprob",
    "loss",
    "lr",
    "step_seconds",
    "student_stop_mass",
    "tokens",
    "tokens_per_second",
    "top1_share",
)
DISTILL_METRICS = (
    "batch_seconds",
    "entropy",
    "eta_seconds",
    "grad_norm",
    "k1_reverse_kl",
    "k3_reverse_kl",
    "logprob",
    "loss",
    "lr",
    "repeated_share",
    "response_tokens",
    "reverse_kl",
    "signal_bias",
    "signal_concentration",
    "signal_density",
    "student_stop_mass",
    "teacher_logprob",
    "tokens",
    "top1_share",
    "truncated_share",
)
ITEMS = {"ifeval": 120, "knowledge": 60, "retention": 60}
STAGES = ("clean", "midtrained", "recovered")
LEVELS = {"ifeval": (0.98, 0.2, 0.96), "knowledge": (0.05, 0.75, 0.72), "retention": (0.97, 0.6, 0.93)}
TYPES = (
    "keywords:existence",
    "length_constraints:number_words",
    "change_case:english_lowercase",
    "detectable_format:title",
    "startend:quotation",
)
LONG_RUN = "distill-long"
IN_ORDER = (
    "UPDATE runs SET ordinal = started.n FROM (SELECT id, row_number() OVER (ORDER BY started_at, id) AS n "
    "FROM runs) AS started WHERE started.id = runs.id"
)

Rows = Iterator[tuple[Any, ...]]


def generate(home: Path, cycles: int, long_steps: int = LONG_STEPS) -> int:
    """Write the history; return the number of metric points."""
    path = home / "recover.db"
    if path.exists():
        raise SystemExit(f"{path} is there already: give an empty folder")
    Database.open(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        for table, rows in _tables(cycles).items():
            _insert(connection, table, rows)
        connection.execute("INSERT INTO checkpoint_places SELECT id, 'default', path FROM checkpoints")
        connection.execute(IN_ORDER)
        points = _points(connection, cycles, long_steps)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return points


def _insert(connection: sqlite3.Connection, table: str, rows: Rows) -> None:
    first = next(rows, None)
    if first is not None:
        columns = connection.execute(f"PRAGMA table_info({table})")
        names = [column[1] for column in columns if column[1] not in ("project", "ordinal")]
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        connection.execute(statement, first)
        connection.executemany(statement, rows)


def _tables(cycles: int) -> dict[str, Rows]:
    """Yield the rows of every table but the metrics, parents before children."""
    draw = np.random.default_rng(0)
    return {
        "runs": _runs(cycles),
        "checkpoints": _checkpoints(cycles),
        "aliases": _aliases(cycles),
        "cycles": _cycles(cycles),
        "verdicts": _verdicts(cycles, draw),
        "documents": _documents(cycles),
        "scores": _scores(cycles, draw),
        "items": _items(cycles, draw),
        "reviews": _reviews(cycles),
        "traces": _traces(cycles, draw),
    }


def _at(cycle: int, minute: int = 0) -> str:
    year, month, day = 2020 + cycle // 336, 1 + cycle // 28 % 12, 1 + cycle % 28
    return f"{year}-{month:02d}-{day:02d}T08:{minute:02d}:00.000Z"


def _runs(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        parent = f"cycle-{cycle:04d}"
        yield _run(cycle, parent, None, "cycle", 0)
        for minute, kind in enumerate(("midtrain", "distill"), 1):
            yield _run(cycle, f"{kind}-{cycle:04d}", parent, kind, minute)
        for minute, stage in enumerate(STAGES, 4):
            yield _run(cycle, f"eval-{cycle:04d}-{stage}", parent, "eval", minute)
    yield _run(cycles, LONG_RUN, None, "distill", 9)


def _run(cycle: int, run_id: str, parent: str | None, kind: str, minute: int) -> tuple[Any, ...]:
    method = ("opd", "opd-sampled", "sft", "gkd", "opd-topk")[cycle % 5]
    settings = f'"settings": {{"method": "{method}", "steps": {DISTILL_STEPS}}}'
    config = f'{{{settings}, "student": "mid{cycle:04d}", "teacher": "clean0"}}'
    cost = '{"tokens_sampled": 200000, "tokens_scored": 200000, "tokens_trained": 400000, "seconds": 120.5}'
    result = f'{{"checkpoint": "{"mid" if kind == "midtrain" else "rec"}{cycle:04d}", "method": "{method}"}}'
    moments = _at(cycle, minute), _at(cycle, minute + 1), _at(cycle, minute + 1)
    return (
        run_id,
        parent,
        kind,
        run_id,
        "done",
        0,
        1,
        "host:1",
        None,
        *moments,
        None,
        "{}",
        "{}" if kind == "cycle" else cost,
        result,
        config,
        "{}",
    )


def _checkpoints(cycles: int) -> Rows:
    yield ("clean0", "checkpoints/clean0", "reference", None, None, "0" * 64, None, _at(0), "{}")
    for cycle in range(1, cycles + 1):
        mid, rec = f"mid{cycle:04d}", f"rec{cycle:04d}"
        before = f"rec{cycle - 1:04d}" if cycle > 1 else "clean0"
        for name, parent, kind in ((mid, before, "midtrain"), (rec, mid, "distill")):
            yield (
                name,
                f"checkpoints/{name}",
                "full",
                parent,
                None,
                name * 9,
                f"{kind}-{cycle:04d}",
                _at(cycle, 3),
                "{}",
            )


def _aliases(cycles: int) -> Rows:
    yield ("base", "clean0", _at(0))
    yield ("current", f"rec{cycles:04d}", _at(cycles))


def _cycles(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        yield (
            cycle,
            f"cycle-{cycle:04d}",
            "rejected" if cycle % 7 == 0 else "accepted",
            "clean0",
            f"mid{cycle:04d}",
            f"rec{cycle:04d}",
            _at(cycle),
            _at(cycle, 8),
            "{}",
        )


def _verdicts(cycles: int, draw: np.random.Generator) -> Rows:
    words = {
        "behaviour": ("recovered", "not recovered"),
        "knowledge": ("kept", "lost"),
        "retention": ("kept", "lost"),
    }
    for cycle in range(1, cycles + 1):
        for axis, (good, bad) in words.items():
            failed = cycle % 7 == 0 and axis == "behaviour"
            difference = float(draw.normal(-0.06 if failed else -0.005, 0.005))
            yield (
                cycle,
                axis,
                bad if failed else good,
                difference,
                difference - 0.02,
                difference + 0.02,
                0.03,
                120,
                2,
                3,
                0.01,
                300,
                "{}",
            )


def _documents(cycles: int) -> Rows:
    for cycle in range(1, cycles + 1):
        for number in range(20 if cycle < cycles else MANY_DOCUMENTS):
            yield (
                f"midtrain-{cycle:04d}",
                f"docs/{number:06d}.md",
                "read",
                None,
                "ab" * 32,
                "utf-8",
                900,
                220,
            )


def _scores(cycles: int, draw: np.random.Generator) -> Rows:
    """Yield three suites' scores at three stages with items, then those on earlier cycles' documents."""
    number = 0
    for cycle in range(1, cycles + 1):
        for stage, name in enumerate(STAGES):
            for suite, levels in LEVELS.items():
                number += 1
                value = float(np.clip(levels[stage] + draw.normal(0, 0.02), 0, 1))
                metric = "prompt_strict" if suite == "ifeval" else "lenient"
                yield _score(number, cycle, name, suite, metric, value, ITEMS[suite])
        for earlier in range(1, cycle):
            number += 1
            yield _score(
                number,
                cycle,
                "recovered",
                f"knowledge:{earlier}",
                "lenient",
                0.3 + 0.4 * 0.98 ** (cycle - earlier),
                60,
            )


def _score(
    number: int, cycle: int, stage: str, suite: str, metric: str, value: float, n: int
) -> tuple[Any, ...]:
    checkpoint = {"clean": "clean0", "midtrained": f"mid{cycle:04d}", "recovered": f"rec{cycle:04d}"}[stage]
    kinds = json.dumps({"by_kind": {kind: {"value": value, "n": 30} for kind in ("direct", "heldout")}})
    return (
        number,
        f"eval-{cycle:04d}-{stage}",
        checkpoint,
        suite,
        metric,
        value,
        n,
        max(0.0, value - 0.04),
        min(1.0, value + 0.04),
        f"{suite}-set" if ":" not in suite else None,
        _at(cycle, 7),
        kinds if suite.startswith("knowledge") else "{}",
    )


def _items(cycles: int, draw: np.random.Generator) -> Rows:
    number = 0
    for cycle in range(1, cycles + 1):
        for stage in range(len(STAGES)):
            for suite, count in ITEMS.items():
                number += 1
                passed = draw.random(count) < LEVELS[suite][stage]
                for place, ok in enumerate(passed.tolist()):
                    detail = json.dumps({"instruction_id_list": [TYPES[place % 5]], "passed": [ok]})
                    answer = f"An answer of cycle {cycle} to question {place}, in a few words. " * 3
                    key, question = f"{suite}-{place:04d}", f"Question {place} of {suite}?"
                    yield number, key, ok, question, answer, detail
        number += cycle - 1


def _reviews(cycles: int) -> Rows:
    for cycle in range(1, cycles - 2):
        yield (
            cycle,
            cycle,
            "reject" if cycle % 7 == 0 else "approve",
            "looked at the samples",
            "sam",
            f"token-{cycle}",
            _at(cycle, 30),
        )


def _traces(cycles: int, draw: np.random.Generator) -> Rows:
    words = ["the", " river", " runs", " by", " a", " mill", ",", " and", " nobody", " knows"]
    for cycle in range(max(1, cycles - 50), cycles + 1):
        for step in range(0, DISTILL_STEPS + 1, 75):
            for place in range(4):
                yield (
                    f"distill-{cycle:04d}",
                    step,
                    place,
                    "Say something about a river.",
                    "exact",
                    0.2,
                    60,
                    _tokens(words, draw),
                )


def _tokens(words: list[str], draw: np.random.Generator) -> str:
    picked = draw.integers(0, len(words), 60).tolist()
    values = draw.exponential(0.2, 60).round(4).tolist()
    top = [[[words[(i + k) % len(words)], -0.1 - k] for k in range(5)] for i in picked]
    return json.dumps(
        {
            "finished": True,
            "ids": picked,
            "pieces": [words[i] for i in picked],
            "student": [-0.2] * 60,
            "teacher": [-0.4] * 60,
            "divergence": values,
            "student_top": top,
            "teacher_top": top,
        }
    )


def _points(connection: sqlite3.Connection, cycles: int, long_steps: int) -> int:
    """Insert the metric points in key order, which is their order on disk."""
    draw = np.random.default_rng(1)
    total = 0
    kinds = (("distill", DISTILL_METRICS, DISTILL_STEPS), ("midtrain", MIDTRAIN_METRICS, MIDTRAIN_STEPS))
    for kind, names, steps in kinds:
        for cycle in range(1, cycles + 1):
            curves = [_curve(f"{kind}-{cycle:04d}", name, steps, draw) for name in names]
            connection.executemany(
                "INSERT INTO metrics VALUES (?, ?, ?, ?, NULL, ?)", chain.from_iterable(curves)
            )
            total += len(names) * steps
        if kind == "distill":
            rows = _curve(LONG_RUN, "loss", long_steps, draw)
            connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, NULL, ?)", rows)
            total += long_steps
    return total


def _curve(run_id: str, name: str, steps: int, draw: np.random.Generator) -> Rows:
    """Return an exponential decay with noise."""
    place = np.arange(1, steps + 1)
    values = np.exp(-3 * place / steps) + draw.normal(0, 0.05, steps)
    for step, value in zip(place.tolist(), values.tolist(), strict=True):
        yield run_id, name, step, value, 1.7e9 + step


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
        "flips of two checkpoints": lambda: queries.flips(
            database, f"mid{middle:04d}", f"rec{middle:04d}", "ifeval"
        ),
        "traced runs": lambda: traces.traced_runs(database),
        "a run's traces": lambda: traces.traces(database, last),
        "one trace": lambda: traces.trace(database, last, 75, 1),
        "race (100 runs)": lambda: overview.race(database),
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
            wall, cpu = sorted(wall for wall, _ in times), sorted(cpu for _, cpu in times)
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
    points = generate(given.home, given.cycles)
    print(f"{given.cycles} cycles, {points:,} points in {time.perf_counter() - begun:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
