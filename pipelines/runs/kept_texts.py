"""Keep the texts of midtraining runs, as text and as tokens, for replay, rehearsal and the guard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from db.reads import queries
from pipelines.corpus import manifest, superseded, text_file
from pipelines.corpus.entities import MOST_CHARACTERS, sample
from pipelines.corpus.replayed_pieces import replayed_pieces
from pipelines.corpus.token_file import Pieces, Tokens, join_tokens, write_tokens
from pipelines.runs.progress import reading_progress
from recovery.storage import file_hashes

if TYPE_CHECKING:
    from pipelines.config.sections.midtrain import ReadingConfig
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel

KEPT_TEXTS = "documents.jsonl"
EARLIER_TOKENS = "earlier_tokens"  # in a run's folder while it trains: those of all earlier runs
TOKENS = "tokens"  # beside the kept texts: the same as ids
OF_NEWEST = 0.6  # of the characters of learned texts, where there are more


@dataclass(frozen=True)
class LearnedTexts:
    """The texts of a student's midtraining runs, and the runs whose kept texts were removed."""

    earlier: list[str]
    newest: list[str]  # of the last run that has any
    absent: list[str]

    @property
    def texts(self) -> list[str]:
        return [*self.earlier, *self.newest]


def keep(docs: str, run: Path, reading: ReadingConfig, step: Callable[..., None], *, strict: bool) -> None:
    """Keep the texts of a folder in a run's folder, once: a resumed run reads what its first attempt kept."""
    kept, folder = run / KEPT_TEXTS, Path(docs)
    if not kept.exists():
        progress = reading_progress(step, folder, reading.leave_out)
        text_file.keep(folder, kept, reading.limits, strict=strict, progress=progress)


def kept_before(ws: Workspace, parent: str | None, key: str | None, file: str = KEPT_TEXTS) -> bool:
    """Return whether a run of this name was interrupted once it had kept its texts, or another file."""
    run = queries.run_of_key(ws.tracker.db, key, parent=parent) if key else None
    return run is not None and (ws.run_directory(run["id"]) / file).exists()


def learned(ws: Workspace, student: str, most: int = MOST_CHARACTERS) -> LearnedTexts:
    """Return the texts of every midtraining run of a student, or about `most` characters: OF_NEWEST of the
    newest run's, the rest drawn evenly from the earlier ones, and of either what the other has left.

    Damaged texts are an error: what they protect would be left unprotected.
    """
    runs, absent = kept_runs(ws, student)
    if not runs:
        return LearnedTexts([], [], absent)
    *before, last = runs
    newest, earlier = read_evenly([last], most), read_evenly(before, most, current=last)
    of_newest = max(round(OF_NEWEST * most), most - _characters(earlier))
    of_earlier = most - min(of_newest, _characters(newest))
    return LearnedTexts(sample(earlier, of_earlier), sample(newest, of_newest), absent)


def _characters(texts: Sequence[str]) -> int:
    return sum(map(len, texts))


def kept_runs(ws: Workspace, student: str) -> tuple[list[Path], list[str]]:
    """Return the folders of a student's midtraining runs, and the runs whose kept texts were removed."""
    folders = {run["id"]: ws.run_directory(run["id"]) for run in ws.midtraining_runs(student)}
    absent = [run for run, folder in folders.items() if not (folder / KEPT_TEXTS).exists()]
    return [folder for run, folder in folders.items() if run not in absent], absent


def read_evenly(runs: Sequence[Path], most: int = MOST_CHARACTERS, current: Path | None = None) -> list[str]:
    """Return what some runs have kept, or pieces of about `most` characters of it, drawn evenly.

    Documents that a later one of the runs, or the `current` one behind them, has superseded are left out.
    """
    left_out = superseded.left_out([*runs, current] if current else runs)
    texts = (
        piece.text
        for run, without in zip(runs, left_out[: len(runs)], strict=True)
        for piece in text_file.load_pieces(run / KEPT_TEXTS, without)
    )
    return sample(texts, most)


def tokenised(
    run: Path,
    chat_model: ChatModel,
    encoding: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Tokens:
    """Return a run's kept texts as token ids, each with the document's opening and end tokens.

    They are written once for each tokenizer, then read by every later cycle. `progress` is called with the
    number of documents done.
    """
    encoding = encoding or encoding_of(chat_model)
    tokens = write_tokens(
        run / TOKENS / encoding,
        text_file.load_pieces(run / KEPT_TEXTS),
        chat_model.text_ids,
        chat_model.document_end,
        key=_key(run, encoding),
        progress=progress,
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

    @property
    def total(self) -> int:
        return sum(pieces.total for pieces in self._documents(self._tokens()))

    def _tokens(self) -> list[Tokens]:
        return [tokenised(run, self.chat_model, self.encoding) for run in self.runs]

    def _documents(self, tokens: Sequence[Tokens]) -> list[Pieces]:
        return [one.whole(without) for one, without in zip(tokens, self.left_out, strict=True)]

    def joined(self, target: Path, most: int, seed: int, *, longest: int) -> Tokens:
        """Return the tokens as one, copied one behind the other to `target`; a single run is not copied.

        Of more than `most` tokens, what a training reads of them, pieces of a row's length (`longest`) are
        drawn, alike from every run: whole documents would let a long one take the place of all others.
        """
        tokens = self._tokens()
        pieces = self._documents(tokens)
        if sum(one.total for one in pieces) > most:
            cut = [one.cuts(longest, without) for one, without in zip(tokens, self.left_out, strict=True)]
            pieces = replayed_pieces(cut, most, seed)
        present = [at for at, one in enumerate(pieces) if one.total]
        opening = tuple(self.chat_model.opening_ids)
        if not present:
            return Tokens.of([], opening)
        if len(present) == 1 and pieces[present[0]].total == tokens[present[0]].total:
            return tokens[present[0]]
        parts = [(self.runs[at], pieces[at]) for at in present]
        key = file_hashes.digest([[_key(run, self.encoding), _borders(one)] for run, one in parts])
        sources = [(run / TOKENS / self.encoding, one) for run, one in parts]
        return replace(join_tokens(target, sources, key), opening=opening)


def _borders(pieces: Pieces) -> list[list[int]]:
    return [pieces.starts.tolist(), pieces.ends.tolist()]


def _key(run: Path, encoding: str) -> str:
    return file_hashes.digest([encoding, manifest.digest(run)])


def encoding_of(chat_model: ChatModel) -> str:
    """Return a hash of everything that decides how documents are encoded."""
    return file_hashes.digest([_tokenizer(chat_model), str(chat_model.document_end)])[:16]


def _tokenizer(chat_model: ChatModel) -> str:
    backend = getattr(chat_model.tokenizer, "backend_tokenizer", None)
    if backend is not None:
        return str(backend.to_str())
    vocabulary = sorted(chat_model.tokenizer.get_vocab().items())
    return f"{type(chat_model.tokenizer).__name__} {vocabulary}"
