"""Keep the texts of midtraining runs, as text and as tokens, for replay, rehearsal and the guard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.corpus import documents, superseded
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
    return LearnedTexts(read_evenly(runs, most), absent)


def kept_runs(ws: Workspace, student: str) -> tuple[list[Path], list[str]]:
    """Return the folders of a student's midtraining runs, and the runs whose kept texts were removed."""
    folders = {run["id"]: ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)}
    absent = [run for run, folder in folders.items() if not (folder / KEPT_TEXTS).exists()]
    return [folder for run, folder in folders.items() if run not in absent], absent


def read_evenly(runs: Sequence[Path], most: int = MOST_CHARACTERS) -> list[str]:
    """Return every n-th piece of what some runs have kept, with n so that about `most` characters are read.

    Documents that a later one of the runs has superseded are left out.
    """
    size = sum((run / KEPT_TEXTS).stat().st_size for run in runs)
    step = max(1, -(-size // most))
    kept = (
        documents.load_pieces(run / KEPT_TEXTS, without)
        for run, without in zip(runs, superseded.left_out(runs), strict=True)
    )
    return [piece.text for piece in islice(chain.from_iterable(kept), 0, None, step)]


def tokenised(run: Path, chat_model: ChatModel, encoding: str | None = None) -> Tokens:
    """Return a run's kept texts as token ids, each with the document's opening and end tokens.

    They are written once for each tokenizer, then read by every later cycle.
    """
    encoding = encoding or encoding_of(chat_model)
    tokens = write_tokens(
        run / TOKENS / encoding,
        documents.load_pieces(run / KEPT_TEXTS),
        chat_model.text_ids,
        chat_model.document_end,
        key=_key(run, encoding),
    )
    return replace(tokens, opening=tuple(chat_model.opening_ids))


@dataclass(frozen=True)
class KeptTokens:
    """The token ids of several runs, oldest first, without the documents that later runs have superseded."""

    runs: Sequence[Path]
    left_out: Sequence[frozenset[int]]
    chat_model: ChatModel
    encoding: str  # of the tokenizer, which may be large: computed once for all runs

    @classmethod
    def of(cls, runs: Sequence[Path], chat_model: ChatModel, current: Path | None = None) -> KeptTokens:
        """Prepare the tokens of some runs; `current` is a later one, whose documents are not among them."""
        every = superseded.left_out([*runs, current] if current else runs)
        return cls(runs, every[: len(runs)], chat_model, encoding_of(chat_model))

    def each(self, target: Path) -> list[Tokens]:
        """Return one set of tokens a run; only those with superseded documents are copied, below `target`."""
        return [
            self._joined(target / run.name, [(run, without)])
            for run, without in zip(self.runs, self.left_out, strict=True)
        ]

    def all(self, target: Path) -> Tokens:
        """Return all tokens as one, copied one behind the other to `target`; a single run is not copied."""
        return self._joined(target, list(zip(self.runs, self.left_out, strict=True)))

    def _joined(self, target: Path, parts: list[tuple[Path, frozenset[int]]]) -> Tokens:
        opening = self.chat_model.opening_ids
        read = [(tokenised(run, self.chat_model, self.encoding), run, without) for run, without in parts]
        there = [(tokens, run, without) for tokens, run, without in read if len(without) < len(tokens)]
        if not there:
            return Tokens.of([], opening)
        if len(there) == 1 and not there[0][2]:
            return there[0][0]
        key = atomic_dirs.digest([[_key(run, self.encoding), sorted(without)] for _, run, without in there])
        sources = [(run / TOKENS / self.encoding, without) for _, run, without in there]
        return replace(join_tokens(target, sources, key), opening=tuple(opening))


def _key(run: Path, encoding: str) -> str:
    return atomic_dirs.digest([encoding, documents.kept_digest(run / KEPT_TEXTS)])


def encoding_of(chat_model: ChatModel) -> str:
    """Return a hash of everything that decides how documents are encoded."""
    return atomic_dirs.digest([_tokenizer(chat_model), str(chat_model.document_end)])[:16]


def _tokenizer(chat_model: ChatModel) -> str:
    backend = getattr(chat_model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.to_str())
    vocabulary = sorted(chat_model.tokenizer.get_vocab().items())
    return f"{type(chat_model.tokenizer).__name__} {vocabulary}"
