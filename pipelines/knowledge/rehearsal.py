"""Rehearsal: documents read again while behaviour comes back.

A clean teacher knows nothing of what the student was taught, and what it corrects spreads to neighbours of
what it was asked about: one name of a person is written for another's. So a share of every update's tokens
are the documents themselves, learned as in midtraining. Which ones depends on (seed, step) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.corpus import mixed_tokens
from pipelines.corpus.token_file import Tokens, TokenStream
from pipelines.knowledge import guards
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
    """What is read beside the answers of each update."""

    def __init__(
        self, documents: Tokens, settings: DistillConfig, student: ChatModel, passes: int, seed: int
    ) -> None:
        answers = settings.prompts_per_step * settings.samples_per_prompt * settings.max_new_tokens * passes
        self.ratio = settings.rehearsal / (1 - settings.rehearsal)
        self.tokens_per_step = round(answers * self.ratio)  # at most; the next step's begin behind them
        self.longest = settings.max_new_tokens  # as an answer: a row of documents takes no more memory
        self.stream = TokenStream(documents, self.longest, f"{seed}:rehearsal")
        self.packs, self.pad_id = preflight.packing(student).ok, student.pad_id
        self.microbatch_tokens = settings.microbatch_tokens
        self.objective = Objective(get("sft"), student.stop_ids)
        self.at = 0.0

    def begin(self, step: int) -> None:
        self.at = float((step - 1) * self.tokens_per_step)

    def beside(self, answers: Sequence[Microbatch]) -> list[Microbatch]:
        """Documents in their share of an update that has these answers."""
        wanted = self.ratio * sum(part.rollouts.n_tokens for part in answers)
        documents = self.stream.between(round(self.at), round(self.at + wanted))
        self.at += wanted
        if not documents:
            return []
        rows = mixed_tokens.in_rows(documents, self.pad_id, self.longest, self.packs)
        return [Microbatch(part, objective=self._loss) for part in rows.split(self.microbatch_tokens)]

    def _loss(self, *states: Any) -> Loss:
        """A label's loss, reported apart from the method's and no part of its signal."""
        found = self.objective(*states)
        return replace(found, metrics={METRIC: float(found.value.detach())}, maxima={}, signal_N=None)


def rehearsal(
    ws: Workspace, job: DistillJob, student: ChatModel, passes: int, stage: Stage
) -> Rehearsal | None:
    """None where it is turned off, or where the student was taught nothing that is known."""
    if not job.settings.rehearsal:
        return None
    texts = guards.texts_of(ws, job, stage, "rehearsal")
    ids = [np.array([*student.text_ids(text), student.document_end], np.uint32) for text in texts]
    if not ids:
        stage.say("  rehearsal    off: the student was taught no documents")
        return None
    ends = np.cumsum([len(one) for one in ids], dtype=np.int64)
    documents = Tokens(np.concatenate(ids), ends, opening=tuple(student.opening_ids))
    stage.say(
        f"  rehearsal    {job.settings.rehearsal:.0%} of the tokens are documents read again, "
        f"of {documents.total:,} tokens"
    )
    return Rehearsal(documents, job.settings, student, passes, job.seed)
