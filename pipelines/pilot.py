"""Pilot: two narrow midtrainings on a share of the documents, and a proposal for the whole of them.

Both run through the code of `recover midtrain`, at two rates, for as many steps as the whole one, each of a
share of the tokens. Along each, the KL to the clean model and the answers to questions are measured;
curves of rate and length are fitted to both (pipelines/knowledge/rate_curves.py). What a nat costs in
behaviour comes from earlier cycles of the home, else from a sample of prompts asked of the pilot's
checkpoints. `current` stays where it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from db.reads import curves, queries
from evals import jsonl, statistics
from evals.probes import load_probes
from pipelines.config import fitted
from pipelines.config.jobs import EvalJob, MidtrainJob, PilotJob
from pipelines.config.narrow_midtraining import effective_passes, narrowed
from pipelines.config.overrides import override
from pipelines.config.sections.base import Section
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.corpus import document_sample, text_file
from pipelines.corpus.kept_texts import KEPT_TEXTS, TOKENS, tokenised
from pipelines.corpus.mixed_tokens import shares
from pipelines.evaluate import evaluate
from pipelines.evaluation.recorded_scores import recorded_items
from pipelines.knowledge import answer_probability, forecast, proposal, rate_curves
from pipelines.knowledge.cycle_command import cycle_command
from pipelines.knowledge.proposal import BehaviourLaw, Candidate, Forecasts, Length
from pipelines.knowledge.rate_curves import Estimate, Point
from pipelines.machine.fitting import fitted_once
from pipelines.midtrain import midtrain
from pipelines.runs.pinned_inputs import inherited, pinned
from pipelines.runs.progress import duration, reading_progress
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from pipelines.corpus.token_file import Tokens
    from recovery.models.chat_model import ChatModel

LEAST_TOKENS = 4096  # of the sampled documents, where there are so many
PROMPTS = 64  # asked of both checkpoints where no earlier cycle says what a nat costs
SAMPLE, QUESTIONS, PLAN = "documents", "questions.jsonl", "plan.json"
Row = dict[str, Any]


class Plan(Section):
    """What is to be predicted, and how it is measured in small."""

    planned: MidtrainConfig  # of all documents, every number set
    narrow: MidtrainConfig  # of the sample
    tokens: int
    sampled_tokens: int
    sampled_texts: int
    share: float  # of the new documents in the mix
    asked: str  # "probes" or "gaps"
    questions: int


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


def pilot(ws: Workspace, job: PilotJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Return {"pilots": one row each, "planned", "proposal", "command", "words", ...}."""
    job = pinned(ws, job)
    return run_stage(
        ws,
        "pilot",
        lambda stage: _work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
    )


def _work(ws: Workspace, job: PilotJob, stage: Stage) -> Result:
    plan = _planned(ws, job, stage)
    stage.say(_announced(ws, plan))
    trained = []
    for number, rate in enumerate(job.rates, 1):
        trained.append(_trained(ws, job, stage, plan, rate))
        stage.live.progress(number, len(job.rates))
    points = [(one.rate, row) for one in trained for row in one.points]
    kl = rate_curves.fit([Point(rate, row["passes"], row["kl"]) for rate, row in points], "kl")
    learned = rate_curves.fit([Point(rate, row["passes"], row["learned"]) for rate, row in points], "learned")
    law, behaviour = _law(ws, job, stage, trained)
    found: Result = {
        "docs": job.docs,
        "student": job.student,
        "budget": job.budget,
        "sample": plan.model_dump(exclude={"planned", "narrow"}),
        "pilots": [_row(one, plan, lost) for one, lost in zip(trained, behaviour, strict=True)],
        "curves": {name: fit.row() if fit else None for name, fit in (("kl", kl), ("learned", learned))},
        "law": law.row() if law else None,
        "planned": None,
        "proposal": None,
        "command": None,
    }
    longest = _lengths(plan)[-1]
    for name, curve in (("KL", kl), ("knowledge", learned)):
        for rate in job.rates:
            poor = rate_curves.too_poor(curve, rate, longest.passes)
            if poor:
                return found | {"words": f"nothing is proposed: the curve of {name} is too poor: {poor}"}
    if kl is None or learned is None or law is None:
        return found | {"words": "nothing is proposed: neither midtraining moved the model"}
    error = max(one.error for one in trained)
    return found | _proposed(ws, job, plan, Forecasts(kl, learned, law, error))


