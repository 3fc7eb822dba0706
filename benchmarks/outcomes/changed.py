"""Measure whether recovery brings old answers to changed facts back, with the guard and without it.

    keep           recovery prompts as the microworld writes them, all of them used
    guard          the same prompts, without those that touch what the documents taught
    asked          questions about every changed fact among the prompts, all of them used
    asked-guard    the same prompts, without those that touch what the documents taught

    python -m benchmarks.outcomes.changed OUT --seeds 5          # one line a way and seed
    python -m benchmarks.outcomes.changed OUT --write-docs       # write docs/knowledge.md without training

One midtraining a seed, from the clean checkpoint on a first cycle's documents, of which a tenth of the known
people's cities and jobs have changed; every way recovers from it with the preset's settings. A seed chooses
the world; training has the preset's own. Repeat the command to resume an interrupted run.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger, Line, markdown, mean, put, read
from benchmarks.outcomes.arguments import ways_parser
from evals.knowledge import ANSWERED
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.job_from_options import distill_job, eval_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.microworld.changes import state
from pipelines.microworld.world import write_world
from pipelines.midtrain import midtrain
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace

SHARE = 0.1  # of the known people
QUESTIONS = 200  # of each suite, at most
SUITES = "knowledge,retention,updates"
PAGE = Path(__file__).parents[2] / "docs" / "knowledge.md"
LINES = "changed.jsonl"
SMALL = {"midtrain.steps": 2, "distill.steps": 2}
MIDTRAINED = "midtrained"  # the row before any recovery


@dataclass(frozen=True)
class Way:
    """One recovery."""

    overlap: str
    asked: bool  # whether the prompts ask about the changed facts


WAYS = {
    "keep": Way("keep", asked=False),
    "guard": Way("drop", asked=False),
    "asked": Way("keep", asked=True),
    "asked-guard": Way("drop", asked=True),
}


class World:
    """A home with one seed's world and the model midtrained on it."""

    def __init__(self, home: Path, seed: int, small: bool) -> None:
        self.ws = Workspace.open(home.absolute(), progress=Progress(quiet=True))
        self.seed, self.changes = seed, {"eval.limit": QUESTIONS, **(SMALL if small else {})}
        self.folder = self.ws.home / "world"
        initialise(self.ws, model="microworld")
        if not (self.folder / "ifeval.jsonl").exists():
            write_world(self.folder, cycle=1, seed=seed, changed=SHARE)

    def midtrained(self) -> str:
        job = midtrain_job(self.ws, self.folder / "docs", "base", changes=self.changes)
        return str(midtrain(self.ws, job, key="midtrain")["checkpoint"])

    def recovered(self, name: str) -> dict[str, Any]:
        way = WAYS[name]
        changes = {**self.changes, "distill.overlap": way.overlap}
        if way.asked:
            changes["distill.prompts"] = str(self._asked())
        return distill(
            self.ws, distill_job(self.ws, student=self.midtrained(), changes=changes), key=f"distill:{name}"
        )

    def scores(self, checkpoint: str) -> dict[str, Any]:
        job = eval_job(self.ws, checkpoint, SUITES, changes=self.changes)
        found: dict[str, Any] = evaluate(self.ws, job, key=f"eval:{checkpoint}")["scores"]
        return found

    def _asked(self) -> Path:
        """Write the world's prompts with every training phrasing of every changed fact among them."""
        rows = (self.folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
        rows += [
            json.dumps({"prompt": question.format(n=change.who.name), "kind": "changed"})
            for change in state(self.seed, 1, SHARE).newest
            for question in change.attribute.questions
        ]
        random.Random(f"asked:{self.seed}").shuffle(rows)
        path = self.folder / "asked.jsonl"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return path


def run(out: Path, seed: int, ways: list[str], small: bool = False) -> list[Line]:
    """Return the midtrained model's line and one for each way; what is stored is not measured again."""
    ledger = Ledger(out / str(seed) / LINES, ("seed", "way"))
    wanted = [MIDTRAINED, *ways]
    if any(ledger.get(seed=seed, way=way) is None for way in wanted):
        world = World(out / str(seed), seed, small)
        try:
            for way in wanted:
                if ledger.get(seed=seed, way=way) is None:
                    ledger.add({"seed": seed, "way": way, "small": small, **_measured(world, way)})
        finally:
            world.ws.tracker.close()
    return [ledger.lines[seed, way] for way in wanted]


def _measured(world: World, way: str) -> dict[str, Any]:
    if way == MIDTRAINED:
        return _row(world.scores(world.midtrained()), {})
    done = world.recovered(way)
    return _row(world.scores(done["checkpoint"]), done.get("overlap", {}).get("prompts", {}))


def _row(scores: dict[str, Any], overlap: dict[str, Any]) -> dict[str, Any]:
    """Return the shares of new, old and neither answers, and the other suites' scores."""
    updates = scores["updates"]
    shares = {name: updates["answered"][name] / updates["n"] for name in ANSWERED}
    others = {suite: scores[suite]["score"] for suite in ("knowledge", "retention")}
    return {"n": updates["n"], **shares, **others, "left_out": overlap.get("touch_new")}


def table(lines: list[Line]) -> list[Line]:
    """Return one row a way: means over the seeds."""
    found = []
    for way in (MIDTRAINED, *WAYS):
        mine = [line for line in lines if line["way"] == way]
        if mine:
            named = {"way": f"`{way}`", "seeds": len(mine), "questions": sum(line["n"] for line in mine)}
            values = {
                name: mean(line[name] for line in mine) for name in (*ANSWERED, "knowledge", "retention")
            }
            left_out = [line["left_out"] for line in mine if line["left_out"] is not None]
            found.append(named | values | {"prompts left out": sum(left_out) if left_out else None})
    return found


def stored(out: Path) -> list[Line]:
    return [line for path in sorted(out.glob(f"*/{LINES}")) for line in read(path)]


def main() -> None:
    parser = ways_parser("changed", __doc__, list(WAYS))
    chosen = parser.parse_args()
    seeds = [] if chosen.write_docs else chosen.seeds
    for seed in seeds:
        for line in run(chosen.out, seed, chosen.ways, chosen.small):
            print(json.dumps(line), flush=True)
    text = markdown(table(stored(chosen.out)))
    print(text)
    if chosen.write_docs:
        put(PAGE, "changed", text)


if __name__ == "__main__":
    main()
