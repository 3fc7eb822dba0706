"""Open one empty database from several processes at the same moment: each makes the tables, or finds them."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

from db.reads import queries
from db.writes.tracker import Tracker
from tests.attacks.attack import NotHeld, Size
from tests.support import tracker_steps

PRELOAD = ["tests.attacks.first_inits"]
PROCESSES = 4
QUICK = 8  # databases
LONGEST = 120.0  # seconds


def first_inits(size: Size) -> str:
    """Return how many databases were made by several processes at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    made = 0
    for number in size.rounds(QUICK):
        with tempfile.TemporaryDirectory() as folder:
            together(context, Path(folder, "recover.db"), number)
        made += 1
    return f"{made} databases, each opened first by {PROCESSES} processes at once"


def together(context: Any, where: Path, number: int) -> None:
    gate = context.Barrier(PROCESSES)
    racing = [context.Process(target=init, args=(str(where), name, gate)) for name in range(PROCESSES)]
    for one in racing:
        one.start()
    deadline = time.monotonic() + LONGEST
    for one in racing:
        one.join(max(0.0, deadline - time.monotonic()))
        one.kill()
        one.join()
    codes = [one.exitcode for one in racing]
    if any(codes):
        raise NotHeld(f"database {number}: processes ended with {codes}")
    with Tracker(where) as there:
        keys = sorted(str(run["key"]) for run in queries.runs(there.db, limit=1000))
        tracker_steps.check_file(there)
    if keys != sorted(f"first {name}" for name in range(PROCESSES)):
        raise NotHeld(f"database {number}: of the first runs only {keys} are there")


def init(where: str, name: int, gate: Any) -> None:
    """Make the tables and record a run; at the same moment as the others do."""
    gate.wait(LONGEST)
    with Tracker(where) as there:
        there.start_run("demo", key=f"first {name}")