# Planning --------------------------------------------------------------------------------------------------


def _planned(ws: Workspace, job: PilotJob, stage: Stage) -> Plan:
    """Read and sample the documents and write the questions once; a resumed pilot keeps them."""
    kept = stage.directory / PLAN
    if not kept.exists():
        atomic_dirs.write_text(kept, _new_plan(ws, job, stage).model_dump_json())
        (stage.directory / KEPT_TEXTS).unlink(missing_ok=True)  # only the sample is read from here on
        shutil.rmtree(stage.directory / TOKENS, ignore_errors=True)
    return Plan.model_validate_json(kept.read_text(encoding="utf-8"))


def _new_plan(ws: Workspace, job: PilotJob, stage: Stage) -> Plan:
    settings = job.settings.midtrain
    folder = Path(job.docs)
    progress = reading_progress(stage.step, folder)
    reading = settings.reading
    text_file.keep(
        folder, stage.directory / KEPT_TEXTS, reading.limits, strict=reading.strict, progress=progress
    )
    chat_model = ws.load(ws.checkpoint(job.student))
    tokens = tokenised(stage.directory, chat_model)
    sampled = _sampled(job, tokens, chat_model)
    sample = stage.directory / SAMPLE
    sample.mkdir(exist_ok=True)
    rows = jsonl.lines({"text": text} for text in sampled.texts)
    (sample / "documents.jsonl").write_text(rows, encoding="utf-8")
    answer_probability.write(stage.directory / QUESTIONS, sampled.questions)
    new = _share_of_new(ws, job)
    machine = fitted_once(stage, job.student, settings, fitted.fit_midtraining)
    planned = fitted.fit_to_corpus(machine, tokens.total, new)
    return Plan(
        planned=planned,
        narrow=narrowed(planned, sampled.tokens / tokens.total),
        tokens=tokens.total,
        sampled_tokens=sampled.tokens,
        sampled_texts=len(sampled.texts),
        share=new,
        asked=sampled.asked,
        questions=len(sampled.questions),
    )


class Sampled(NamedTuple):
    """A share of the documents, and questions about it that the student does not answer yet."""

    texts: list[str]
    tokens: int
    asked: str
    questions: list[answer_probability.Question]


def _sampled(job: PilotJob, tokens: Tokens, chat_model: ChatModel) -> Sampled:
    """Sample the job's share, or as much more as gives enough questions."""
    probes = load_probes(job.settings.eval.probes) if job.settings.eval.probes else ()
    asked = [probe for probe in probes if probe.suite != "retention"]
    share = min(1.0, max(job.share, LEAST_TOKENS / tokens.total))
    while True:
        texts, taken = document_sample.sample(tokens, share, chat_model.text)
        name, questions = answer_probability.unanswered(chat_model, texts, asked, job.seed)
        if len(questions) >= answer_probability.FEWEST:
            return Sampled(texts, taken, name, questions)
        if share == 1:
            raise InputError(
                f"{job.docs}: all documents give {len(questions)} questions that the student does not answer "
                f"yet; {answer_probability.FEWEST} are needed: give --probes with passages"
            )
        share = min(1.0, 2 * share)


def _share_of_new(ws: Workspace, job: PilotJob) -> float:
    """Return the new documents' share of the mix: that of earlier ones is theirs where there are none."""
    mix = job.settings.midtrain.mix
    earlier = bool(ws.midtraining_runs(job.student))
    present = {"new": True, "earlier": earlier, "questions": True, "chat": True}
    return shares(mix, present)["new"]


