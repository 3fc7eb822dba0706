"""Compare ways back on a finished cycle's midtrained model, whatever the model and the documents are.

    none         no recovery: the midtrained model
    opd          the cycle's own recovery
    longer       the same with twice as many steps
    rehearsed    the same with half of the tokens read, prompts not counted, the documents again
    in-chat      the same with nearly all of what it rehearses asked in chat
    self         the same on the clean model's own prompts and generated ones, as without a hub
    seqkd        as many steps of fine-tuning on the clean model's own answers
    replay       no recovery, but a midtraining with as much of the documents and half of all tokens chat
    merge        half midtrained weights and half clean ones, without training
    embeddings   the clean embeddings and output head put back, without training

    python -m benchmarks.outcomes.ways_back HOME                      # every way; repeat it to resume
    python -m benchmarks.outcomes.ways_back HOME --ways none opd merge
    python -m benchmarks.outcomes.ways_back HOME --families json refusals multi-turn
    python -m benchmarks.outcomes.ways_back HOME --write-docs         # also into docs/real-recovery.md

HOME is that of `recover cycle` with the method opd. All ways are asked what its cycle asked, and what is
recorded there is not asked again; with --families also questions of other families of behaviour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ledger import Line, markdown, paired, put
from benchmarks.outcomes.arguments import whole_docstring
from benchmarks.outcomes.two_homes import FINISHED, compared, headlines, scored
from db.reads import curves, queries
from evals.scores import Item
from pipelines.config.jobs import CycleJob, DistillJob, EvalJob, Kind, MergeJob, MidtrainJob
from pipelines.config.overrides import override
from pipelines.cycle import midtraining
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.merge import merge
from pipelines.midtrain import midtrain
from pipelines.runs.pinned_inputs import inherited
from pipelines.runs.progress import Progress
from pipelines.runs.workspace import Workspace
from pipelines.writing import self_prompts
from pipelines.writing.self_prompts import SELF

PAGE = Path(__file__).parents[2] / "docs" / "real-recovery.md"
CLEAN, NONE, OPD = "clean", "none", "opd"
RECORDED = {CLEAN: "clean", NONE: "midtrained", OPD: "recovered"}  # way -> stage of the cycle
MERGES: dict[str, tuple[Kind, float]] = {"merge": ("linear", 0.5), "embeddings": ("embeddings", 1.0)}
TRAININGS: dict[str, dict[str, Any]] = {
    "longer": {},
    "rehearsed": {"rehearsal": 0.5},
    "in-chat": {"rehearsal_questions": 0.9},
    SELF: {},
    "seqkd": {"method": "seqkd"},
}
REPLAY, REPLAYED = "replay", 0.5  # share of the clean model's own chat among the tokens
FAMILIES = ("json", "tools", "refusals", "multi-turn")  # whose answers pass or not
WAYS = (NONE, OPD, *TRAININGS, REPLAY, *MERGES)
Answers = dict[str, list[Item]]  # by suite


@dataclass(frozen=True)
class Finished:
    """A finished cycle, and what its home recorded about it."""

    ws: Workspace
    number: int
    job: CycleJob
    run: str
    checkpoints: dict[str, str]  # by stage
    families: tuple[str, ...] = ()  # asked besides the cycle's suites

    @classmethod
    def of(cls, ws: Workspace, number: int, families: Sequence[str] = ()) -> Finished:
        cycle = queries.cycle(ws.tracker.db, number)
        if cycle["status"] not in FINISHED:
            raise SystemExit(f"cycle {number} of {ws.home} is {cycle['status']}: finish it first")
        job = CycleJob.model_validate(queries.run(ws.tracker.db, cycle["run"])["config"])
        return cls(ws, number, job, cycle["run"], cycle["checkpoints"], tuple(families))

    def answers(self, way: str) -> Answers:
        """Return what a way's model answered; train and ask it where that is not recorded."""
        if way in RECORDED:
            checkpoint = self.checkpoints[RECORDED[way]]
            found = self._recorded(RECORDED[way])
        else:
            checkpoint = self._made(way)
            found = self._asked(checkpoint, self.job.suites)
        return found | (self._asked(checkpoint, self.families) if self.families else {})

    def _recorded(self, stage: str) -> Answers:
        scores = headlines(self.ws, self.number)
        asked = {suite: scores[stage, suite] for suite in self.job.suites if (stage, suite) in scores}
        return {suite: recorded_items(self.ws, score) for suite, score in asked.items()}

    def _asked(self, checkpoint: str, suites: tuple[str, ...]) -> Answers:
        settings = override(self.job.settings.eval, {"open_book": False})
        asked = EvalJob(checkpoint=checkpoint, suites=suites, settings=settings)
        key = f"ways_back:{','.join(suites)}:{checkpoint}"
        done = evaluate(self.ws, inherited(asked, self.job), key=key)
        return {suite: recorded_items(self.ws, score) for suite, score in done["score_ids"].items()}

    def _made(self, way: str) -> str:
        key = f"ways_back:{self.number}:{way}"
        midtrained = self.checkpoints["midtrained"]
        if way in MERGES:
            kind, weight = MERGES[way]
            mixture = MergeJob(student=midtrained, other=self.job.clean, kind=kind, weight=weight)
            return str(merge(self.ws, mixture, key=key)["checkpoint"])
        if way == REPLAY:
            return str(midtrain(self.ws, self._replaying(), key=key)["checkpoint"])
        job = inherited(DistillJob.of(self.job, midtrained, self.job.settings.distill), self.job)
        steps = job.settings.steps * (2 if way == "longer" else 1)
        update: dict[str, Any] = {"settings": override(job.settings, {"steps": steps, **TRAININGS[way]})}
        if way == SELF:
            count = steps * job.settings.prompts_per_step
            update["prompts"] = self_prompts.resolved(self.ws, SELF, job.seed, asked=count)
            update["inputs"] = {}  # its prompts are not those of the cycle
        job = job.model_copy(update=update)
        return str(distill(self.ws, job, key=key)["checkpoint"])

    def _replaying(self) -> MidtrainJob:
        """Return the cycle's midtraining with more chat, and more steps for as much of the documents."""
        job = inherited(midtraining(self.job), self.job)
        [run] = queries.runs(self.ws.tracker.db, kind="midtrain", parent=self.run)
        mix = run["result"]["mix"]
        rest = (1 - REPLAYED) / (1 - mix.get("chat", 0.0))
        steps = max(row["step"] for row in curves.latest_metrics(self.ws.tracker.db, run["id"]))
        more = {
            "mix": {name: share * rest for name, share in mix.items()} | {"chat": REPLAYED},
            "steps": round(steps / rest),
            "chat_prompts": round(job.settings.chat_prompts / rest),
        }
        return job.model_copy(update={"settings": override(job.settings, more)})


