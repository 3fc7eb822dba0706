"""Compare ways to bring documents into a model: what is learned, what is forgotten, what recovery returns.

    preset          as shipped: next-token training on documents and on questions made of their sentences
    documents       as preset, on the documents alone
    chat            as preset, 30 % of the tokens being the clean model's own answers to recovery prompts
    frozen          as preset, embeddings and head fixed
    adapter         as preset, by a LoRA adapter of rank 32 on the clean model
    passage         answers of the clean model that sees the passage (`midtrain.method: passage`)
    passage-data    the documents' sentences, by the clean model's distributions with the passage in view
    vector-0.75     the clean model plus 0.75 of what `preset` added to it (`recover merge --weight 0.25`)
    vector-0.5, vector-0.25

    python -m benchmarks.outcomes.ways_in OUT --seeds 1 2 3    # a line for each way and stage
    python -m benchmarks.outcomes.ways_in OUT --write-docs     # write docs/results.md without training

Every way midtrains by the microworld's preset, with as many steps of the same cost, on documents of one cycle
in which a tenth of the known people moved and changed jobs; a scaled vector costs nothing more. Each is
measured as it is, and after the preset's recovery. Repeat the command to resume an interrupted run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger, Line, markdown, put, sections
from benchmarks.outcomes.arguments import ways_parser
from benchmarks.outcomes.changed import (
    COLUMNS,
    MIDTRAINED,
    PAGE,
    RECOVERED,
    World,
    compared,
    difference,
    line,
    shares,
    stored,
)
from evals.probes import NEW, OLD
from evals.verdict import AXES
from pipelines.config.jobs import MergeJob
from pipelines.distill import distill
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.merge import merge
from pipelines.midtrain import midtrain
from recovery.errors import Unstable

LINES = "ways_in.jsonl"
NAMES = ("seed", "way", "stage")  # of a line
CLEAN, PRESET = "clean", "preset"
STAGES = (MIDTRAINED, RECOVERED)
CYCLE = 1
STEPS = 360  # of every midtraining; the preset's six passes take as many
LORA_RANK = 32
MARGINS = {axis.suite: axis.margin for axis in AXES if axis.reference == CLEAN}


@dataclass(frozen=True)
class Way:
    """A midtraining by its settings, and how much of what it added to the clean model is kept."""

    midtraining: dict[str, Any] = field(default_factory=dict)
    kept: float = 1.0


WAYS = {
    PRESET: Way(),
    "documents": Way({"midtrain.mix": {"new": 1.0, "earlier": 0.0, "questions": 0.0}}),
    "chat": Way({"midtrain.mix": {"new": 0.38, "earlier": 0.0, "questions": 0.32, "chat": 0.3}}),
    "frozen": Way({"midtrain.freeze_embeddings": True}),
    "adapter": Way({"midtrain.lora": {"rank": LORA_RANK, "alpha": None}}),
    "passage": Way({"midtrain.method": "passage"}),
    "passage-data": Way({"midtrain.method": "passage", "midtrain.dials": {"states": "data"}}),
    "vector-0.75": Way(kept=0.75),
    "vector-0.5": Way(kept=0.5),
    "vector-0.25": Way(kept=0.25),
}


class Models(World):
    """The checkpoints of every way in one seed's world, all asked the same questions."""

    def __init__(self, home: Path, seed: int, small: bool) -> None:
        super().__init__(home, seed, small)
        world = self.folder(CYCLE)
        asked = {f"eval.{name}": str(world / f"{name}.jsonl") for name in ("probes", "ifeval")}
        self.changes = {"midtrain.steps": STEPS, **self.changes, **asked}

    def way_in(self, name: str) -> str:
        way = WAYS[name]
        if way.kept < 1:
            scaled = MergeJob(student=self.way_in(PRESET), other=self.clean, weight=1 - way.kept)
            return str(merge(self.ws, scaled, key=f"vector:{way.kept}")["checkpoint"])
        changes = {**self.changes, **way.midtraining}
        job = midtrain_job(self.ws, self.folder(CYCLE) / "docs", self.clean, changes=changes)
        return str(midtrain(self.ws, job, key=f"way:{name}")["checkpoint"])

    def way_back(self, name: str) -> str:
        """Recover a way's model; a training that an alarm stopped leaves it as it was."""
        start = self.way_in(name)
        job = distill_job(self.ws, student=start, changes=self.changes)
        try:
            return str(distill(self.ws, job, key=f"back:{name}")["checkpoint"])
        except Unstable as alarm:
            self.ws.progress.say(f"{name}: not recovered: {alarm}")
            return start

    @property
    def clean(self) -> str:
        return self.ws.clean().id

    def checkpoint(self, name: str, stage: str) -> str:
        if name == CLEAN:
            return self.clean
        return self.way_back(name) if stage == RECOVERED else self.way_in(name)


