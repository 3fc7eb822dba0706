"""Evaluation: a checkpoint's answers to the suites, scored and recorded item by item."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db.reads import queries
from evals import ifeval, knowledge
from evals.families.suite import Unmeasured
from evals.scores import Score
from pipelines.config import fitted
from pipelines.config.ifeval_file import HUB_IFEVAL
from pipelines.config.jobs import ALONE, ChooseJob, CycleJob, EvalJob, LocateJob, SweepJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.engines.engine_checks import check_place
from pipelines.engines.engine_places import Engines
from pipelines.evaluation.conditions import conditions
from pipelines.evaluation.model_answers import ModelAnswers
from pipelines.evaluation.question_checks import require_answerable
from pipelines.evaluation.recorded_scores import is_recorded, recorded
from pipelines.evaluation.suites import Suite, suites_of
from pipelines.machine.fitting import fitted_here, fitted_once
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.sampling.protocol import AnsweringSampler

Asking = CycleJob | ChooseJob | LocateJob | SweepJob


def evaluate(ws: Workspace, job: EvalJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Score a checkpoint on every suite of the job; return {"checkpoint", "scores": {suite: ...}}."""
    check_place("sampler", job.settings.sampler)
    job = pinned(ws, job)
    return run_job(ws, "eval", _work, job, parent=parent, key=key)


def evaluation_within(
    job: Asking, checkpoint: str, label: str, settings: EvalConfig, earlier: dict[int, str] | None = None
) -> EvalJob:
    """Return the evaluation of a checkpoint on what a run asks all its models."""
    asked = EvalJob(
        checkpoint=checkpoint,
        suites=job.suites,
        settings=settings,
        earlier=earlier or {},
        outdated=job.outdated if earlier and isinstance(job, CycleJob | ChooseJob) else {},
        label=label,
        reuse=settings.reuse,
        seed=job.seed,
    )
    return inherited(asked, job)


def further_within(job: CycleJob, checkpoint: str, label: str) -> EvalJob:
    """Return the evaluation of a checkpoint on the further prompts of a cycle."""
    asked = evaluation_within(job, checkpoint, label, job.settings.eval)
    return asked.model_copy(update={"suites": (ifeval.FURTHER,)})


def recorded_suites(ws: Workspace, job: EvalJob, stage: Stage, suites: Iterable[Suite]) -> set[str]:
    """Return the suites whose scores an evaluation here would take from what is recorded."""
    settings = fitted_here(ws, ws.checkpoint(job.checkpoint), job.settings, fitted.fit_evaluation)
    job = job.model_copy(update={"settings": settings})
    return {
        suite.name
        for suite in suites
        if is_recorded(ws, job, stage.id, suite.name, conditions(ws, job, suite, stage.id))
    }


def _work(ws: Workspace, job: EvalJob, stage: Stage) -> Result:
    suites = suites_of(job)  # a missing input ends the stage before a model is loaded
    require_answerable(ws, ws.checkpoint(job.checkpoint), suites, job.settings.sampler)
    if job.label == ALONE:
        stage.say(f"  checkpoint   {_named(queries.checkpoint(ws.tracker.db, job.checkpoint))}")
    settings = fitted_once(stage, job.checkpoint, job.settings, fitted.fit_evaluation)
    job = job.model_copy(update={"settings": settings})
    with Engines(ws, stage.directory) as engines:
        evaluation = _Evaluation(ws, job, stage, engines)
        results = {suite.name: evaluation.measure(suite) for suite in suites}
    return {"checkpoint": job.checkpoint, "scores": results, "score_ids": evaluation.headlines}


def _named(checkpoint: dict[str, Any]) -> str:
    """Name a checkpoint as it is known: `current` is not yet what has just been trained."""
    return f"{checkpoint['id']} ({', '.join(checkpoint['aliases']) or checkpoint['kind']})"


@dataclass
class _Evaluation:
    """Score suite after suite: by what is recorded under the same conditions, else by asking the model."""

    ws: Workspace
    job: EvalJob
    stage: Stage
    engines: Engines
    headlines: dict[str, int] = field(default_factory=dict)  # suite -> its recorded score

    def measure(self, suite: Suite) -> dict[str, Any]:
        """Record a suite's scores, all or none, and return them without their items."""
        digest = conditions(self.ws, self.job, suite, self.stage.id)
        before = recorded(self.ws, self.job, self.stage.id, suite.name, digest)
        found = before.scores if before else self._asked(suite, digest)
        if isinstance(found, Unmeasured):
            self.stage.say(f"  {self.job.label:<12} {suite.name:<12} not measured: {found.reason}")
            return found.row()
        rows = [score.as_dict() | {"suite": suite.name} for score in found]
        ids = self.ws.tracker.record_scores(self.stage.id, self.job.checkpoint, rows)
        self.headlines[suite.name] = ids[0]
        origin = f"  as recorded in {before.where}" if before else ""
        for score in found:
            self.stage.say(f"  {self.job.label:<12} {_line(suite.name, score)}{origin}")
        return _with_others(found)

    def _asked(self, suite: Suite, digest: str) -> list[Score] | Unmeasured:
        """Ask the model, and name in each score the conditions under which it was measured."""
        chat_model, sampler = self.model
        answers = ModelAnswers(chat_model, sampler, self.job, self.stage, suite.name)
        found = list[Score]()
        for score in suite.score(answers):
            if isinstance(score, Unmeasured):
                return score
            complete = answers.complete(score)
            found.append(replace(complete, details={**complete.details, queries.CONDITIONS: digest}))
        return found

    @cached_property
    def model(self) -> tuple[ChatModel, AnsweringSampler]:
        """The loaded checkpoint and what samples from it, once a suite is asked."""
        checkpoint = self.ws.checkpoint(self.job.checkpoint)
        chat_model, settings = self.ws.load(checkpoint), self.job.settings
        sampler = self.engines.sampler(
            settings.sampler, chat_model, checkpoint, follow=False, batch_size=settings.batch_size
        )
        return chat_model, sampler


def _line(suite: str, score: Score) -> str:
    kind = f" {score.metric}" if score.metric in knowledge.BESIDE else ""
    low, high = score.interval
    return f"{suite + kind:<12} {score.value:.3f}  [{low:.3f}, {high:.3f}]  n={score.n}{_stale(score)}"


def _stale(score: Score) -> str:
    """Return the stale rate of a score on changed facts."""
    rate = score.details.get("stale_rate")
    return "" if rate is None else f"  stale {rate:.3f}"


def _with_others(scores: list[Score]) -> dict[str, Any]:
    """Return a suite's headline score, and its other scores by metric under `apart`."""
    headline, *others = map(summary, scores)
    return headline | ({"apart": {one["metric"]: one for one in others}} if others else {})


def summary(score: Score) -> dict[str, Any]:
    """Return a score without its items, and without the hash by which it is found again."""
    headline = {"score": score.value, "n": score.n, "interval": list(score.interval), "metric": score.metric}
    return headline | {name: value for name, value in score.details.items() if name != queries.CONDITIONS}


def score_responses(responses: Path, ifeval_file: str | None) -> dict[str, Any]:
    """Score recorded answers to IFEval's prompts; no model is loaded."""
    path = Path(ifeval_file) if ifeval_file and ifeval_file != HUB_IFEVAL else None
    return {ifeval.IFEVAL: summary(ifeval.score_responses(responses, path))}
