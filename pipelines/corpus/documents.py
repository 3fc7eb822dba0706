"""Read a folder of documents: every file is accounted for, nothing outside the folder is read.

read_folder -> pieces of text and a report a file -> read_corpus (in memory), text_sample.py (some of it) or
text_file.py (on the disk)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from unicodedata import normalize

from pipelines.corpus.latex_macros import FolderMacros
from pipelines.corpus.manifest import FileReport, skipped_by_reason
from pipelines.corpus.reading import tree
from pipelines.corpus.reading.formats import (
    KINDS,
    MIB,
    Format,
    Limits,
    Unreadable,
    format_of,
    is_opened,
    suffixes,
    unknown,
)
from pipelines.corpus.reading.plain import FileFacts, Source, TextPiece, read_text
from pipelines.corpus.reading.pool import FileText, Pool
from pipelines.corpus.reading.similar import Signature, SimilarFiles
from recovery.errors import InputError

AHEAD = 32  # files that are opened before their turn, so that the limited processes never wait for work
REASONS = 4  # for skipping files that an error shows
MUCH = 32 * MIB  # characters of a file that need not be read to its end to know that it can be
UNSEEN = "\u00ad\u2060\ufeff"  # a soft hyphen, a word joiner, a byte order mark within the text
HASHED = 16 * MIB  # a file that is skipped half-way is still hashed up to this size
Progress = Callable[[int, int], None]  # called with the files and the bytes that are done


@dataclass(frozen=True)
class Corpus:
    """A folder read into memory."""

    manifest: tuple[FileReport, ...]
    texts: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts)


@dataclass
class _Job:
    """An open file that waits for its turn; a limited process may already parse it."""

    entry: tree.Entry
    format: Format | None = None
    packed: bool = False
    answer: FileText | None = None
    facts: FileFacts = field(default_factory=FileFacts)


class _Queue:
    """Files that are opened ahead of their turn; closes them at the end."""

    def __init__(self, walked: tree.Tree, limits: Limits) -> None:
        self._root = Path(walked.real)
        self._entries = walked.entries()
        self._limits = limits
        self._macros: FolderMacros | None = None
        self._jobs: deque[_Job] = deque()

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *_: object) -> None:
        for job in self._jobs:
            job.entry.close()

    def jobs(self, pool: Pool) -> Iterator[_Job]:
        """Yield each file in its turn; it is closed afterwards."""
        while self._fill(pool):
            yield self._jobs[0]
            self._jobs.popleft().entry.close()

    def _fill(self, pool: Pool) -> bool:
        """Open files until AHEAD of them wait; return whether any does."""
        while len(self._jobs) < AHEAD:
            entry = next(self._entries, None)
            if entry is None:
                break
            self._jobs.append(self._job(entry, pool))
        return bool(self._jobs)

    def _job(self, entry: tree.Entry, pool: Pool) -> _Job:
        if entry.reason:
            return _Job(entry)
        format, packed = format_of(entry.name)
        if format is None:
            entry.reason = unknown(entry.name)
            return _Job(entry)
        largest = self._limits.largest_mib(format)
        if entry.size > largest * MIB:
            entry.reason = f"larger than {largest} MiB"
            return _Job(entry, format)
        if not format.limited:
            return _Job(entry, format, packed)
        context = self._context(entry) if format.name == "latex" else ""
        return _Job(entry, format, packed, pool.submit(entry.handle, format, packed, entry.size, context))

    def _context(self, entry: tree.Entry) -> str:
        """Return what a LaTeX file's parser needs to know of the others, which are looked through once."""
        self._macros = self._macros or FolderMacros(self._root, self._limits)
        return self._macros.context(entry)


def refuse_among(folder: Path, file: Path, what: str) -> None:
    """Refuse a file of questions or prompts that lies where it would be read as a document."""
    if _is_document(folder, file):
        raise InputError(
            f"{what}: {file} lies in the folder of documents, so it would be trained on: put it elsewhere"
        )


