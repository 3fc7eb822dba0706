"""Measure what preserves knowledge over cycles: variants of the microworld's cycles, each with one change.

    preset         as shipped
    no-replay      midtraining sees the new documents only
    no-merge       recovery starts from the midtrained weights, without mixing in clean ones
    no-rehearsal   recovery reads no documents again
    documents      midtraining reads documents alone, no questions made of them
    frozen         midtraining leaves the embeddings and the head as they are
    previous       recovery's teacher is what the cycle began with, not the clean model
    no-guard       recovery prompts include questions about the new people, all of them used
    guard          the same prompts, without those that overlap the new documents
    weight         the same prompts, those that overlap weighted 0.2

    python -m benchmarks.outcomes.keep OUT --ways preset --seeds 0 1 --cycles 5   # a line a cycle
    python -m benchmarks.outcomes.keep OUT --ways guard no-guard --seeds 0  # in parallel, or later
    python -m benchmarks.outcomes.keep OUT --write-docs  # write docs/knowledge.md without training
    python -m benchmarks.outcomes.keep OUT --ways preset --cycles 20  # with --write-docs: a table of its own

Repeat the command to resume an interrupted run. Several processes may write to one OUT folder at once,
with different ways and seeds; every cycle is a line of OUT/WAY-SEED/cycles.jsonl.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger, Line, markdown, put, read, sections
from benchmarks.outcomes.arguments import ways_parser
from benchmarks.outcomes.changed import DOCUMENTS
from db.reads import queries
from pipelines.config import settings
from pipelines.cycle import cycle
from pipelines.demo import world_once
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine.init_home import initialise
from pipelines.microworld import people
from pipelines.microworld.words import ATTRIBUTES
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from recovery.storage.file_hashes import bytes_of

TOUCHING = 200  # recovery prompts about the new people, added to the world's
PAGE = Path(__file__).parents[2] / "docs" / "knowledge.md"
FEW = 5  # cycles of the table of ways
THIRD = 2  # index of the third cycle: the first that has several before it
LINES = "cycles.jsonl"  # in each variant's home
COLUMNS = {  # table columns: a summary's key -> its title
    "direct": "direct",
    "heldout": "held-out phrasing",
    "reverse": "reverse",
    "kept": "first cycle's kept",
    "least_kept": "at the lowest",
    "general_share": "general / clean",
    "least_general": "its lowest",
    "worst_ifeval": "worst IFEval − clean, points",
    "touching": "prompts touching",
    "flops": "FLOPs, last / third cycle",
    "seconds": "seconds, last / third cycle",
    "bytes": "bytes, last / third cycle",
}


@dataclass(frozen=True)
class Variant:
    """One variant, as changes to the preset."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # settings by their recover.yaml key
    touching: bool = False

    @property
    def looks(self) -> bool:
        """Return whether prompts that overlap the new documents are searched for."""
        return self.changes.get("distill.overlap") != "keep"


def _touched(overlap: str) -> Variant:
    return Variant({"distill.overlap": overlap}, touching=True)


WAYS = {
    "preset": Variant(),
    "no-replay": Variant({"midtrain.mix": {"new": 0.7, "earlier": 0.0, "questions": 0.3}}),
    "no-merge": Variant({"distill.merge": 0.0}),
    "no-rehearsal": Variant({"distill.rehearsal": 0.0}),
    "documents": Variant(DOCUMENTS),
    "frozen": Variant({"midtrain.freeze_embeddings": True}),
    "previous": Variant({"distill.dials": {"teacher": "previous"}}),
    "no-guard": _touched("keep"),
    "guard": _touched("drop"),
    "weight": _touched("weight"),
}


def run(out: Path, name: str, seed: int, cycles: int, small: bool = False) -> Iterator[Line]:
    """Return one line per cycle of a variant; each cycle starts from the previous recovered model."""
    home = out / f"{name}-{seed}"
    ledger = Ledger(home / LINES, ("cycle",))
    if all(ledger.get(cycle=number) for number in range(1, cycles + 1)):
        yield from (ledger.lines[(number,)] for number in range(1, cycles + 1))
        return
    _prepare(home, small)
    with Workspace.open(home, progress=Progress(quiet=True)) as ws:
        student = "base"
        for number in range(1, cycles + 1):
            line = ledger.get(cycle=number)
            if line is None:
                began, size = time.monotonic(), bytes_of(home)
                row = _cycle(ws, WAYS[name], student, number, seed)
                cost = {"seconds": time.monotonic() - began, "bytes": bytes_of(home) - size}
                line = ledger.add({"way": name, "seed": seed, "small": small, **row, **cost})
            student = line["checkpoint"]
            yield line


