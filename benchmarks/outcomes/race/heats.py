"""Share the worlds of the race among processes, and tune every method on one more world."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ledger import Ledger
from benchmarks.outcomes.race.report import worth
from benchmarks.outcomes.race.world import MERGED, MIDTRAINED, TRAINED, Race, Row, Scale
from pipelines.runs.progress import Progress

METHODS = (*MIDTRAINED, *MERGED, *TRAINED)
CASES = ("hard", "mild", "types")
TUNING_CASE, TUNING_SEED = "hard", 9_000  # a world used for tuning only
TRIES = {
    "none": (1.0,),
    "replay": (0.15, 0.3, 0.6),  # share of chat in midtraining
    "lora": (1.0, 3.0, 10.0),  # factors of midtraining's learning rate: adapters need more
    "embeddings": (0.5, 0.75, 1.0),  # share of the clean embeddings and head
    "merge": (0.3, 0.5, 0.7),  # share of the clean weights
}
NAMED_BY = ("case", "method", "tuned")  # fields that identify a result on a world
FACTORS = (0.5, 1.0, 2.0)  # factors of the learning rate for training after midtraining


@dataclass(frozen=True)
class Heat:
    """A world and its runs: (case, method, tuned value)."""

    seed: int
    entries: tuple[tuple[str, str, float], ...]


def tries(method: str) -> tuple[float, ...]:
    return TRIES.get(method, FACTORS)


def or_make(ledger: Ledger, race: Race, case: str, method: str, tuned: float) -> Row:
    """Return the named row; run it first if it is missing."""
    return ledger.get(case=case, method=method, tuned=tuned) or ledger.add(race.row(case, method, tuned))


def run(
    work: Path, seeds: Sequence[int], cases: Sequence[str], methods: Sequence[str], scale: Scale
) -> list[Row]:
    """Tune each method on one world, then compare them on the others; return the rows of the comparison."""
    progress = Progress()
    attempts = tuple((TUNING_CASE, method, tuned) for method in methods for tuned in tries(method))
    best: dict[str, Row] = {}
    for row in held(work, [Heat(TUNING_SEED, attempts)], scale, progress):
        best[row["method"]] = max((best.get(row["method"], row), row), key=worth)
    entries = tuple((case, method, best[method]["tuned"]) for case in cases for method in methods)
    return held(work, [Heat(seed, entries) for seed in seeds], scale, progress)


def held(work: Path, heats: Sequence[Heat], scale: Scale, progress: Progress) -> list[Row]:
    """Return the rows of all heats: first on free worlds, then on those that other processes had claimed."""
    found: dict[int, list[Row]] = {}
    for patient in (False, True):
        for heat in heats:
            if heat.seed in found:
                continue
            folder = work / f"seed-{heat.seed}"
            if patient:
                progress.say(f"world {heat.seed}: read when the process that is at it has done with it")
            with claimed(folder, wait=patient) as mine:
                if mine:
                    found[heat.seed] = hold(work, heat, scale, progress)
    return [row for heat in heats for row in found[heat.seed]]


@contextmanager
def claimed(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Claim a folder for this process; the kernel releases the lock if the process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "claim").open("w") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def hold(work: Path, heat: Heat, scale: Scale, progress: Progress) -> list[Row]:
    """Return one heat's rows; open the world only if a row is missing."""
    ledger = Ledger(work / f"seed-{heat.seed}" / "rows.jsonl", NAMED_BY)
    if any(entry not in ledger.lines for entry in heat.entries):
        with Race(work, heat.seed, scale, progress) as race:
            for number, entry in enumerate(heat.entries, 1):
                row = or_make(ledger, race, *entry)
                place = f"world {heat.seed}, {number} of {len(heat.entries)}"
                case, method, tuned = entry
                progress.say(f"{place}: {case} {method} {tuned:g} {json.dumps(row['recovered'])}")
    return [ledger.lines[entry] for entry in heat.entries]
