"""Compare all recovery methods on the same microworlds with the same budgets.

    python -m benchmarks.outcomes.race --seeds 5 --work .race

Several processes share the worlds: each claims a free one, and reads the others' results. An interrupted run
resumes. Cases: `hard` (documents only), `mild` (30 % of midtraining is chat answered by the clean model) and
`types` (hard, but recovery prompts hold one half of the instruction types and behaviour is scored on the
other half). Steps and rates come from benchmarks/outcomes/lab.py, not from the demo, which may change without
invalidating these measurements.

Budgets: every method samples or reads the same number of sequences and makes the same number of updates per
batch where its row allows it. Every tunable method gets three tries (learning rates, shares of chat, or merge
weights) in the hard case, on a world outside the seeds, and runs in every case with the best of them. No
recovery, chat replay, frozen embeddings (and head) and LoRA are variants of midtraining, with nothing after
it. The cost of clean-model answers read from a file is charged to the method. The page lists what is missing,
and why.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.ledger import Ledger
from benchmarks.outcomes.race_report import worth, write_page
from benchmarks.outcomes.race_world import MERGED, MIDTRAINED, TRAINED, Race, Row, Scale
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


@click.command()
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1), help="so many worlds")
@click.option("--first-seed", default=0, show_default=True, help="the first of them")
@click.option("--work", default=".race", type=click.Path(path_type=Path), help="where it all lies")
@click.option("--cases", default=",".join(CASES), show_default=True)
@click.option("--methods", default=",".join(METHODS), show_default=True)
@click.option("--small", is_flag=True, help="a few steps on a few prompts: only tries the benchmark itself")
@click.option("--page", type=click.Path(path_type=Path), help="default: docs/results.md; small: WORK/small")
def main(
    seeds: int, first_seed: int, work: Path, cases: str, methods: str, small: bool, page: Path | None
) -> None:
    """Run what is missing of the race, and write its table and picture into the page."""
    scale = Scale.small() if small else Scale()
    place = work / "small" if small else work
    chosen = range(first_seed, first_seed + seeds)
    rows = run(place, chosen, cases.split(","), methods.split(","), scale)
    write_page(rows, page or (place / "results.md" if small else Path("docs/results.md")))


if __name__ == "__main__":
    main()