def _cycle(ws: Workspace, way: Variant, student: str, number: int, seed: int) -> Line:
    docs = world_once(ws.home / "worlds", number, seed)
    changes = {**way.changes, "seed": seed}
    if way.touching:
        changes["distill.prompts"] = _touching(docs.parent, number, seed)
    job = cycle_job(ws, docs, student=student, changes=changes)
    return _row(ws, cycle(ws, job, key=f"cycle:{number}")["cycle"])


def _prepare(home: Path, small: bool) -> None:
    """Create a home as `recover init` does; close it, because settings are read once."""
    with Workspace.open(home, progress=Progress(quiet=True)) as ws:
        initialise(ws, model="microworld")
    if small:
        _shrink(home / settings.CONFIG_NAME)


def _shrink(path: Path) -> None:
    """Reduce to a few steps and questions, to test the benchmark itself."""
    text = re.sub(r"\n  (epochs|steps): [\d.]+", r"\n  steps: 2", path.read_text(encoding="utf-8"))
    text = text.replace("\neval:\n", "\neval:\n  limit: 20\n")
    path.write_text(text, encoding="utf-8")


def _touching(world: Path, number: int, seed: int) -> str:
    """Return the world's recovery prompts and as many about the new people, in a fixed order."""
    rng = random.Random(f"touching:{seed}:{number}")
    rows = [line for line in (world / "prompts.jsonl").read_text(encoding="utf-8").splitlines() if line]
    asked = [
        question.format(n=who.name)
        for who in people.new_people(seed, number)
        for attribute in ATTRIBUTES
        for question in attribute.questions
    ]
    rows += [json.dumps({"prompt": text, "kind": "touching"}) for text in rng.sample(asked, TOUCHING)]
    rng.shuffle(rows)
    path = world / "touching.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return str(path)


def _row(ws: Workspace, number: int) -> dict[str, Any]:
    """Return the scores after a cycle."""
    found = queries.cycle(ws.tracker.db, number)
    recovered, scores = found["checkpoints"]["recovered"], found["scores"]
    kinds, apart = _kinds(ws, recovered)
    first: dict[str, Any] = next(
        (row for row in found.get("knowledge_by_cycle", []) if row["cycle"] == 1), {}
    )
    return {
        "checkpoint": recovered,
        "cycle": number,
        "direct": kinds.get("direct"),
        "heldout": kinds.get("heldout"),
        "reverse": apart.get("reverse"),
        "first_cycle": first.get("score"),
        "kept": first.get("kept"),
        "general": scores["retention"]["recovered"],
        "general_clean": scores["retention"]["clean"],
        "ifeval": scores["ifeval"]["recovered"],
        "ifeval_clean": scores["ifeval"]["clean"],
        "touching": _touching_new(ws, found["run"]),
        "flops": found["cost"]["flops"],
    }


