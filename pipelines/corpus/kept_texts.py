"""Keep the texts of midtraining runs, as text and as tokens, for replay, rehearsal and the guard."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.corpus import documents
from pipelines.corpus.entities import MOST_CHARACTERS
from pipelines.corpus.token_file import Tokens, join_tokens, write_tokens
from recovery.storage import atomic_dirs

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel

KEPT_TEXTS = "documents.jsonl"
EARLIER_TOKENS = "earlier_tokens"  # in a run's folder while it trains: those of all earlier runs
TOKENS = "tokens"  # beside the kept texts: the same as ids


@dataclass(frozen=True)
class LearnedTexts:
    """The texts of a student's midtraining runs, and the runs whose kept texts were removed."""

    texts: list[str]
    absent: list[str]


def learned(ws: Workspace, student: str, most: int = MOST_CHARACTERS) -> LearnedTexts:
    """Return the texts of every midtraining run of a student, thinned out evenly beyond `most` characters.

    Damaged texts are an error: what they protect would be left unprotected.
    """
    runs, absent = kept_runs(ws, student)
    return LearnedTexts(read_evenly([run / KEPT_TEXTS for run in runs], most), absent)


def kept_runs(ws: Workspace, student: str) -> tuple[list[Path], list[str]]:
    """Return the folders of a student's midtraining runs, and the runs whose kept texts were removed."""
    folders = {run["id"]: ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)}
    absent = [run for run, folder in folders.items() if not (folder / KEPT_TEXTS).exists()]
    return [folder for run, folder in folders.items() if run not in absent], absent


def read_evenly(kept: list[Path], most: int = MOST_CHARACTERS) -> list[str]:
    """Return every n-th piece of some kept texts, with n so that about `most` characters are read."""
    size = sum(path.stat().st_size for path in kept)
    pieces = chain.from_iterable(documents.load_pieces(path) for path in kept)
    return [piece.text for piece in islice(pieces, 0, None, max(1, -(-size // most)))]


def tokenised(run: Path, chat_model: ChatModel) -> Tokens:
    """Return a run's kept texts as token ids, each with the document's opening and end tokens.

    They are written once for each tokenizer, then read by every later cycle.
    """
    encoding = _encoding(chat_model)
    tokens = write_tokens(
        run / TOKENS / encoding,
        documents.load_pieces(run / KEPT_TEXTS),
        chat_model.text_ids,
        chat_model.document_end,
        key=_key(run, encoding),
    )
    return replace(tokens, opening=tuple(chat_model.opening_ids))


def all_tokenised(target: Path, runs: list[Path], chat_model: ChatModel) -> Tokens:
    """Return the kept texts of several runs as token ids, concatenated in `target`.

    The texts of a single run are not copied.
    """
    tokens = [tokenised(run, chat_model) for run in runs]
    if len(tokens) == 1:
        return tokens[0]
    encoding = _encoding(chat_model)
    key = atomic_dirs.digest([_key(run, encoding) for run in runs])
    joined = join_tokens(target, [run / TOKENS / encoding for run in runs], key)
    return replace(joined, opening=tuple(chat_model.opening_ids))


def _key(run: Path, encoding: str) -> str:
    return atomic_dirs.digest([encoding, documents.kept_digest(run / KEPT_TEXTS)])


def _encoding(chat_model: ChatModel) -> str:
    """Return a hash of everything that decides how documents are encoded."""
    return atomic_dirs.digest([_tokenizer(chat_model), str(chat_model.document_end)])[:16]


def _tokenizer(chat_model: ChatModel) -> str:
    backend = getattr(chat_model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.to_str())
    vocabulary = sorted(chat_model.tokenizer.get_vocab().items())
    return f"{type(chat_model.tokenizer).__name__} {vocabulary}"
