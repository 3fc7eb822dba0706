"""Plan a pilot: sample the documents, write its questions, set every number of its midtrainings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from db.reads import queries
from evals import jsonl
from evals.probes import RETENTION, load_probes
from pipelines.config import fitted
from pipelines.config.jobs import PilotJob
from pipelines.config.narrow_midtraining import narrowed
from pipelines.config.sections.base import Section
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.corpus import document_sample, superseded
from pipelines.knowledge import answer_probability
from pipelines.machine.fitting import fitted_once, mix_of
from pipelines.runs import kept_texts
from pipelines.runs.kept_texts import KEPT_TEXTS, TOKENS, KeptTokens, tokenised
from pipelines.runs.progress import duration
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from pipelines.corpus.token_file import Tokens
    from recovery.models.chat_model import ChatModel

LEAST_TOKENS = 4096  # of the sampled documents, where there are so many
SAMPLE = "documents"
QUESTIONS = "questions.jsonl"
PLAN = "plan.json"


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


def planned(ws: Workspace, job: PilotJob, stage: Stage) -> Plan:
    """Read and sample the documents and write the questions once; a resumed pilot keeps them."""
    kept = stage.directory / PLAN
    if not kept.exists():
        atomic_dirs.write_text(kept, _new_plan(ws, job, stage).model_dump_json())
        (stage.directory / KEPT_TEXTS).unlink(missing_ok=True)  # only the sample is read from here on
        shutil.rmtree(stage.directory / TOKENS, ignore_errors=True)
    return Plan.model_validate_json(kept.read_text(encoding="utf-8"))


def _new_plan(ws: Workspace, job: PilotJob, stage: Stage) -> Plan:
    settings = job.settings.midtrain
    reading = settings.reading
    superseded.keep(Path(job.docs), stage.directory)  # there it lies beside the sample
    kept_texts.keep(job.docs, stage.directory, reading, stage.step, strict=reading.strict)
    chat_model = ws.load(ws.checkpoint(job.student))
    tokens = tokenised(stage.directory, chat_model)
    sampled = _sampled(job, tokens, chat_model)
    sample = stage.directory / SAMPLE
    jsonl.write(sample / "documents.jsonl", ({"text": text} for text in sampled.texts))
    answer_probability.write(stage.directory / QUESTIONS, sampled.questions)
    machine = fitted_once(stage, job.student, settings, fitted.fit_midtraining)
    earlier = _earlier_tokens(ws, job, stage, chat_model)
    planned = fitted.fit_beside_earlier(
        machine, tokens.total, earlier, lambda one: mix_of(ws, job.student, one.mix).model_dump()
    )
    return Plan(
        planned=planned,
        narrow=narrowed(planned, sampled.tokens / tokens.total),
        tokens=tokens.total,
        sampled_tokens=sampled.tokens,
        sampled_texts=len(sampled.texts),
        share=mix_of(ws, job.student, planned.mix).new,
        asked=sampled.asked,
        questions=len(sampled.questions),
    )


def _earlier_tokens(ws: Workspace, job: PilotJob, stage: Stage, chat_model: ChatModel) -> int:
    """Return how many tokens of earlier documents the whole midtraining may read."""
    runs, _ = kept_texts.kept_runs(ws, job.student)
    kept = KeptTokens.of(runs, chat_model, current=stage.directory).total if runs else 0
    return min(kept, job.settings.midtrain.replay_tokens or kept)


class Sampled(NamedTuple):
    """A share of the documents, and questions about it that the student does not answer yet."""

    texts: list[str]
    tokens: int
    asked: str
    questions: list[answer_probability.Question]


def _sampled(job: PilotJob, tokens: Tokens, chat_model: ChatModel) -> Sampled:
    """Sample the job's share, or as much more as gives enough questions."""
    probes = load_probes(job.settings.eval.probes) if job.settings.eval.probes else ()
    asked = [probe for probe in probes if probe.suite != RETENTION]
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


def announced(ws: Workspace, plan: Plan) -> str:
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
