"""Refuse documents and prompts that do not go together before the first stage.

What can be told of them in a few seconds: of a large folder, or of very many prompts, the stages tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.corpus import documents
from pipelines.corpus.reading.superseded_list import listed
from pipelines.knowledge import passage_teaching
from pipelines.knowledge.overlap import overlap
from pipelines.prompts.lengths import checkpoint_limit, smallest
from pipelines.runs.kept_texts import KEPT_TEXTS, kept_runs, read_evenly
from pipelines.writing.filters import ProbeLeaks
from recovery.errors import InputError
from recovery.methods.choices import FROZEN

if TYPE_CHECKING:
    from pipelines.config.settings import Config
    from pipelines.distillation.inputs import PromptData
    from pipelines.prompts.prompt_sources import Prompt
    from pipelines.runs.workspace import Workspace

FEW_PROMPTS = 10_000
SMALL = 300_000  # characters of a folder that is read in a few seconds
ASKED_ABOUT = 2_000_000  # characters among which a sentence is looked for that can be asked about
KEPT_BYTES = 64_000_000  # of earlier documents, which lie in the home as text


def require_questions(
    ws: Workspace, docs: Path, student: str, settings: Config, earlier: Mapping[int, str]
) -> None:
    """Refuse a folder about which midtraining by passages can ask nothing; the first text with a question
    that it can ask is enough. `earlier` are the probes of cycles before."""
    if settings.midtrain.method != passage_teaching.ROW:
        return
    checkpoint = ws.checkpoint(student)
    room = passage_teaching.room_of(ws.encoder(checkpoint), smallest(checkpoint_limit(ws, checkpoint)))
    leaks = ProbeLeaks.of_evaluation(settings.eval, earlier)
    read: list[str] = []
    characters = 0
    with closing(documents.texts_of(docs, settings.midtrain.reading.limits)) as texts:
        for text in texts:
            read.append(text)
            characters += len(text)
            asked = filter(room.admits, passage_teaching.questions([text], settings.seed))
            is_usable = not all(passage_teaching.gives_away(row, leaks) for row in asked)
            if is_usable or characters > ASKED_ABOUT:
                return
    passage_teaching.require_questions(passage_teaching.questions(read, settings.seed), room, leaks)


def require_chat_apart(
    ws: Workspace, prompts: Sequence[Prompt], docs: Path, student: str, settings: Config
) -> None:
    """Refuse prompts that are all about the documents: midtraining leaves those out of its chat share."""
    if _all_about(ws, prompts, docs, settings, student):
        raise InputError(
            "mix.chat: every prompt mentions what the documents are about, so none is left to answer: give "
            "other --prompts, or a midtrain.mix without chat"
        )


def require_recovery_apart(
    ws: Workspace, data: PromptData, docs: Path, student: str, settings: Config
) -> None:
    """Refuse prompts or pairs that are all about the documents where distillation drops those.

    Without a chat share no sentence is held out of midtraining; measured by sentences that the student was
    trained on, nearly all that the documents name counts as new.
    """
    teacher = settings.distill.resolved_method().teacher
    if teacher not in FROZEN or settings.distill.overlap != "drop":
        return
    taught = student if teacher == "base" else None  # the model before midtraining knows the earlier ones
    for name, rows in (("prompts", data.prompts), ("pairs", data.pairs)):
        if _all_about(ws, rows, docs, settings, taught):
            raise InputError(
                f"every one of the {name} mentions what the documents are about, so distillation would drop "
                f"them all: give other --{name}, or --overlap weight or keep"
            )


def _all_about(
    ws: Workspace, rows: Sequence[Prompt], docs: Path, settings: Config, taught: str | None
) -> bool:
    """Return whether all of a few rows mention what a small folder is about, or the earlier documents of a
    checkpoint that was taught some."""
    if not 0 < len(rows) <= FEW_PROMPTS:
        return False
    texts = documents.texts_up_to(docs, SMALL, settings.midtrain.reading.limits)
    if not texts:
        return False
    earlier = _earlier_texts(ws, taught, docs) if taught else []
    return not overlap(rows, [*texts, *earlier]).kept


def _earlier_texts(ws: Workspace, taught: str, docs: Path) -> list[str]:
    """Return some of the documents that a checkpoint was taught; nothing where they are many, or where a list
    beside the new ones names some that no longer count."""
    runs, _ = kept_runs(ws, taught)
    kept_bytes = sum((run / KEPT_TEXTS).stat().st_size for run in runs)
    return [] if listed(docs) or kept_bytes > KEPT_BYTES else read_evenly(runs, SMALL)