def refuse_home_among(folder: Path, home: Path) -> None:
    """Refuse a home whose own files would be read as documents."""
    if _parts_below(folder, home) is not None:
        raise InputError(
            f"the home {home} lies in the folder of documents, so its files would be read: put it elsewhere, "
            "or under a name that begins with a dot"
        )


def _is_document(folder: Path, file: Path) -> bool:
    """Return whether a file lies in a folder of documents where it would be read as one of them."""
    parts = _parts_below(folder, file)
    return parts is not None and is_opened(file.name) and parts not in {(name,) for name in tree.ASKED}


def _parts_below(folder: Path, place: Path) -> tuple[str, ...] | None:
    """Return the names that lead from a folder to a place in it; None outside, and where one is hidden."""
    inside, root = place.resolve(), folder.resolve()
    if not inside.is_relative_to(root):
        return None
    parts = inside.relative_to(root).parts
    return None if any(part.startswith(".") for part in parts) else parts


def read_folder(
    directory: Path, limits: Limits | None = None, *, strict: bool = False, progress: Progress | None = None
) -> Iterator[TextPiece | FileReport]:
    """Yield each file's pieces, then its report, in the order of names; pieces of a skipped file don't count.

    With `strict` the first file that cannot be read is an error.
    """
    limits = limits or Limits()
    similar = SimilarFiles()
    done = size = 0
    with (
        tree.Tree(directory, limits.leave_out) as walked,
        _Queue(walked, limits) as waiting,
        Pool(limits) as pool,
    ):
        for job in waiting.jobs(pool):
            for item in _file(job, limits, similar):
                yield item
                if strict and isinstance(item, FileReport):
                    _refuse_skipped(item, directory)
            done += 1
            size += job.entry.weight
            if progress:
                progress(done, size)


def _file(job: _Job, limits: Limits, similar: SimilarFiles) -> Iterator[TextPiece | FileReport]:
    """Yield a file's pieces and its report."""
    entry = job.entry
    kind = job.format.name if job.format else None
    report = FileReport(entry.path, "skipped", entry.reason, kind=kind, size=entry.size)
    if entry.reason is not None:
        yield report
        return
    signature = Signature()
    characters = count = documents = 0
    try:
        for piece in _pieces(job, limits):
            signature.add(piece.text)
            characters += len(piece.text)
            count += 1
            documents += not piece.goes_on
            yield piece
        report = replace(report, characters=characters, pieces=count, documents=documents)
        reason = None if documents else "empty"
    except Unreadable as error:
        reason = str(error)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
    report = _with_facts(report, job, limits, reason)
    if report.status == "read":
        report = _compared(report, signature, similar, limits)
    yield report


def _pieces(job: _Job, limits: Limits) -> Iterator[TextPiece]:
    """Yield the documents that are not blank: from their first words on, with whatever ends them."""
    if job.answer is None:
        given = read_text(
            Source(job.entry.handle, job.packed, limits), job.facts, suffixes(job.entry.name)[0]
        )
    else:
        job.facts = job.answer.facts
        given = job.answer.pieces()
    begun = False  # a document whose last piece is still to come
    for piece in given:
        text = composed(piece.text)
        if begun or text.strip():
            begun = piece.goes_on
            yield replace(piece, text=text)


def composed(text: str) -> str:
    """Return a text with one character for a letter and its accents, and without what marks places to break
    a word, so that a word is written in one way in all documents."""
    if text.isascii():
        return text
    for mark in UNSEEN:
        text = text.replace(mark, "")
    return normalize("NFC", text)


def squeezed(text: str) -> str:
    """Return a text in the form in which it is looked for in another: a line may have been wrapped anywhere,
    also where words have no spaces between them."""
    return "".join(composed(text).split())


def _with_facts(report: FileReport, job: _Job, limits: Limits, reason: str | None) -> FileReport:
    """Return the report with the file's hash and encoding, and with the reason for skipping it if any."""
    facts = job.facts
    report = replace(report, sha256=facts.sha256, encoding=facts.encoding, markup=facts.markup)
    if reason is None:
        return replace(report, status="read", reason=facts.note)
    if facts.sha256 is None and job.entry.size <= HASHED:
        report = replace(report, sha256=Source(job.entry.handle, False, limits).sha256())
    return _skipped(report, reason)


