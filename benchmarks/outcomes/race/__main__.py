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

from pathlib import Path

import click

from benchmarks.outcomes.race.heats import CASES, METHODS, run
from benchmarks.outcomes.race.report import write_page
from benchmarks.outcomes.race.world import Scale


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
