"""Record metrics, progress and heartbeats of a running stage; calls never block or raise."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from db.errors import BadRequest
from db.schema import Run, Trace
from db.session import Database
from db.values import finite, now, plain
from db.writes.points import Point, store
from db.writes.upsert import upsert

log = logging.getLogger(__name__)

INTERVAL = 1.0  # seconds between writes
HEARTBEAT = 10.0  # seconds between heartbeats when there is nothing to write
LONGEST_PAUSE = 30.0  # most seconds between retries while the database cannot be written
MOST_DOUBLINGS = 32  # of the pause: 2**1024, after a night without the database, is no float
MOST_POINTS = 1_000_000  # most points buffered in memory
MOST_TRACES = 1_000  # most traced rollouts buffered in memory; each may hold 100 kB and more
POINTS, TRACES = "metric points", "token traces"


@dataclass
class PendingWrites:
    """Pending writes, keyed by name and step: a value logged or retried twice is stored once."""

    points: dict[tuple[str, int], Point] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    traces: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def add(self, newer: PendingWrites) -> None:
        self.points.update(newer.points)
        self.progress = newer.progress or self.progress
        self.traces.update(newer.traces)

    def drop_oldest(self) -> Counter[str]:
        """Drop the oldest points and traces that are too many to wait; return how many of each."""
        return Counter(
            {POINTS: _drop_oldest(self.points, MOST_POINTS), TRACES: _drop_oldest(self.traces, MOST_TRACES)}
        )

    def count(self) -> Counter[str]:
        """Return how many points and traces wait."""
        return Counter({POINTS: len(self.points), TRACES: len(self.traces)})


class LiveRun:
    """Buffer points and progress and write them from a background thread; retry a failed write.

    Call flush() before saving a training state: it returns True once everything logged is in the database.
    Otherwise the last second of metrics before the saved state may be lost, because a resumed run does not
    repeat those steps."""

    def __init__(self, database: Database, run_id: str, interval: float = INTERVAL) -> None:
        self._database = database
        self._run_id = run_id
        self._interval = interval
        self._lineage: list[str] = []
        self._state = threading.Condition()  # guards the attributes below
        self._waiting = PendingWrites()
        self._logged = self._stored = 0  # number of calls so far, and of those stored
        self._failures = 0  # writes that failed
        self._lost = Counter[str]()  # points and traces dropped from a full buffer
        self._flushing = self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"live {run_id}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Log one step's values; a value that is not a number is dropped with a warning."""
        points = {}
        for name, value in values.items():
            try:
                point = Point.of(self._run_id, name, step, value)
                points[point.name, point.step] = point
            except BadRequest as error:
                log.warning("%s", error)
        self._add(PendingWrites(points=points))

    def progress(self, step: int, steps: int, *, eta_seconds: float | None = None, message: str = "") -> None:
        """Report the stage's progress; only the newest report is kept."""
        report = {"step": step, "steps": steps, "eta_seconds": eta_seconds, "message": message}
        self._add(PendingWrites(progress=report))

    def traces(self, step: int, traces: Iterable[Mapping[str, Any]]) -> None:
        """Log one step's rollouts token by token: rows of prompt, estimator, mean and `tokens` lists."""
        rows = {
            (step, place): plain({**trace, "mean": finite(trace.get("mean"))})
            for place, trace in enumerate(traces)
        }
        self._add(PendingWrites(traces=rows))

    def flush(self, timeout: float = 60.0) -> bool:
        """Block until everything logged so far is stored; return False on failure or timeout."""
        with self._state:
            target = self._logged
            failures = self._failures
            self._flushing = True
            self._state.notify_all()
            self._state.wait_for(lambda: self._stored >= target or self._failures > failures, timeout)
            return self._stored >= target

    def close(self) -> None:
        """Write the remaining batch and end the thread."""
        self.flush()
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join(timeout=5.0)
        lost = self._lost + self._waiting.count()
        if lost:
            named = " and ".join(f"{count} {what}" for what, count in sorted(lost.items()))
            log.warning("%s of run %s could not be written and are lost", named, self._run_id)

    def _add(self, batch: PendingWrites) -> None:
        with self._state:
            self._waiting.add(batch)
            self._logged += 1
            self._lost += self._waiting.drop_oldest()

    # In the thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Write what waits whenever a write is due, and a heartbeat where nothing does."""
        written, failures_in_a_row = 0.0, 0
        while self._wait(self._pause(failures_in_a_row)):
            with self._state:
                batch, self._waiting = self._waiting, PendingWrites()
                logged = self._logged
            if self._stored == logged and time.monotonic() - written < HEARTBEAT:
                continue
            try:
                self._write(batch)
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                failures_in_a_row += 1
                self._failed(batch, error, first=failures_in_a_row == 1)
            else:
                written = time.monotonic()
                failures_in_a_row = 0
                with self._state:
                    self._stored = logged
                    self._state.notify_all()

    def _pause(self, failures_in_a_row: int) -> float:
        """Return the seconds until the next write: doubled by every failure, up to LONGEST_PAUSE."""
        doublings = min(failures_in_a_row, MOST_DOUBLINGS)
        return min(self._interval * 2.0**doublings, LONGEST_PAUSE)

    def _wait(self, seconds: float) -> bool:
        """Block until a write is due or flush() was called; return False at the end."""
        with self._state:
            self._state.wait_for(lambda: self._flushing or self._closing, seconds)
            self._flushing = False
            return not self._closing

    def _failed(self, batch: PendingWrites, error: Exception, *, first: bool) -> None:
        """Let a batch that could not be written wait again, before what was logged since."""
        if first:
            log.warning("metrics of run %s wait in memory, writing is tried again: %s", self._run_id, error)
        with self._state:
            batch.add(self._waiting)
            self._waiting = batch
            self._lost += batch.drop_oldest()
            self._failures += 1
            self._state.notify_all()

    def _write(self, batch: PendingWrites) -> None:
        """Write the points, and a heartbeat for this run and its ancestors."""

        def work(session: Session) -> None:
            self._lineage = self._lineage or _lineage(session, self._run_id)
            store(session, batch.points.values())
            upsert(
                session,
                Trace,
                [
                    {"run_id": self._run_id, "step": step, "place": place} | row
                    for (step, place), row in batch.traces.items()
                ],
            )
            session.execute(update(Run).where(Run.id.in_(self._lineage)).values(heartbeat_at=now()))
            if batch.progress:
                session.execute(update(Run).where(Run.id == self._run_id).values(progress=batch.progress))

        self._database.write(work)


def _drop_oldest(rows: dict[Any, Any], most: int) -> int:
    """Drop the rows that came first until `most` are left; return how many."""
    oldest = list(islice(rows, max(0, len(rows) - most)))
    for key in oldest:
        del rows[key]
    return len(oldest)


def _lineage(session: Session, run_id: str) -> list[str]:
    found: list[str] = []
    current: str | None = run_id
    while current is not None:
        found.append(current)
        current = session.scalar(select(Run.parent_id).where(Run.id == current))
    return found