def run(out: Path, seed: int, ways: Sequence[str], small: bool = False) -> list[Line]:
    """Return a line for the clean model and two for each way; what is stored is not measured again."""
    ledger = Ledger(out / str(seed) / LINES, NAMES)
    wanted = [(CLEAN, CLEAN), *((way, stage) for way in ways for stage in STAGES)]
    missing = [pair for pair in wanted if ledger.get(seed=seed, way=pair[0], stage=pair[1]) is None]
    if missing:
        models = Models(out / str(seed), seed, small)
        with models.ws:
            for way, stage in missing:
                measured = line(models.items(models.checkpoint(way, stage)))
                named = {"seed": seed, "way": way, "stage": stage, "cycle": CYCLE, "left_out": None}
                ledger.add({**named, "small": small, **measured})
    return [ledger.lines[(seed, *pair)] for pair in wanted]


# Table ---------------------------------------------------------------------------------------------------


def page(lines: list[Line]) -> str:
    """Return the text for the documentation."""
    seeds = ", ".join(map(str, sorted({row["seed"] for row in lines})))
    note = (
        f"Seeds {seeds}. Shares of all questions with 95 % intervals, clustered by fact: `knowledge` asks "
        "about the new people, `new` and `old` are answers to changed facts, `stable` asks about known "
        "people's facts that did not change."
    )
    parts = [note, markdown(table(lines)), *findings(lines)]
    if differences := against_preset(lines):
        parts += [
            "After recovery, against `preset` after recovery, paired by question:",
            markdown(differences),
        ]
    return sections(lines, parts)


def table(lines: list[Line]) -> list[Line]:
    """Return the clean model's row, then one for each way and stage, over all its seeds."""
    chosen = [(CLEAN, CLEAN), *((way, stage) for stage in STAGES for way in WAYS)]
    rows = []
    for way, stage in chosen:
        if mine := _of(lines, way, stage):
            found = shares(mine)
            shown = {name: found[name] for name in ("knowledge", NEW, OLD, "stable", "IFEval")}
            rows.append({"way": f"`{way}`", "stage": stage, "seeds": len(mine), **shown})
    return rows


def _of(lines: list[Line], way: str, stage: str) -> list[Line]:
    return [row for row in lines if (row["way"], row["stage"]) == (way, stage)]


def findings(lines: list[Line]) -> list[str]:
    """State after which ways, and after which with recovery, the model is as good as the clean one."""
    margins = " and ".join(f"{100 * size:.0f} points of {COLUMNS[suite]}" for suite, size in MARGINS.items())
    said = []
    for stage, when in ((MIDTRAINED, "As midtraining leaves them"), (RECOVERED, "After recovery")):
        good = [f"`{way}`" for way in WAYS if _is_sound(_pairs(lines, (way, stage), (CLEAN, CLEAN)))]
        named = ", ".join(good) or "none"
        said.append(
            f"{when}, as good as the clean model within {margins}, of these trainings each at 95 %: {named}."
        )
    return said


def _is_sound(pairs: list[tuple[Line, Line]]) -> bool:
    """Return whether every suite is shown to be worse by less than its margin, if at all."""
    lowest = {suite: compared(pairs, suite).interval[0] for suite in MARGINS if pairs}
    return bool(pairs) and all(low > -MARGINS[suite] for suite, low in lowest.items())


def against_preset(lines: list[Line]) -> list[Line]:
    """Return each way's paired differences from `preset`, both after recovery."""
    rows = []
    for way in WAYS:
        pairs = _pairs(lines, (way, RECOVERED), (PRESET, RECOVERED))
        if way == PRESET or not pairs:
            continue
        row = {"way": f"`{way}`", "knowledge": difference(pairs, "knowledge")}
        row |= {f"answered `{name}`": difference(pairs, "updates", name) for name in (NEW, OLD)}
        rows.append(row | {COLUMNS[suite]: difference(pairs, suite) for suite in ("retention", "ifeval")})
    return rows


def _pairs(lines: list[Line], one: tuple[str, str], other: tuple[str, str]) -> list[tuple[Line, Line]]:
    """Return the lines of two ways and stages by seed, for the seeds that have both."""
    by_seed = {row["seed"]: row for row in _of(lines, *other)}
    return [(row, by_seed[row["seed"]]) for row in _of(lines, *one) if row["seed"] in by_seed]


def main() -> None:
    chosen = ways_parser("ways_in", __doc__, list(WAYS)).parse_args()
    for seed in [] if chosen.write_docs else chosen.seeds:
        print(markdown(table(run(chosen.out, seed, chosen.ways, chosen.small))), flush=True)
    lines = stored(chosen.out, LINES)
    print(page(lines) if lines else "nothing yet")
    if chosen.write_docs:
        if not lines:
            raise SystemExit(f"{chosen.out}: nothing was measured there: run it without --write-docs first")
        put(PAGE, "ways-in", page(lines))


if __name__ == "__main__":
    main()
