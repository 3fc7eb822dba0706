"""Keep the texts of a midtraining run for replay, rehearsal and the guard."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.corpus import documents
from pipelines.corpus.entities import MOST_CHARACTERS
from pipelines.corpus.token_file import Tokens, write_tokens
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel

KEPT_TEXTS = "documents.jsonl"
TOKENS = "tokens"  # folder of the same texts as token ids; removed when the run ends


def learned(ws: Workspace, student: str, most: int = MOST_CHARACTERS) -> list[str]:
    """Return the texts of all midtraining runs in a student's lineage, thinned to `most` characters."""
    runs = [ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)]
    return read_evenly([run / KEPT_TEXTS for run in runs], most)


def read_evenly(kept: list[Path], most: int) -> list[str]:
    """Return every n-th piece of the kept texts, with n such that about `most` characters are read."""
    size = sum(path.stat().st_size for path in kept if path.exists())
    pieces = chain.from_iterable(documents.load_pieces(path) for path in kept)
    return [piece.text for piece in islice(pieces, 0, None, max(1, -(-size // most)))]


def tokenised(directory: Path, chat_model: ChatModel, name: str, runs: list[Path], *, key: str) -> Tokens:
    """Return the kept texts of some runs as token ids, each with the document's opening and end tokens.

    The ids are written once under `directory`; a resumed run opens them again.
    """
    pieces = chain.from_iterable(documents.load_pieces(run / KEPT_TEXTS) for run in runs)
    sources = [documents.kept_digest(run / KEPT_TEXTS) for run in runs]
    end = chat_model.document_end
    tokens = write_tokens(
        directory / TOKENS / name,
        pieces,
        chat_model.text_ids,
        end,
        key=atomic_dirs.digest([key, str(end), *sources]),
    )
    return replace(tokens, opening=tuple(chat_model.opening_ids))