def _kinds(ws: Workspace, checkpoint: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return knowledge of the newest documents by kind of question, with the separately scored kinds."""
    rows = queries.scores(ws.tracker.db, checkpoint_id=checkpoint)
    by_metric = {row["metric"]: row for row in reversed(rows) if row["suite"] == "knowledge"}
    kinds = by_metric["lenient"]["details"]["by_kind"]
    apart = {metric: row["value"] for metric, row in by_metric.items() if metric != "lenient"}
    return {kind: group["value"] for kind, group in kinds.items()}, apart


def _touching_new(ws: Workspace, run_id: str) -> int:
    """Return the prompts that the guard classified as overlapping the new documents."""
    (done,) = queries.runs(ws.tracker.db, kind="distill", parent=run_id)
    return int(done["result"].get("overlap", {}).get("prompts", {}).get("touch_new", 0))


def stored(out: Path) -> list[Line]:
    """Read the lines of every variant and seed in the folder, including those of running processes."""
    lines = [line for path in sorted(out.glob(f"*/{LINES}")) for line in read(path)]
    order = list(WAYS)
    return sorted(lines, key=lambda line: (order.index(line["way"]), line["seed"], line["cycle"]))


def summary(rows: list[Line]) -> list[Line]:
    """Return one row per variant and seed: new documents averaged over cycles, other scores at the end."""
    runs = dict.fromkeys((row["way"], row["seed"]) for row in rows)
    return [_run_summary([row for row in rows if (row["way"], row["seed"]) == run]) for run in runs]


def _run_summary(cycles: list[Line]) -> Line:
    """Return one row of all cycles of one variant and seed."""
    means = {
        name: sum(row[name] for row in cycles) / len(cycles)
        for name in ("direct", "heldout", "reverse")
        if all(row[name] is not None for row in cycles)
    }
    general = [row["general"] / row["general_clean"] for row in cycles]
    looks = WAYS[cycles[-1]["way"]].looks
    return {
        **cycles[-1],
        **means,
        "worst_ifeval": min(100 * (row["ifeval"] - row["ifeval_clean"]) for row in cycles),
        "least_general": min(general),
        "least_kept": min((row["kept"] for row in cycles if row["kept"] is not None), default=None),
        **{name: _growth([row.get(name) for row in cycles]) for name in ("flops", "seconds", "bytes")},
        "general_share": general[-1],
        "touching": sum(row["touching"] for row in cycles) if looks else None,
    }


def _growth(costs: list[float | None]) -> float | None:
    """Return what the last cycle cost, as a multiple of the third; None where one is unknown."""
    if len(costs) <= THIRD:
        return None
    last, third = costs[-1], costs[THIRD]
    return last / third if last is not None and third else None


def table(rows: list[Line]) -> list[Line]:
    """Return one row per variant: the mean over its seeds, with minimum and maximum if there are several."""
    found = []
    for way in dict.fromkeys(row["way"] for row in rows):
        mine = [row for row in summary(rows) if row["way"] == way]
        named = {"way": f"`{way}`", "seeds": _listed(mine, "seed"), "cycles": _listed(mine, "cycle")}
        found.append(named | {title: _spread([row[name] for row in mine]) for name, title in COLUMNS.items()})
    return found


def _listed(rows: list[Line], name: str) -> str:
    return ", ".join(map(str, sorted({row[name] for row in rows})))


def _spread(values: list[float | None]) -> str:
    there = [value for value in values if value is not None]
    if not there:
        return ""
    whole = all(isinstance(value, int) for value in there)
    numbers = sum(there) / len(there), min(there), max(there)
    mean, low, high = (f"{number:.{0 if whole else 2}f}" for number in numbers)
    return mean if low == high else f"{mean} ({low} to {high})"


def page(rows: list[Line]) -> str:
    """Return the text for the documentation."""
    note = (
        "Means over the seeds, with the lowest and highest. `direct`, `held-out phrasing` and `reverse` are "
        "the new documents' probes after recovery, averaged over the cycles; `prompts touching` is the sum "
        "over them, what is lowest or worst that of all cycles; the rest is after the last one."
    )
    return f"{note}\n\n{sections(rows, [markdown(table(rows))])}"


def main() -> None:
    parser = ways_parser("keep", __doc__, list(WAYS))
    parser.add_argument("--cycles", type=int, default=FEW, help=f"of each run (default: {FEW})")
    chosen = parser.parse_args()
    seeds = [] if chosen.write_docs else chosen.seeds
    for seed in seeds:
        for way in chosen.ways:
            for line in run(chosen.out, way, seed, chosen.cycles, chosen.small):
                print(json.dumps(line), flush=True)
    rows = stored(chosen.out)
    print(markdown(table(rows)))
    if chosen.write_docs:
        if not rows:
            raise SystemExit(f"{chosen.out}: no cycle was finished there: run it without --write-docs first")
        put(PAGE, "keep" if chosen.cycles == FEW else f"keep {chosen.cycles}", page(rows))


if __name__ == "__main__":
    main()
