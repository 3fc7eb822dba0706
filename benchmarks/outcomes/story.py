"""Verify the demo's claims on new seeds: run `recover demo` for each, as a user would.

python -m benchmarks.outcomes.story --seeds 11,12,13               # one table; resumes if interrupted
python -m benchmarks.outcomes.story --seeds 11,12,13 --write-docs  # and update the microworld's README
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.ledger import Clock, Ledger, Line, markdown, put
from benchmarks.outcomes.arguments import home_parser, whole_numbers
from db.cycle_names import STAGES

PAGE = Path(__file__).parents[2] / "pipelines" / "microworld" / "README.md"
REJECTED = 3  # exit code of a demo with a rejected cycle, which the table includes


def main() -> None:
    asked = _arguments()
    ledger, clock = Ledger(asked.home / "story.jsonl", ("seed", "cycles")), Clock(len(asked.seeds))
    lines = []
    for seed in asked.seeds:
        clock.say(f"seed {seed}")
        known = ledger.get(seed=seed, cycles=asked.cycles)
        lines.append(known or ledger.add(tell(asked.home, seed, asked.cycles)))
        clock.done += 1
    text = markdown([row for line in lines for row in rows(line)])
    print(text)
    if asked.write_docs:
        put(PAGE, "story", text)
    sys.exit(0 if all(row["misses"] == "" for line in lines for row in rows(line)) else 3)


def _arguments() -> argparse.Namespace:
    parser = home_parser(__doc__, Path(".recover") / "story", "pipelines/microworld/README.md")
    parser.add_argument("--seeds", type=whole_numbers, default=[1, 2, 3], help="worlds, as in 1,2,3")
    parser.add_argument("--cycles", type=int, default=2, help="how many turns of the story")
    return parser.parse_args()


def tell(home: Path, seed: int, cycles: int) -> Line:
    """Run one demo in a fresh home; return the seconds from the command's start to its end."""
    place = home / f"seed-{seed}-{cycles}-{time.strftime('%Y%m%d-%H%M%S')}"
    words = ["--home", str(place), "--json", "demo", "--cycles", str(cycles), "--seed", str(seed)]
    begun = time.monotonic()
    recover = [sys.executable, "-c", "from pipelines.cli import main; main()"]
    done = subprocess.run([*recover, *words], stdout=subprocess.PIPE)
    if done.returncode not in (0, REJECTED):
        done.check_returncode()
    return {
        "seed": seed,
        "cycles": cycles,
        "seconds": time.monotonic() - begun,
        "story": json.loads(done.stdout)["cycles"],
    }


def rows(line: Line) -> Iterator[dict[str, Any]]:
    """Return a demo's cycles as rows: clean / midtrained / recovered, and the claims that failed."""
    for cycle in line["story"]:
        scores, first = cycle["scores"], cycle["cycle"] == 1
        shown = {suite: " / ".join(f"{scores[suite][stage]:.2f}" for stage in STAGES) for suite in scores}
        earlier = ", ".join(f"{past['then']:.2f} → {past['score']:.2f}" for past in _earlier(cycle))
        yield {
            "seed": line["seed"] if first else None,
            "cycle": str(cycle["cycle"]),
            **shown,
            "lower bound": f"{100 * cycle['verdict']['behaviour_lower_bound']:+.1f}",
            "earlier documents": earlier,
            "status": cycle["status"],
            "misses": ", ".join(misses(cycle)),
            "seconds": f"{line['seconds']:.0f}" if first else None,
        }


def misses(cycle: dict[str, Any]) -> Iterator[str]:
    """Return the demo's claims about every cycle that this one does not meet."""
    ifeval, knowledge, retention = (cycle["scores"][name] for name in ("ifeval", "knowledge", "retention"))
    claims = {
        "clean behaves": ifeval["clean"] >= 0.95,
        "midtraining breaks behaviour": ifeval["midtrained"] <= 0.5,
        "behaviour recovered": cycle["verdict"]["behaviour"] == "recovered",
        "the documents are new": knowledge["clean"] <= 0.15,
        "the documents are known": knowledge["recovered"] >= 0.8 and cycle["verdict"]["knowledge"] == "kept",
        "old knowledge stays": retention["recovered"] >= 0.9 * retention["clean"],
        "earlier documents stay": all(past["score"] >= 0.9 * past["then"] for past in _earlier(cycle)),
    }
    yield from (claim for claim, true in claims.items() if not true)


def _earlier(cycle: dict[str, Any]) -> list[dict[str, Any]]:
    return [past for past in cycle.get("knowledge_by_cycle", []) if past.get("then")]


if __name__ == "__main__":
    main()
