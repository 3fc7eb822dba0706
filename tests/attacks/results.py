"""Write what attacks came to into docs/security.md: `python -m tests.attacks.results [LEDGER ...]`.

The ledgers are what `python -m tests.attacks --ledger FILE` wrote. Their lines take the place of older ones
of the same attacks in the ledger of this folder, from which the tables of the page are made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.ledger import Ledger, Line, markdown, put, read
from tests.attacks.attack import Attack, Size
from tests.attacks.table import ATTACKS

KEPT = Path(__file__).parent / "ledger.jsonl"
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
QUICK, CAMPAIGN = "quick", "campaign"  # the kinds of runs, and the marks of their tables


def ledger(path: Path) -> Ledger:
    return Ledger(path, ("run", "attack"))


def line(attack: Attack, size: Size, verdict: str, said: str) -> Line:
    """Return what the ledger keeps of an attack."""
    return {
        "run": QUICK if size.quick else CAMPAIGN,
        "attack": attack.name,
        "amount": size.amount(attack.unit),
        "seed": size.seed,
        "verdict": verdict,
        "said": said,
    }


def table(lines: list[Line], run: str) -> str:
    """Return the table of one kind of run, in the order of the list of attacks."""
    found = {line["attack"]: line for line in lines if line["run"] == run}
    return markdown(_row(found[name]) for name in ATTACKS if name in found)


def _row(line: Line) -> Line:
    return {
        "attack": f"`{line['attack']}`",
        "how much": line["amount"],
        "seed": line["seed"],
        "result": f"{line['verdict']}: {line['said']}".replace("|", "\\|"),
    }


def merge(lines: list[Line]) -> Iterator[Line]:
    """Yield the newest line of each attack, sorted so that a change of the ledger can be read."""
    newest = {(line["run"], line["attack"]): line for line in lines}
    order = list(ATTACKS)
    yield from sorted(newest.values(), key=lambda line: (line["run"], order.index(line["attack"])))


def main(added: list[Path]) -> None:
    paths = [KEPT, *added] if KEPT.exists() else added
    lines = list(merge([line for path in paths for line in read(path)]))
    KEPT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    for run in (QUICK, CAMPAIGN):
        put(PAGE, run, table(lines, run))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
