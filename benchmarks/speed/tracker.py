"""Compare writing and reading metrics in this project's tracker with MLflow and trackio."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common import Report, Row, alternate, installed, median, run

NAMES = [f"metric_{i}" for i in range(10)]


class Arm(Protocol):
    """One tracker: write steps of ten metrics, return when they are stored; read one metric back."""

    def write(self, steps: int) -> None: ...
    def read(self) -> int: ...


class Recover:
    def __init__(self, folder: Path) -> None:
        from db.writes.tracker import Tracker

        self.tracker = Tracker(folder / "recover.db")
        self.step = 0
        self.run = self.tracker.start_run("distill").id

    def write(self, steps: int) -> None:
        with self.tracker.live(self.run) as live:
            for _ in range(steps):
                self.step += 1
                live.metrics(self.step, dict.fromkeys(NAMES, self.step / 7))
            if not live.flush():
                raise RuntimeError("the tracker did not store what it was given")

    def read(self) -> int:
        from db.reads import curves

        return len(curves.metric_series(self.tracker.db, self.run, NAMES[3], points=10**6))


class Mlflow:
    def __init__(self, folder: Path) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
        self.step = 0
        self.run = self.client.create_run(self.client.create_experiment("benchmark")).info.run_id

    def write(self, steps: int) -> None:
        from mlflow.entities import Metric

        for _ in range(steps):
            self.step += 1
            now = int(time.time() * 1000)
            self.client.log_batch(self.run, [Metric(name, self.step / 7, now, self.step) for name in NAMES])

    def read(self) -> int:
        return len(self.client.get_metric_history(self.run, NAMES[3]))


class Trackio:
    def __init__(self, folder: Path) -> None:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")
        from trackio.sqlite_storage import SQLiteStorage

        self.storage = SQLiteStorage
        self.step = 0
        self.storage.init_db("benchmark")

    def write(self, steps: int) -> None:
        rows = range(self.step + 1, self.step + steps + 1)
        self.step += steps
        for step in rows:  # as its server stores the content of one call
            self.storage.bulk_log("benchmark", "run", [dict.fromkeys(NAMES, step / 7)], steps=[step])

    def read(self) -> int:
        return len(self.storage.get_logs("benchmark", "run"))


PEERS: dict[str, Callable[[Path], Arm]] = {"mlflow-skinny": Mlflow, "trackio": Trackio}


def fill(report: Report, asked: argparse.Namespace) -> None:
    steps, rounds = (50, 2) if asked.quick else (300, 5)
    versions: dict[str, str | None] = {name: installed(name) for name in PEERS}
    versions["mlflow-skinny"] = versions["mlflow-skinny"] or installed("mlflow")
    with tempfile.TemporaryDirectory() as folder:
        arms: dict[str, Arm] = {"recover": Recover(Path(folder))}
        arms |= {name: PEERS[name](Path(folder)) for name, version in versions.items() if version}
        writing, _ = alternate({name: partial(arm.write, steps) for name, arm in arms.items()}, rounds)
        reading, points = alternate({name: arm.read for name, arm in arms.items()}, rounds)
    speeds = {name: steps * len(NAMES) / median(seconds) for name, seconds in writing.items()}
    report.tables[""] = [_row(name, speeds, reading, points, versions) for name in arms]
    for name in PEERS:
        ratio = speeds["recover"] / speeds[name] if name in speeds else None
        report.target(f"points stored a second against {name}'s", ratio, "at least", 5.0)
    report.notes.append(
        f"{steps} steps of {len(NAMES)} metrics a turn, logged one step at a time as a training does; "
        "the time ends when all is stored. This project collects and writes from a thread of its own. "
        "MLflow writes into SQLite by `log_batch`, trackio by its own storage class without its server; "
        "each step is a transaction of theirs. `read ms` is one metric's whole series after all rounds "
        "(trackio hands out a run as a whole)."
    )


def _row(
    name: str, speeds: dict[str, float], reading: Any, points: Any, versions: dict[str, str | None]
) -> Row:
    return {
        "": f"{name} {versions.get(name) or ''}".strip(),
        "points/s": speeds[name],
        "times": speeds["recover"] / speeds[name],
        "read ms": 1000 * median(reading[name]),
        "points read": points[name],
    }


if __name__ == "__main__":
    run("tracker", "How many metric points a second are stored, and how fast is a series read?", fill)