def table(answers: dict[str, Answers]) -> list[Line]:
    """Return each way's score on each suite, with its interval."""
    return [
        {"way": f"`{way}`" if way != CLEAN else way}
        | {f"{suite} (n = {len(items)})": scored(items) for suite, items in found.items()}
        for way, found in answers.items()
    ]


def against(answers: dict[str, Answers], reference: str) -> list[Line]:
    """Return what each other way has more than the reference has, paired by question."""
    return [
        {"way": f"`{way}`"}
        | {suite: _difference(items, answers[reference][suite]) for suite, items in found.items()}
        for way, found in answers.items()
        if way not in (CLEAN, reference)
    ]


def _difference(ours: Sequence[Item], theirs: Sequence[Item]) -> str:
    return paired(compared(ours, theirs, otherwise="two ways were asked different questions"))


def main() -> None:
    asked = _arguments()
    with Workspace.open(asked.home, progress=Progress()) as ws:
        finished = Finished.of(ws, asked.cycle, asked.families)
        answers = {way: finished.answers(way) for way in (CLEAN, *asked.ways)}
    parts = [markdown(table(answers))]
    if OPD in answers:
        parts += ["Against `opd`, paired by question:", markdown(against(answers, OPD))]
    text = "\n\n".join(parts)
    sys.stdout.write(text + "\n")
    if asked.write_docs:
        put(PAGE, "ways back", text)


def _arguments() -> argparse.Namespace:
    parser = whole_docstring(__doc__)
    parser.add_argument("home", type=Path)
    parser.add_argument("--cycle", type=int, default=1)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--families", nargs="+", default=[], choices=FAMILIES)
    parser.add_argument(
        "--write-docs", action="store_true", help="write the tables into docs/real-recovery.md"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