def _compared(report: FileReport, signature: Signature, similar: SimilarFiles, limits: Limits) -> FileReport:
    """Return the report with the earlier file that this one nearly repeats, if any."""
    twin = similar.add(report.path, report.sha256, signature)
    if twin is None:
        return report
    report = replace(report, near_duplicate_of=twin[0], similarity=twin[1])
    return report if limits.keep_near_duplicates else _skipped(report, None)


def _skipped(report: FileReport, reason: str | None) -> FileReport:
    return replace(report, status="skipped", reason=reason, characters=0, pieces=0, documents=0, markup=0)


def _refuse_skipped(report: FileReport, directory: Path) -> None:
    """Refuse a file that cannot be read; a near-duplicate is left out as asked."""
    unread = report.status == "skipped" and report.near_duplicate_of is None
    if unread and report.reason not in tree.LEFT_ALONE:
        raise InputError(
            f"{directory}: {report.path}: {report.remark}: remove or repair it, or read without --strict"
        )


def read_corpus(directory: Path, limits: Limits | None = None, *, progress: Progress | None = None) -> Corpus:
    """Read a whole folder, a small one, into memory."""
    manifest: list[FileReport] = []
    texts: list[str] = []
    whole = 0  # texts of the files that are done
    for item in read_folder(directory, limits, progress=progress):
        if isinstance(item, TextPiece):
            texts.append(item.text)
            continue
        manifest.append(item)
        if item.status == "skipped":
            del texts[whole:]
        whole = len(texts)
    require_any_read(directory, manifest)
    return Corpus(tuple(manifest), tuple(texts))


def texts_up_to(directory: Path, most: int, limits: Limits) -> list[str] | None:
    """Return a folder's texts if they have at most so many characters, else None: no more are read."""
    texts: list[str] = []
    total = 0
    with closing(texts_of(directory, limits)) as found:
        for text in found:
            texts.append(text)
            total += len(text)
            if total > most:
                return None
    return texts


def texts_of(directory: Path, limits: Limits) -> Generator[str]:
    """Yield a folder's texts while they are read, also those of files that turn out to be skipped."""
    with closing(read_folder(directory, limits)) as items:  # type: ignore[type-var]
        yield from (item.text for item in items if isinstance(item, TextPiece))


def require(directory: Path, limits: Limits | None = None, *, strict: bool = False) -> None:
    """Refuse a folder without a document before a run starts; reads up to the end of the first file that is
    whole, or of much text, and in a strict run to the end, where a file that cannot be read is refused."""
    manifest: list[FileReport] = []
    read = 0
    with closing(read_folder(directory, limits, strict=strict)) as items:  # type: ignore[type-var]
        for item in items:
            if isinstance(item, FileReport):
                manifest.append(item)
            else:
                read += len(item.text)
            whole = isinstance(item, FileReport) and item.status == "read"
            if not strict and (whole or read > MUCH):
                return
    require_any_read(directory, manifest)


def require_any_read(directory: Path, manifest: list[FileReport]) -> None:
    """Refuse a folder in which no file was read."""
    if any(report.status == "read" for report in manifest):
        return
    raise InputError(f"{directory} holds no readable document{_skipped_why(manifest)}: add {KINDS} files")


def _skipped_why(manifest: list[FileReport]) -> str:
    """Return how many files were skipped for which of the commonest reasons, if they may be documents."""
    groups = [group for group in skipped_by_reason(manifest) if group[0] not in tree.NO_DOCUMENTS]
    if not groups:
        return ""
    said = [
        f"{reason} ({rows[0].path if len(rows) == 1 else f'{len(rows):,} files'})"
        for reason, rows in groups[:REASONS]
    ]
    more = ["…"] if len(groups) > REASONS else []
    return f" ({sum(len(rows) for _, rows in groups):,} skipped: {', '.join([*said, *more])})"
