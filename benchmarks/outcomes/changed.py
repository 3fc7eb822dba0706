"""Measure whether a model answers changed facts anew after recovery, and what decides it.

    preset         as shipped: half of what recovery rehearses are questions made of the documents' sentences
    text           recovery rehearses documents as text alone
    whole          as text, and documents are never split: each is read from its beginning
    documents      as shipped, but midtraining reads documents alone, no questions made of them
    shorter        midtraining of 240 steps, not six passes over the documents
    half           half of recovery's tokens rehearsed, not two thirds
    shorter-half   both: what was shipped before
    longer-half    midtraining of 480 steps, half of recovery's tokens rehearsed
    keep           as shipped, with every recovery prompt used
    asked          as keep, with questions about every changed fact among the prompts
    asked-guard    the same prompts, without those that touch what the documents taught

    python -m benchmarks.outcomes.changed OUT --seeds 1 2 3 --ways preset text   # a line a checkpoint
    python -m benchmarks.outcomes.changed OUT --write-docs    # write docs/results.md without training

In each cycle a tenth of the known people move and change jobs. A cycle midtrains on its documents and
recovers with the preset's settings, from the previous cycle's model. A seed chooses the world; training has
the preset's own. Repeat the command to resume an interrupted run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ledger import Ledger, Line, markdown, paired, put, read, sections
from benchmarks.outcomes.arguments import ways_parser
from benchmarks.outcomes.old_odds import old_odds
from evals import intervals, statistics
from evals.probes import ANSWERED, NEW, OLD
from evals.scores import Item
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.job_from_options.measure import eval_job
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.microworld.changes import state
from pipelines.microworld.world import write_world
from pipelines.midtrain import midtrain
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace

SHARE = 0.1  # of the known people
QUESTIONS = 200  # of each suite, at most
SUITES = ("updates", "knowledge", "retention", "ifeval")
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
LINES = "changed.jsonl"
# Without the preset's questions, in as many steps: documents are read as much more often.
DOCUMENTS = {"midtrain.mix": {"new": 0.7, "earlier": 0.3, "questions": 0.0}, "midtrain.epochs": 10.5}
SMALL = {"midtrain.steps": 2, "midtrain.epochs": None, "distill.steps": 2}
MIDTRAINED, RECOVERED = "midtrained", "recovered"
NAMES = ("seed", "way", "cycle", "stage")  # of a line


@dataclass(frozen=True)
class Way:
    """One way to midtrain and to recover, as changes to the preset; prompts may ask about changed facts."""

    midtraining: Mapping[str, Any] = field(default_factory=dict)
    recovery: Mapping[str, Any] = field(default_factory=dict)
    asked: bool = False


TEXT, KEEP = {"distill.rehearsal_questions": 0.0}, {"distill.overlap": "keep"}
SHORTER, LONGER = {"midtrain.steps": 240}, {"midtrain.steps": 480}
HALF = {"distill.rehearsal": 0.5}
COMPARED = (("preset", "text"), ("text", "whole"), ("preset", "documents"))  # pairs that differ in one thing
WAYS = {
    "preset": Way(),
    "text": Way(recovery=TEXT),
    "whole": Way({"midtrain.split_documents": 0.0}, {**TEXT, "distill.split_documents": 0.0}),
    "documents": Way(DOCUMENTS),
    "shorter": Way(SHORTER),
    "half": Way(recovery=HALF),
    "shorter-half": Way(SHORTER, HALF),
    "longer-half": Way(LONGER, HALF),
    "keep": Way(recovery=KEEP),
    "asked": Way(recovery=KEEP, asked=True),
    "asked-guard": Way(asked=True),
}


class World:
    """A home with one seed's worlds, and the models of every way."""

    def __init__(self, home: Path, seed: int, small: bool) -> None:
        self.ws = Workspace.open(home.absolute(), progress=Progress(quiet=True))
        self.seed = seed
        self.changes: dict[str, Any] = {"eval.limit": QUESTIONS, **(SMALL if small else {})}
        initialise(self.ws, model="microworld")

    def folder(self, cycle: int) -> Path:
        """Return the folder of a cycle's world, written on first use."""
        folder = self.ws.home / f"world-{cycle}"
        if not (folder / "ifeval.jsonl").exists():
            write_world(folder, cycle=cycle, seed=self.seed, changed=SHARE)
        return folder

    def midtrained(self, way: Way, cycle: int, student: str) -> str:
        changes = {**way.midtraining, **self.changes}
        job = midtrain_job(self.ws, self.folder(cycle) / "docs", student, changes=changes)
        key = f"midtrain:{student}:{cycle}:{dict(way.midtraining)}"
        return str(midtrain(self.ws, job, key=key)["checkpoint"])

    def recovered(self, way: Way, cycle: int, midtrained: str) -> dict[str, Any]:
        changes = {**way.recovery, **self.changes}
        if way.asked:
            changes["distill.prompts"] = str(self.asked(cycle))
        job = distill_job(self.ws, student=midtrained, changes=changes)
        return distill(self.ws, job, key=f"distill:{midtrained}:{way}")

    def items(self, checkpoint: str) -> dict[str, list[Item]]:
        """Return the answered questions of each suite."""
        job = eval_job(self.ws, checkpoint, ",".join(SUITES), changes=self.changes)
        ids = evaluate(self.ws, job, key=f"eval:{checkpoint}")["score_ids"]
        return {suite: recorded_items(self.ws, ids[suite]) for suite in SUITES}

    def old_odds(self, checkpoint: str, updates: Sequence[Item]) -> list[float]:
        return old_odds(self.ws.load(self.ws.checkpoint(checkpoint)), updates)

    def asked(self, cycle: int) -> Path:
        """Write the world's prompts with every training phrasing of every changed fact among them."""
        rows = (self.folder(cycle) / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
        rows += [
            json.dumps({"prompt": question.format(n=change.who.name), "kind": "changed"})
            for change in state(self.seed, cycle, SHARE).newest
            for question in change.attribute.questions
        ]
        random.Random(f"asked:{self.seed}").shuffle(rows)
        path = self.folder(cycle) / "asked.jsonl"
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
        return path


def run(out: Path, seed: int, ways: Sequence[str], cycles: int = 1, small: bool = False) -> list[Line]:
    """Return two lines a cycle of each way; what is stored is not measured again."""
    ledger = Ledger(out / str(seed) / LINES, NAMES)
    wanted = [
        {"seed": seed, "way": way, "cycle": cycle, "stage": stage}
        for way in ways
        for cycle in range(1, cycles + 1)
        for stage in (MIDTRAINED, RECOVERED)
    ]
    if any(ledger.get(**name) is None for name in wanted):
        world = World(out / str(seed), seed, small)
        with world.ws:
            for way in ways:
                for line in _measured(world, way, cycles, ledger):
                    ledger.add({"seed": seed, "way": way, "small": small, **line})
    return [ledger.lines[tuple(name.values())] for name in wanted]


def _measured(world: World, name: str, cycles: int, ledger: Ledger) -> Iterator[Line]:
    """Train a way's cycles; yield the lines that the ledger lacks."""
    way, student = WAYS[name], "base"
    for cycle in range(1, cycles + 1):
        midtrained = world.midtrained(way, cycle, student)
        done = world.recovered(way, cycle, midtrained)
        student = done["checkpoint"]
        for stage, checkpoint in ((MIDTRAINED, midtrained), (RECOVERED, student)):
            if ledger.get(seed=world.seed, way=name, cycle=cycle, stage=stage) is None:
                touched = done.get("overlap", {}).get("prompts", {}).get("touch_new")
                named = {"cycle": cycle, "stage": stage}
                left_out = {"left_out": touched if stage == RECOVERED else None}
                items = world.items(checkpoint)
                odds = {"old_odds": world.old_odds(checkpoint, items["updates"])}
                yield named | left_out | line(items) | odds


def line(items: dict[str, list[Item]]) -> Line:
    """Return each suite's outcomes by question: [key, fact, passed]; of changed facts also which answer."""
    return {
        suite: [[item.key, item.cluster, item.passed] for item in found] for suite, found in items.items()
    } | {"answered": [item.detail["answered"] for item in items["updates"]]}


# Table ---------------------------------------------------------------------------------------------------


def stored(out: Path, name: str = LINES) -> list[Line]:
    """Return the lines of every seed's ledger of that name."""
    return [row for path in sorted(out.glob(f"*/{name}")) for row in read(path)]


def page(lines: list[Line]) -> str:
    """Return the text for the documentation."""
    seeds = ", ".join(map(str, sorted({row["seed"] for row in lines})))
    note = (
        f"Seeds {seeds}. Shares of all questions with 95 % intervals, clustered by fact. `new`, `old` and "
        "`neither` are answers to changed facts, in the familiar and in the held-out phrasing; `knowledge` "
        "asks about the new people, `stable` about facts of known people that did not change. `pulled back`: "
        "answers to changed facts that were new after midtraining and are old after recovery. `odds of old`: "
        "how probable the old answer is where the model names the new or the old one, of both; the mean."
    )
    parts = [note, markdown(table(lines))]
    for one, other in COMPARED:
        if found := differences(lines, one, other):
            parts += [f"`{one}` against `{other}` after recovery, paired by question:", markdown(found)]
    return sections(lines, parts)


def table(lines: list[Line]) -> list[Line]:
    """Return one row a cycle, stage and way, over all its seeds."""
    found = []
    for cycle in sorted({row["cycle"] for row in lines}):
        for stage in (MIDTRAINED, RECOVERED):
            for way in WAYS:
                chosen = {"cycle": cycle, "stage": stage, "way": way}
                mine = [row for row in lines if chosen.items() <= row.items()]
                if mine:
                    pulled = _pulled_back(lines, mine) if stage == RECOVERED else None
                    row = chosen | {"way": f"`{way}`", "seeds": len(mine)} | shares(mine)
                    found.append(row | {"pulled back": pulled, "odds of old": _mean_odds(mine)})
    return found


def _mean_odds(mine: list[Line]) -> str:
    odds = [p for row in mine for p in row["old_odds"]]
    return f"{sum(odds) / len(odds):.3f}"


def _pulled_back(lines: list[Line], recovered: list[Line]) -> str | None:
    """Return how many of the questions that midtraining answered anew recovery answers as before."""
    before = {_trained(row): row["answered"] for row in lines if row["stage"] == MIDTRAINED}
    anew: list[str] = []
    for row in recovered:
        answers = zip(before.get(_trained(row), ()), row["answered"], strict=False)
        anew += [after for midtrained, after in answers if midtrained == NEW]
    return f"{anew.count(OLD)} of {len(anew)}" if anew else None


def _trained(row: Line) -> tuple[Any, ...]:
    return tuple(row[name] for name in NAMES if name != "stage")


def shares(mine: list[Line]) -> dict[str, Any]:
    """Return the share of each answer to changed facts, and of each suite's passed questions."""
    answered = [answer for row in mine for answer in row["answered"]]
    facts = [_fact(row, one) for row in mine for one in row["updates"]]
    shown = {name: _interval([one == name for one in answered], facts) for name in ANSWERED}
    for suite in SUITES[1:]:
        passed = [one[2] for row in mine for one in row[suite]]
        shown[COLUMNS[suite]] = _interval(passed, [_fact(row, one) for row in mine for one in row[suite]])
    left_out = [row["left_out"] for row in mine if row["left_out"] is not None]
    return {"questions": len(answered)} | shown | {"prompts left out": sum(left_out) if left_out else None}


COLUMNS = {"knowledge": "knowledge", "retention": "stable", "ifeval": "IFEval"}


def _fact(row: Line, outcome: Sequence[Any]) -> str:
    """Facts of two worlds are never the same, and neither are a person's in two cycles."""
    return f"{row['seed']}:{row['cycle']}:{outcome[1]}"


def _interval(passed: Sequence[bool], clusters: Sequence[str]) -> str:
    low, high = intervals.clustered_interval(passed, clusters)
    return f"{sum(passed) / len(passed):.3f} ({low:.3f} to {high:.3f})"


def differences(lines: list[Line], one: str, other: str) -> list[Line]:
    """Return the paired differences of two ways, over the seeds and cycles that have both."""
    after = {(row["seed"], row["cycle"]): row for row in _recovered(lines, one)}
    pairs = [
        (after[key], row) for row in _recovered(lines, other) if (key := (row["seed"], row["cycle"])) in after
    ]
    if not pairs:
        return []
    found = {f"answered `{name}`": difference(pairs, "updates", name) for name in (NEW, OLD)}
    found |= {COLUMNS[suite]: difference(pairs, suite) for suite in SUITES[1:]}
    return [{"": title, "seeds": len(pairs), "difference": shown} for title, shown in found.items()]


def _recovered(lines: list[Line], way: str) -> list[Line]:
    return [row for row in lines if (row["way"], row["stage"]) == (way, RECOVERED)]


def difference(pairs: list[tuple[Line, Line]], suite: str, answer: str = "") -> str:
    """Return a suite's paired difference, or that of one answer to changed facts, with its interval."""
    return paired(compared(pairs, suite, answer))


def compared(pairs: list[tuple[Line, Line]], suite: str, answer: str = "") -> statistics.PairedComparison:
    """Compare two ways on the questions of a suite, paired by question and clustered by fact."""
    ones: list[bool] = []
    others: list[bool] = []
    clusters: list[str] = []
    for one, other in pairs:
        if [row[0] for row in one[suite]] != [row[0] for row in other[suite]]:
            raise SystemExit(f"seed {one['seed']}: {suite}: the two ways were asked other questions")
        ones += _outcomes(one, suite, answer)
        others += _outcomes(other, suite, answer)
        clusters += [_fact(one, row) for row in one[suite]]
    return statistics.compare(ones, others, clusters=clusters)


def _outcomes(row: Line, suite: str, answer: str) -> list[bool]:
    return [one == answer for one in row["answered"]] if answer else [one[2] for one in row[suite]]


def main() -> None:
    parser = ways_parser("changed", __doc__, list(WAYS))
    parser.add_argument("--cycles", type=int, default=1)
    chosen = parser.parse_args()
    seeds = [] if chosen.write_docs else chosen.seeds
    for seed in seeds:
        found = run(chosen.out, seed, chosen.ways, chosen.cycles, chosen.small)
        print(markdown(table(found)), flush=True)
    lines = stored(chosen.out)
    print(page(lines) if lines else "nothing yet")
    if chosen.write_docs:
        if not lines:
            raise SystemExit(f"{chosen.out}: nothing was measured there: run it without --write-docs first")
        put(PAGE, "changed", page(lines))


if __name__ == "__main__":
    main()
