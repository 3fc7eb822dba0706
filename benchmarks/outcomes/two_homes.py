"""Compare one stage of a cycle in each of two homes, whose settings differ: paired by question.

    python -m benchmarks.outcomes.two_homes HOME OTHER                    # the clean model
    python -m benchmarks.outcomes.two_homes HOME OTHER --stage recovered
    python -m benchmarks.outcomes.two_homes HOME OTHER --cycles 1 2       # cycle 2 of the other home

Both must have been asked the same questions. Nothing is asked again, and nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ledger import Line, markdown, paired
from benchmarks.outcomes.arguments import whole_docstring
from db.cycle_names import STAGES
from db.reads import queries
from evals import intervals, statistics
from evals.families.measures import clusters
from evals.scores import Item, share
from evals.statistics import PairedComparison
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace

FINISHED = ("accepted", "rejected")  # states of a cycle that has a verdict
Answers = dict[str, list[Item]]  # by suite and metric


def main() -> None:
    parser = whole_docstring(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--stage", choices=STAGES, default="clean")
    parser.add_argument("--cycles", type=int, nargs=2, default=(1, 1), metavar="N", help="one of each home")
    chosen = parser.parse_args()
    homes = zip((chosen.home, chosen.other), chosen.cycles, strict=True)
    found = [answers(home, cycle, chosen.stage) for home, cycle in homes]
    sys.stdout.write(markdown(table(*found)) + "\n")


def answers(home: Path, cycle: int, stage: str) -> Answers:
    """Return what the stage's model was asked, with what it passed."""
    with Workspace.open(home, progress=Progress(quiet=True)) as ws:
        rows = queries.stage_scores(ws.tracker.db, cycle)
        return {
            f"{row['suite']} {row['metric']}": recorded_items(ws, row["id"])
            for row in rows
            if row["stage"] == stage
        }


def headlines(ws: Workspace, cycle: int) -> dict[tuple[str, str], int]:
    """Return the id of each suite's headline score in a cycle, by stage and suite."""
    found: dict[tuple[str, str], int] = {}
    for row in queries.stage_scores(ws.tracker.db, cycle):  # a suite's headline comes first
        found.setdefault((row["stage"], row["suite"]), row["id"])
    return found


def table(ones: Answers, others: Answers) -> list[Line]:
    """Return a row for each score that both homes have: both shares, and the second minus the first."""
    return [_row(name, ones[name], others[name]) for name in ones if name in others]


def compared(after: Sequence[Item], before: Sequence[Item], *, otherwise: str) -> PairedComparison:
    """Compare two models' answers question by question; end with the message if the questions differ."""
    if [(item.key, item.prompt) for item in after] != [(item.key, item.prompt) for item in before]:
        raise SystemExit(otherwise)
    passed_after = [item.passed for item in after]
    passed_before = [item.passed for item in before]
    return statistics.compare(passed_after, passed_before, clusters=clusters(after))


def scored(items: Sequence[Item]) -> str:
    """Format a share of passes with its interval."""
    passed = [item.passed for item in items]
    low, high = intervals.clustered_interval(passed, clusters(items))
    return f"{share(passed):.3f} [{low:.3f}, {high:.3f}]"


def _row(name: str, ones: list[Item], others: list[Item]) -> Line:
    found = compared(others, ones, otherwise=f"{name}: the two homes were asked other questions")
    first = [item.passed for item in ones]
    second = [item.passed for item in others]
    return {
        "score": name,
        "n": len(ones),
        "first": f"{share(first):.3f}",
        "second": f"{share(second):.3f}",
        "difference": paired(found),
        "answered otherwise": sum(one != other for one, other in zip(first, second, strict=True)),
    }


if __name__ == "__main__":
    main()
