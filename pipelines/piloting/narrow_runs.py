"""Run a pilot's narrow midtrainings, and measure what each taught and what it cost in behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from db.reads import curves, queries
from evals import statistics
from evals.ifeval import IFEVAL
from evals.scores import Item, pairs
from pipelines.config.jobs import EvalJob, MidtrainJob, PilotJob
from pipelines.config.narrow_midtraining import effective_passes
from pipelines.config.overrides import override
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.knowledge import answer_probability, forecast, replay
from pipelines.midtrain import midtrain
from pipelines.piloting import proposal
from pipelines.piloting.plan import QUESTIONS, SAMPLE, Plan
from pipelines.piloting.proposal import BehaviourLaw
from pipelines.piloting.rate_curves import Estimate
from pipelines.runs.pinned_inputs import inherited
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace

PROMPTS = 64  # asked of both checkpoints where no earlier cycle says what a nat costs
Row = dict[str, Any]
Series = dict[int, float]  # a metric by its step


@dataclass(frozen=True)
class Trained:
    """One narrow midtraining and what was measured along it."""

    rate: float
    checkpoint: str
    points: list[Row]  # step, passes, kl, answers, learned
    error: float  # of `learned` at the end, by the choice of questions

    @property
    def kl(self) -> float:
        return float(self.points[-1]["kl"])

    def row(self, plan: Plan, lost: Estimate | None) -> Row:
        return {
            "rate": self.rate,
            "steps": plan.narrow.steps,
            "tokens_per_step": plan.narrow.tokens_per_step,
            "checkpoint": self.checkpoint,
            "kl": self.kl,
            "learned": self.points[-1]["learned"],
            "behaviour_lost": lost.row() if lost else None,
            "points": self.points,
        }


def trained(ws: Workspace, job: PilotJob, stage: Stage, plan: Plan, rate: float) -> Trained:
    """Run one narrow midtraining, or find it done, and read what was measured along it."""
    optimizer = override(plan.narrow.optimizer, {"learning_rate": rate})
    settings = plan.narrow.model_copy(update={"optimizer": optimizer})
    wanted = MidtrainJob(
        docs=str((stage.directory / SAMPLE).absolute()),
        student=job.student,
        settings=settings,
        prompts=job.prompts,
        evaluation=job.settings.eval,
        earlier=job.earlier,
        answer_tokens=job.settings.distill.max_new_tokens,
        asked=str((stage.directory / QUESTIONS).absolute()),
        chat=str((stage.directory / replay.KEPT_CHAT).absolute()),  # the same at every rate
        seed=job.seed,
    )
    key = f"midtrain:{rate!r}"  # all its digits: stages of one name are one stage
    checkpoint = midtrain(ws, wanted, parent=stage.id, key=key)["checkpoint"]
    found = queries.run_of_key(ws.tracker.db, key, parent=stage.id)
    assert found is not None
    run = found["id"]
    answers = _series(ws, run, answer_probability.METRIC)
    errors = _series(ws, run, answer_probability.ERROR)
    unknown = 1 - answers[0]  # before training
    points = _points(_series(ws, run, forecast.METRIC), answers, settings, plan)
    return Trained(rate, str(checkpoint), points, errors[max(errors)] / unknown)


def _points(kl: Series, answers: Series, settings: MidtrainConfig, plan: Plan) -> list[Row]:
    """Return what was measured at each step at which the KL was."""
    passes = effective_passes(settings, plan.sampled_tokens, plan.share)
    before = answers[0]
    return [
        {
            "step": step,
            "passes": passes[step - 1],
            "kl": kl[step],
            "answers": answers[step],
            "learned": (answers[step] - before) / (1 - before),
        }
        for step in sorted(kl)
    ]


def _series(ws: Workspace, run: str, name: str) -> Series:
    """Return a metric by its step."""
    found = curves.metrics_by_step(ws.tracker.db, run, [name])
    return {step: values[name] for step, values in found.items()}


def known_law(ws: Workspace) -> BehaviourLaw | None:
    """Return what a nat costs in behaviour by earlier cycles; None where they show no loss."""
    return proposal.of_cycles(forecast.learned_law(ws.tracker.db))


def behaviour_law(
    ws: Workspace, job: PilotJob, stage: Stage, trained: Sequence[Trained]
) -> tuple[BehaviourLaw | None, list[Estimate | None]]:
    """Return what a nat costs by earlier cycles; else measure it, with the loss of each checkpoint."""
    known = known_law(ws)
    if known is not None:
        return known, [None] * len(trained)
    stage.say(
        "  pilot        earlier cycles do not say what a nat costs in behaviour, "
        f"and the KL alone does not: {PROMPTS} prompts are asked"
    )
    clean = _followed(ws, job, stage, job.clean, "clean")
    losses: list[Estimate | None] = []
    measured: list[tuple[float, Estimate]] = []
    for one in trained:
        found = _lost(clean, _followed(ws, job, stage, one.checkpoint, repr(one.rate)))
        losses.append(found)
        measured.append((one.kl, found))
    return proposal.of_checkpoints(measured, len(clean)), losses


def _lost(clean: Sequence[Item], after: Sequence[Item]) -> Estimate:
    """Return the share of prompts lost against the clean model, paired by prompt and by its cluster."""
    both = pairs(clean, after, IFEVAL)
    found = statistics.compare(
        [before.passed for before, _ in both],
        [now.passed for _, now in both],
        clusters=[before.cluster for before, _ in both],
    )
    return Estimate(found.difference, *found.interval)


def _followed(ws: Workspace, job: PilotJob, stage: Stage, checkpoint: str, label: str) -> list[Item]:
    """Return a checkpoint's answers to the sample of prompts."""
    limit = min(PROMPTS, job.settings.eval.limit or PROMPTS)
    settings = override(job.settings.eval, {"limit": limit, "samples": 1, "open_book": False})
    asked = EvalJob(
        checkpoint=checkpoint, suites=(IFEVAL,), settings=settings, label=label, reuse=settings.reuse
    )
    found = evaluate(ws, inherited(asked, job), parent=stage.id, key=f"eval:{label}")
    return recorded_items(ws, found["score_ids"][IFEVAL])