def _announced(ws: Workspace, plan: Plan) -> str:
    """Say what is about to run, and for how long by the pace of the newest midtraining."""
    steps = plan.narrow.steps or 0
    tokens = plan.narrow.tokens_per_step
    text = (
        f"  pilot        two midtrainings of {steps:,} steps of {tokens:,} tokens on "
        f"{plan.sampled_tokens / plan.tokens:.0%} of the documents, {plan.questions} {plan.asked} followed"
    )
    for run in queries.runs(ws.tracker.db, kind="midtrain", status="done", limit=1):
        cost = run["cost"] or {}
        if cost.get("tokens_trained") and cost.get("seconds"):
            seconds = 2 * steps * tokens * cost["seconds"] / cost["tokens_trained"]
            return f"{text}; about {duration(seconds)} by the pace of {run['id']}"
    return f"{text}; their first steps say how long it takes"


# Measuring -------------------------------------------------------------------------------------------------


def _trained(ws: Workspace, job: PilotJob, stage: Stage, plan: Plan, rate: float) -> Trained:
    """Run one narrow midtraining, or find it done, and read what was measured along it."""
    optimizer = override(plan.narrow.optimizer, {"learning_rate": rate})
    settings = plan.narrow.model_copy(update={"optimizer": optimizer})
    wanted = MidtrainJob(
        docs=str((stage.directory / SAMPLE).absolute()),
        student=job.student,
        settings=settings,
        prompts=job.prompts,
        evaluation=job.settings.eval,
        answer_tokens=job.settings.distill.max_new_tokens,
        asked=str((stage.directory / QUESTIONS).absolute()),
        seed=job.seed,
    )
    key = f"midtrain:{rate:g}"
    checkpoint = midtrain(ws, wanted, parent=stage.id, key=key)["checkpoint"]
    runs = queries.runs(ws.tracker.db, kind="midtrain", parent=stage.id)
    run = next(row["id"] for row in runs if row["key"] == key)
    kl, answers, errors = (
        _series(ws, run, name)
        for name in (forecast.METRIC, answer_probability.METRIC, answer_probability.ERROR)
    )
    passes = effective_passes(settings, plan.sampled_tokens, plan.share)
    before = answers[0]
    points = [
        {
            "step": step,
            "passes": passes[step - 1],
            "kl": kl[step],
            "answers": answers[step],
            "learned": (answers[step] - before) / (1 - before),
        }
        for step in sorted(kl)
    ]
    return Trained(rate, str(checkpoint), points, errors[max(errors)] / (1 - before))


def _series(ws: Workspace, run: str, name: str) -> dict[int, float]:
    """Return a metric by its step."""
    rows = curves.metric_series(ws.tracker.db, run, name, points=2**31)
    return {int(row["step"]): float(row["value"]) for row in rows if row["value"] is not None}


def _law(
    ws: Workspace, job: PilotJob, stage: Stage, trained: Sequence[Trained]
) -> tuple[BehaviourLaw | None, list[Estimate | None]]:
    """Return what a nat costs by earlier cycles; else measure it, with the loss of each checkpoint."""
    known = proposal.of_cycles(forecast.learned_law(ws.tracker.db).points)
    if known is not None:
        return known, [None] * len(trained)
    stage.say(
        f"  pilot        no {proposal.FEWEST_CYCLES} earlier cycles say what a nat costs in behaviour, "
        f"and the KL alone does not: {PROMPTS} prompts are asked"
    )
    clean = _followed(ws, job, stage, job.clean, "clean")
    losses: list[Estimate | None] = []
    measured: list[tuple[float, Estimate]] = []
    for one in trained:
        found = statistics.compare(clean, _followed(ws, job, stage, one.checkpoint, f"{one.rate:g}"))
        loss = Estimate(found.difference, *found.interval)
        losses.append(loss)
        measured.append((one.kl, loss))
    return proposal.of_checkpoints(measured, len(clean)), losses


