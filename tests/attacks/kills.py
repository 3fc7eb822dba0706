"""Kill processes, or fill their disk, at random moments: what they acknowledged must be there afterwards.

Of all kills most hit the tracker, a fifth checkpoints and training states, a fifth migrations, and one in
forty a whole cycle of a tiny model, which is then resumed until it ends as one that was left alone. Lives are
forked from a process that has imported everything; one in forty of the tracker's imports it anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from alembic import command
from safetensors.torch import save_file

from db import sqlite
from db.migrations import config
from db.reads import queries
from db.writes.tracker import Tracker
from pipelines.cli.commands import main
from recovery.storage.checkpoints import CheckpointStore
from recovery.storage.training_state import TrainState
from tests.attacks.attack import LeftOut, NotHeld, Size
from tests.support import full_disk, old_rows, small_cycles, tracker_steps
from tests.support.lives import KILLED, Lives, acknowledge

PRELOAD = ("tests.attacks.kills", "pipelines.cli.cycles", "pipelines.cycle", "lm_eval")
REJECTED = 3  # exit code
LONGEST_CYCLE = 1200.0  # seconds, on a busy machine
FEW = 6  # acknowledgements
EACH = 40  # lives that follow each other in one place
Ends = Callable[..., str]  # runs a life to its end and returns what it said on standard error


def kills(size: Size) -> str:
    """Return how many processes were killed in which work, and what they had acknowledged."""
    return run(size, "kills", killed)


def full_disks(size: Size) -> str:
    """Like `kills`, with disks that fill; what is said of it has to be one clear line."""
    if not full_disk.can_fill():
        raise LeftOut("the disk of one process is filled on Linux only")
    return run(size, "full disks", filled)


def run(size: Size, what: str, end: Ends) -> str:
    chance = size.random(what)
    parts = {
        "tracker": (tracker, size.kills * 23 // 40),
        "checkpoints": (checkpoints, size.kills // 5),
        "migrations": (migrations, size.kills // 5),
        "cycles": (cycles, max(1, size.kills // 40)),
    }
    done = []
    for name, (attacked, count) in parts.items():
        said = attacked(count, chance, end)
        done.append(f"{name} {count} times, {said}")
    return f"{what}: {'; '.join(done)}"


def killed(lives: Lives, work: Callable[..., None], *given: Any, after: float) -> str:
    code = lives.killed(work, *given, after=after)
    if code not in (0, KILLED):
        raise NotHeld(f"a process ended by itself with {code}: {lives.errors.read_text()[-300:]}")
    return ""


def filled(lives: Lives, work: Callable[..., None], *given: Any, after: float) -> str:
    code, said = lives.on_a_full_disk(work, *given, after=after)
    if code < 0:
        raise NotHeld(f"a process on a full disk ended by signal {-code}: {said[-300:]}")
    if code and "free some space" not in said:
        raise NotHeld(f"a full disk is not named: {said[-300:]}")
    return said


# Tracker ---------------------------------------------------------------------------------------------------


def tracker(count: int, chance: Random, end: Ends) -> str:
    acknowledged = 0
    span = span_of(tracker_steps.work, "recover.db", 0)
    cold_span = span_of(tracker_steps.work, "recover.db", 0, cold=True)
    for some in portions(count):
        with tempfile.TemporaryDirectory() as folder:
            where = str(Path(folder, "recover.db"))
            for turn in range(some):
                cold = turn == EACH // 2
                lives = lives_in(folder, cold=cold)
                done = len(lives.acknowledged())
                after = chance.uniform(0.0, cold_span if cold else span)
                end(lives, tracker_steps.work, where, done, after=after)
            done = len(lives_in(folder).acknowledged())
            with Tracker(where) as there:
                tracker_steps.check(there, done)
            acknowledged += done
    return f"{acknowledged:,} steps acknowledged and there"


# Checkpoints -----------------------------------------------------------------------------------------------


def publish(root: str, first: int) -> None:
    """Publish checkpoints and save training states, one after the other; acknowledge each."""
    import torch

    store, state = CheckpointStore(Path(root, "checkpoints")), TrainState(Path(root, "state"))
    for number in range(first, 10**9):
        tensors = {"weight": torch.full((200, 300), float(number))}

        def write(directory: Path, tensors: dict[str, Any] = tensors) -> None:
            (directory / "config.json").write_text(json.dumps({"padding": "x" * 2000}))
            save_file(tensors, directory / "model.safetensors")

        acknowledge(store.publish(write, parent=None).id)
        state.save(number, tensors, {"step": number})
        acknowledge(f"state {number}")


def checkpoints(count: int, chance: Random, end: Ends) -> str:
    acknowledged = 0
    span = span_of(publish, "", 0)
    for some in portions(count):
        with tempfile.TemporaryDirectory() as folder:
            lives = lives_in(folder)
            for turn in range(some):
                end(lives, publish, folder, turn * 10**5, after=chance.uniform(0.0, span))
                check_checkpoints(Path(folder), lives.acknowledged())
            acknowledged += len(lives.acknowledged())
    return f"{acknowledged:,} checkpoints and states acknowledged and whole"


def check_checkpoints(root: Path, lines: list[str]) -> None:
    """Open every checkpoint that was acknowledged, and any that has a name; and the newest state."""
    store = CheckpointStore(root / "checkpoints")
    promised = {line for line in lines if not line.startswith("state ")}
    there = {store.open(path.name).id for path in store.root.glob("[0-9a-f]*")}
    if promised - there:
        raise NotHeld(f"{len(promised - there)} checkpoints were acknowledged and are gone")
    states = [int(line.split()[1]) for line in lines if line.startswith("state ")]
    found = TrainState(root / "state").load()
    if states and (found is None or found[0] < states[-1]):
        raise NotHeld(f"the training state of step {states[-1]} was acknowledged and is gone")
    if found is not None and float(found[1]["weight"][0, 0]) != found[0]:
        raise NotHeld(f"the training state of step {found[0]} holds another one's numbers")


# Migrations ------------------------------------------------------------------------------------------------


def migrate(where: str, name: str) -> None:
    """Open a database of an older version, which migrates it, and record runs."""
    with Tracker(where) as there:
        for number in range(10**9):
            there.start_run("demo", key=f"{name}:{number}")
            acknowledge(f"{name}:{number}")


def migrations(count: int, chance: Random, end: Ends) -> str:
    """Half of the databases are of an older version with rows, half are new; some see several lives."""
    acknowledged = ended = number = 0
    span = span_of(migrate, "recover.db", "first")
    while ended < count:
        with tempfile.TemporaryDirectory() as folder:
            lives, where, old = lives_in(folder), Path(folder, "recover.db"), number % 2 == 1
            if old:
                make_old(where)
            for turn in range(min(1 + number % 3, count - ended)):
                end(lives, migrate, str(where), f"life {turn}", after=chance.uniform(0.0, span))
                ended += 1
            check_migrated(where, lives.acknowledged(), old)
            acknowledged += len(lives.acknowledged())
        number += 1
    return f"{acknowledged:,} runs acknowledged and there, in {number} databases"


def check_migrated(where: Path, promised: list[str], old: bool) -> None:
    with Tracker(where) as there:
        keys = {run["key"] for run in queries.runs(there.db, limit=10**6)}
        lost = set(promised) - keys
        if lost:
            raise NotHeld(f"{len(lost)} runs were acknowledged and are gone after a migration")
        if old:
            old_rows.check(there)
        tracker_steps.check_file(there)


def make_old(where: Path) -> None:
    engine = sqlite.connect(where)
    with engine.begin() as connection:
        command.upgrade(config(connection), old_rows.REVISION)
        for statement in old_rows.ROWS:
            connection.exec_driver_sql(statement)
    engine.dispose()


# Cycles ----------------------------------------------------------------------------------------------------


def turn_cycle(home: str, docs: str) -> None:
    """Run a cycle, or resume the one that was cut off; acknowledge each stage that is recorded as done."""
    finish = Tracker.finish_run

    def finished(self: Tracker, run_id: str, *given: Any, **named: Any) -> None:
        finish(self, run_id, *given, **named)
        acknowledge(run_id)

    Tracker.finish_run = finished  # type: ignore[method-assign]
    with Tracker(Path(home, "recover.db")) as there:
        cycles = queries.runs(there.db, kind="cycle")
    if cycles and cycles[0]["status"] == "done":  # the moment came after its end
        return
    words = ["resume"] if cycles else ["cycle", "--docs", docs]
    sys.argv = ["recover", "-q", "--home", home, *words]
    try:
        main()
    except SystemExit as stop:
        if stop.code != REJECTED:  # which a verdict on a tiny model usually is
            raise


def cycles(count: int, chance: Random, end: Ends) -> str:
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        seconds = complete(whole, [])
        expected = outcome(whole)
        resumed = stages = 0
        while resumed < count:
            place = Path(folder, f"cut {resumed}")
            moments = [chance.uniform(0.0, seconds) for _ in range(min(3, count - resumed))]
            resumed += len(moments)
            complete(place, moments, end)
            stages += len(lives_in(str(place)).acknowledged())
            if outcome(place) != expected:
                raise NotHeld(f"a resumed cycle ended otherwise: {outcome(place)} for {expected}")
    return f"{stages} stages acknowledged and kept, every verdict that of a cycle left alone"


def complete(place: Path, moments: list[float], end: Ends = killed) -> float:
    """Run a cycle through these ends and then to its own; return the seconds that the last life took."""
    place.mkdir()
    docs = small_cycles.make_docs(place)
    with small_cycles.make_home(place) as workspace:
        small_cycles.settle(workspace, margin=0.4, learning_rate=1e-4)
    lives = lives_in(str(place))
    for moment in moments:
        end(lives, turn_cycle, str(place / "home"), str(docs), after=moment)
        check_stages(place, lives.acknowledged())
    begun = time.monotonic()
    if lives.killed(turn_cycle, str(place / "home"), str(docs), after=LONGEST_CYCLE):
        raise NotHeld(f"a cycle that was cut off cannot be resumed: {lives.errors.read_text()[-300:]}")
    check_stages(place, lives.acknowledged())
    return time.monotonic() - begun


def check_stages(place: Path, acknowledged: list[str]) -> None:
    with Tracker(place / "home" / "recover.db") as there:
        status = {run["id"]: run["status"] for run in queries.runs(there.db, limit=1000)}
    lost = [run for run in acknowledged if status.get(run) != "done"]
    if lost or len(acknowledged) != len(set(acknowledged)):
        raise NotHeld(f"stages were acknowledged and are not done, or done twice: {lost or acknowledged}")


def outcome(place: Path) -> dict[str, Any]:
    """Return all that must not depend on whether a cycle was interrupted."""
    with Tracker(place / "home" / "recover.db") as there:
        cycle = queries.cycle(there.db, 1)
        keys = sorted(str(run["key"]) for run in queries.runs(there.db, limit=1000) if run["parent_id"])
    return {"runs": keys, **{name: cycle[name] for name in ("status", "checkpoints", "scores", "verdict")}}


# ---------------------------------------------------------------------------------------------------------


def span_of(work: Callable[..., None], name: str, first: object, *, cold: bool = False) -> float:
    """Return how long a life takes for a few acknowledgements here and now: most moments lie among them.

    The first life is not counted: the process from which the others are forked starts with it.
    """
    spans = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            lives = lives_in(folder, cold=cold)
            spans.append(lives.seconds(work, str(Path(folder, name)), first, lines=FEW))
    return spans[-1]


def portions(count: int) -> list[int]:
    return [min(EACH, count - first) for first in range(0, count, EACH)]


def lives_in(folder: str, *, cold: bool = False) -> Lives:
    return Lives(Path(folder, "acknowledged"), PRELOAD, cold)
