"""The texts that a midtraining run read, kept for replay, rehearsal and the guard."""

from __future__ import annotations

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
TOKENS = "tokens"  # the same as ids, while the run lasts


def learned(ws: Workspace, student: str, most: int = MOST_CHARACTERS) -> list[str]:
    """The texts of every midtraining in a student's past; of more than can be looked at, an even part."""
    runs = [ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)]
    return read_evenly([run / KEPT_TEXTS for run in runs], most)


def read_evenly(kept: list[Path], most: int) -> list[str]:
    """Every so manieth piece, so that what is read stays small."""
    size = sum(path.stat().st_size for path in kept if path.exists())
    pieces = chain.from_iterable(documents.load_pieces(path) for path in kept)
    return [piece.text for piece in islice(pieces, 0, None, max(1, -(-size // most)))]


def tokenised(directory: Path, chat_model: ChatModel, name: str, runs: list[Path], *, key: str) -> Tokens:
    """The texts that some runs kept; made once under `directory`, found again when it is resumed."""
    pieces = chain.from_iterable(documents.load_pieces(run / KEPT_TEXTS) for run in runs)
    sources = [documents.kept_digest(run / KEPT_TEXTS) for run in runs]
    return write_tokens(
        directory / TOKENS / name,
        pieces,
        chat_model.text_ids,
        chat_model.document_end,
        key=atomic_dirs.digest([key, *sources]),
    )
