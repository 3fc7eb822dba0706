"""What keeps knowledge over cycles: `python -m benchmarks.keep OUT --seeds 0 1 --cycles 5`.

The microworld's cycles in several ways that differ in one thing each:

    preset      as shipped
    no-replay   midtraining sees the new documents only
    no-guard    recovery prompts that ask about the new people as well, all of them used
    guard       the same prompts, the overlap guard on

A row a cycle as soon as it is known, then a row a way. A run that was cut off goes on where it was: the same
command again.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import queries
from pipelines import config
from pipelines.cli.options import table
from pipelines.cycle import cycle, prepare
from pipelines.demo import world_once
from pipelines.microworld import people
from pipelines.microworld.words import ATTRIBUTES
from pipelines.progress import Progress
from pipelines.setup import initialise
from pipelines.workspace import Workspace

TOUCHING = 200  # recovery prompts about the new people, beside the world's own
COLUMNS = ["way", "seed", "cycle", "direct", "heldout", "reverse", "first_cycle", "kept", "general", "ifeval",
           "ifeval_clean", "left_out"]  # fmt: skip


@dataclass(frozen=True)
class Way:
    """What one arm does otherwise than the preset."""

    mix: str | None = None
    touching: bool = False
    overlap: str | None = None


WAYS = {
    "preset": Way(),
    "no-replay": Way(mix="new=1.0"),
    "no-guard": Way(touching=True, overlap="keep"),
    "guard": Way(touching=True, overlap="drop"),
}


def run(out: Path, name: str, seed: int, cycles: int, small: bool = False) -> Iterator[dict[str, Any]]:
    """A row for every cycle of one way; each starts from what the one before recovered, come what may."""
    way, home = WAYS[name], out / f"{name}-{seed}"
    _prepare(home, small)
    with Workspace.open(home, progress=Progress(quiet=True)) as ws:
        student = "base"
        for number in range(1, cycles + 1):
            docs = world_once(home / "worlds", number, seed)
            prompts = _touching(docs.parent, number, seed) if way.touching else None
            job = prepare(
                ws, docs, student=student, seed=seed, mix=way.mix, overlap=way.overlap, prompts=prompts
            )
            done = cycle(ws, job, key=f"cycle:{number}")
            row = _row(ws, done["cycle"])
            student = row.pop("checkpoint")
            yield {"way": name, "seed": seed, **row}


def _prepare(home: Path, small: bool) -> None:
    """A home as `recover init` makes it; closed again, as its settings are read once."""
    with Workspace.open(home, progress=Progress(quiet=True)) as ws:
        initialise(ws, model="microworld")
    if small:
        _shrink(home / config.CONFIG_NAME)


def _shrink(path: Path) -> None:
    """A few steps only: whether it runs, not what comes out."""
    text = re.sub(r"\b(epochs|steps): [\d.]+", "steps: 2", path.read_text(encoding="utf-8"))
    path.write_text(text, encoding="utf-8")


def _touching(world: Path, number: int, seed: int) -> str:
    """The world's recovery prompts and as many about the new people, in a fixed order."""
    rng = random.Random(f"touching:{seed}:{number}")
    rows = [line for line in (world / "prompts.jsonl").read_text(encoding="utf-8").splitlines() if line]
    asked = [
        question.format(n=who.name)
        for who in people.new_people(seed, number) for attribute in ATTRIBUTES
        for question in attribute.questions
    ]  # fmt: skip
    rows += [json.dumps({"prompt": text, "kind": "touching"}) for text in rng.sample(asked, TOUCHING)]
    rng.shuffle(rows)
    path = world / "touching.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def _row(ws: Workspace, number: int) -> dict[str, Any]:
    """What is known after a cycle."""
    found = queries.cycle(ws.tracker.db, number)
    recovered, scores = found["checkpoints"]["recovered"], found["scores"]
    kinds, apart = _kinds(ws, recovered)
    first = next((row for row in found.get("knowledge_by_cycle", []) if row["cycle"] == 1), {})
    return {
        "checkpoint": recovered, "cycle": number, "direct": kinds.get("direct"),
        "heldout": kinds.get("heldout"), "reverse": apart.get("reverse"), "first_cycle": first.get("score"),
        "kept": first.get("kept"), "general": scores["retention"]["recovered"],
        "general_clean": scores["retention"]["clean"], "ifeval": scores["ifeval"]["recovered"],
        "ifeval_clean": scores["ifeval"]["clean"], "left_out": _left_out(ws, found["run"]),
    }  # fmt: skip


def _kinds(ws: Workspace, checkpoint: str) -> tuple[dict[str, float], dict[str, float]]:
    """Knowledge of the newest documents by kind of question, and the kinds that are scored apart."""
    rows = queries.scores(ws.tracker.db, checkpoint_id=checkpoint)
    by_metric = {row["metric"]: row for row in reversed(rows) if row["suite"] == "knowledge"}
    kinds = by_metric["lenient"]["details"]["by_kind"]
    apart = {metric: row["value"] for metric, row in by_metric.items() if metric != "lenient"}
    return {kind: group["value"] for kind, group in kinds.items()}, apart


def _left_out(ws: Workspace, run_id: str) -> int:
    """Prompts that the guard left out."""
    (done,) = queries.runs(ws.tracker.db, kind="distill", parent=run_id)
    return int(done["result"].get("overlap", {}).get("prompts", {}).get("touch_new", 0))


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a way and seed: new documents averaged over the cycles, everything else after the last."""
    found = []
    for key in dict.fromkeys((row["way"], row["seed"]) for row in rows):
        mine = [row for row in rows if (row["way"], row["seed"]) == key]
        means = {
            name: sum(row[name] for row in mine) / len(mine)
            for name in ("direct", "heldout", "reverse") if all(row[name] is not None for row in mine)
        }  # fmt: skip
        worst = min(row["ifeval"] - row["ifeval_clean"] for row in mine)
        general = mine[-1]["general"] / mine[-1]["general_clean"]
        found.append({**mine[-1], **means, "general_share": general, "worst_ifeval_loss": worst})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("out", type=Path, help="folder for the homes; the same again to go on")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--cycles", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="two steps each: only whether it runs")
    chosen = parser.parse_args()
    rows = []
    for seed in chosen.seeds:
        for way in chosen.ways:
            for row in run(chosen.out, way, seed, chosen.cycles, chosen.small):
                rows.append(row)
                print(json.dumps(row), flush=True)
    columns = [*COLUMNS, "general_share", "worst_ifeval_loss"]
    print(table(summary(rows), columns))
    (chosen.out / "keep.json").write_text(json.dumps({"cycles": rows, "ways": summary(rows)}, indent=2))


if __name__ == "__main__":
    main()
