"""Rehearsal: train on the documents again during distillation.

A clean teacher does not know what the student was taught, and its corrections spread to neighbours of the
prompts: one person's name is written for another's. So a share of every update's tokens are documents,
learned as in midtraining. Which ones depends on (seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.corpus import documents, kept_texts, mixed_tokens
from pipelines.corpus.kept_texts import EARLIER_TOKENS
from pipelines.corpus.sentence_splits import SentenceSplits
from pipelines.corpus.token_file import Tokens, TokenStream
from pipelines.knowledge import guards
from recovery.distributed import in_turn
from recovery.methods.table import get
from recovery.objective.objective import Loss, Objective
from recovery.training import preflight
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.config.settings import DistillConfig
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel

METRIC = "rehearsal_loss"


class Rehearsal:
    """The documents that are trained on beside the answers of each update."""

    def __init__(
        self, documents: Tokens, settings: DistillConfig, student: ChatModel, passes: int, seed: int
    ) -> None:
        self.ratio = settings.rehearsal / (1 - settings.rehearsal)
        self.tokens_per_step = tokens_per_step(settings, passes)  # at most; the next step's begin behind them
        self.longest = settings.max_new_tokens  # as an answer: a row of documents takes no more memory
        splits = SentenceSplits.of(student, settings.split_documents)
        self.stream = TokenStream(documents, self.longest, f"{seed}:rehearsal", splits)
        self.packs, self.pad_id = preflight.packing(student).ok, student.pad_id
        self.microbatch_tokens = settings.microbatch_tokens
        self.objective = Objective(get("sft"), student.stop_ids)
        self.at = 0.0

    def begin(self, step: int) -> None:
        self.at = float((step - 1) * self.tokens_per_step)

    def beside(self, answers: Sequence[Microbatch]) -> list[Microbatch]:
        """Return documents in their share of an update that has these answers."""
        wanted = self.ratio * sum(part.rollouts.n_tokens for part in answers)
        documents = self.stream.between(round(self.at), round(self.at + wanted))
        self.at += wanted
        if not documents:
            return []
        rows = mixed_tokens.in_rows(documents, self.pad_id, self.longest, self.packs)
        return [Microbatch(part, objective=self._loss) for part in rows.split(self.microbatch_tokens)]

    def _loss(self, *states: Any) -> Loss:
        """Return the cross-entropy, reported apart from the method's loss and no part of its signal."""
        found = self.objective(*states)
        return replace(found, metrics={METRIC: float(found.value.detach())}, maxima={}, signal_N=None)


def rehearsal(
    ws: Workspace, job: DistillJob, student: ChatModel, passes: int, stage: Stage
) -> Rehearsal | None:
    """Return the rehearsal of a job; None where it is off or the student learned no documents."""
    if not job.settings.rehearsal:
        return None
    most = job.settings.steps * tokens_per_step(job.settings, passes)
    found = in_turn(lambda: _documents(ws, job, student, stage, most))
    if not found:
        stage.say("  rehearsal    off: the student was taught no documents")
        return None
    stage.say(
        f"  rehearsal    {job.settings.rehearsal:.0%} of the tokens are documents read again, "
        f"of {found.total:,} tokens"
    )
    return Rehearsal(found, job.settings, student, passes, job.seed)


def tokens_per_step(settings: DistillConfig, passes: int) -> int:
    """Return the most tokens of documents that a step reads: beside answers of full length."""
    answers = settings.prompts_per_step * settings.samples_per_prompt * settings.max_new_tokens * passes
    return round(answers * settings.rehearsal / (1 - settings.rehearsal))


def _documents(ws: Workspace, job: DistillJob, student: ChatModel, stage: Stage, most: int) -> Tokens | None:
    """Return the documents that the job names, else `most` tokens of those of the student's midtrainings.

    Midtraining has left its documents as token ids: they are tokenised again only for another tokenizer.
    """
    if job.docs:
        return _tokenised(list(documents.read_corpus(Path(job.docs)).texts), student)
    runs, absent = kept_texts.kept_runs(ws, job.student)
    guards.say_absent(absent, bool(runs), stage, "rehearsal")
    kept = kept_texts.KeptTokens.of(runs, student)
    return kept.joined(stage.directory / EARLIER_TOKENS, most, job.seed) if runs else None


def _tokenised(texts: list[str], student: ChatModel) -> Tokens | None:
    if not texts:
        return None
    ids = [np.array([*student.text_ids(text), student.document_end], np.uint32) for text in texts]
    ends = np.cumsum([len(one) for one in ids], dtype=np.int64)
    return Tokens(np.concatenate(ids), ends, opening=tuple(student.opening_ids))