def _followed(ws: Workspace, job: PilotJob, stage: Stage, checkpoint: str, label: str) -> list[float]:
    """Return which prompts of the sample a checkpoint follows."""
    limit = min(PROMPTS, job.settings.eval.limit or PROMPTS)
    settings = override(job.settings.eval, {"limit": limit, "samples": 1, "open_book": False})
    asked = EvalJob(checkpoint=checkpoint, suites=("ifeval",), settings=settings, label=label)
    found = evaluate(ws, inherited(asked, job), parent=stage.id, key=f"eval:{label}")
    items = sorted(recorded_items(ws, found["score_ids"]["ifeval"]), key=lambda item: item.key)
    return [float(item.passed) for item in items]


def _row(one: Trained, plan: Plan, lost: Estimate | None) -> Row:
    return {
        "rate": one.rate,
        "steps": plan.narrow.steps,
        "tokens_per_step": plan.narrow.tokens_per_step,
        "checkpoint": one.checkpoint,
        "kl": one.kl,
        "learned": one.points[-1]["learned"],
        "behaviour_lost": lost.row() if lost else None,
        "points": one.points,
    }


# Proposing -------------------------------------------------------------------------------------------------


def _lengths(plan: Plan) -> list[Length]:
    """Return the lengths of the grid, none shorter than what was measured first."""
    assert plan.planned.steps is not None
    shortest = effective_passes(plan.narrow, plan.sampled_tokens, plan.share)[plan.narrow.forecast_every - 1]
    found = {}
    for part in range(1, proposal.LENGTHS + 1):
        steps = max(1, round(plan.planned.steps * part / proposal.LENGTHS))
        settings = plan.planned.model_copy(update={"steps": steps})
        passes = effective_passes(settings, plan.tokens, plan.share)[-1]
        if passes >= shortest or part == proposal.LENGTHS:
            found[steps] = Length(steps, passes)
    return list(found.values())


def _proposed(ws: Workspace, job: PilotJob, plan: Plan, forecasts: Forecasts) -> Row:
    """Return what is expected of the midtraining as configured, and the best one within the budget."""
    lengths = _lengths(plan)
    found = proposal.candidates(forecasts, job.rates, lengths)
    chosen = proposal.best(found, job.budget / 100)
    planned = None
    configured = plan.planned.optimizer.learning_rate
    if job.rates[0] <= configured <= job.rates[1]:
        planned = forecasts.at(configured, lengths[-1]).row()
    if chosen is None:
        nearest = proposal.gentlest(found)
        words = (
            f"nothing is proposed: no rate and length within what was measured keeps to {job.budget:g} "
            f"points; the gentlest, {_in_words(nearest)}: try lower --rates, or a --mix with chat"
        )
        return {"planned": planned, "words": words}
    row = chosen.row() | {
        "tokens_per_step": plan.planned.tokens_per_step,
        "mix": {name: part for name, part in job.settings.midtrain.mix.model_dump().items() if part},
        "recovery": _recovery(job, chosen),
        "within_budget": "shown" if chosen.loss.high <= job.budget / 100 else "expected",
    }
    shown = "" if row["within_budget"] == "shown" else "; the interval reaches beyond the budget"
    return {
        "planned": planned,
        "proposal": row,
        "command": cycle_command(None if ws.implicit else ws.home, job, row),
        "words": f"for {job.budget:g} points: {_in_words(chosen)}{shown}",
    }


def _recovery(job: PilotJob, chosen: Candidate) -> str:
    """Return "auto", which begins with nothing at all, where that may pass; else the configured method."""
    return "auto" if chosen.loss.low <= job.settings.eval.margin else job.settings.distill.method


def _in_words(one: Candidate) -> str:
    length = f"{one.length.steps:,} steps ({one.length.passes:.1f} passes at the full rate)"
    kl = f"KL {one.kl.value:.3g} [{one.kl.low:.3g}, {one.kl.high:.3g}]"
    return (
        f"rate {one.rate:.3g} for {length} is expected to cost {in_points(one.loss)} points of behaviour and "
        f"to teach {in_points(one.learned)} % of what was unknown ({kl})"
    )


def in_points(share: Estimate) -> str:
    """Format a share with its interval, in hundredths."""
    return f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
