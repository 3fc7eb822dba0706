"""Read a folder of documents: every file is accounted for, nothing outside the folder is read.

read_folder -> pieces of text and a report a file -> keep (on the disk) or read_corpus (in memory)
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pipelines.corpus.reading import tree
from pipelines.corpus.reading.formats import KINDS, MIB, Format, Limits, Unreadable, format_of, unknown
from pipelines.corpus.reading.plain import FileFacts, Source, TextPiece, read_text
from pipelines.corpus.reading.pool import FileText, Pool
from pipelines.corpus.reading.similar import Signature, SimilarFiles
from recovery import untrusted_json
from recovery.errors import InputError
from recovery.storage import atomic_dirs

AHEAD = 32  # files that are opened before their turn, so that the limited processes never wait for work
HASHED = 16 * MIB  # a file that is skipped half-way is still hashed up to this size
COLUMNS = ("path", "status", "reason", "sha256", "encoding", "characters", "tokens")  # of the database
MANIFEST = "manifest.jsonl"  # beside the kept texts
Progress = Callable[[int, int], None]  # called with the files and the bytes that are done


@dataclass(frozen=True, slots=True)
class FileReport:
    """A manifest row: read, or skipped and why. A file that was read may carry a remark as its reason."""

    path: str
    status: str  # "read" | "skipped"
    reason: str | None = None
    sha256: str | None = None
    encoding: str | None = None
    characters: int = 0
    tokens: int | None = None
    kind: str | None = None
    size: int = 0
    documents: int = 0
    pieces: int = 0
    near_duplicate_of: str | None = None
    similarity: float | None = None

    @property
    def remark(self) -> str | None:
        """The reason, with the file that this one nearly repeats."""
        remarks = [self.reason] if self.reason else []
        if self.near_duplicate_of:
            remarks.append(f"near-duplicate of {self.near_duplicate_of} ({self.similarity:.2f})")
        return "; ".join(remarks) or None


@dataclass(frozen=True)
class Corpus:
    """A folder read into memory."""

    manifest: tuple[FileReport, ...]
    texts: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts)


# Reading -------------------------------------------------------------------------------------------------


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

    def __init__(self, entries: Iterator[tree.Entry], limits: Limits) -> None:
        self._entries = entries
        self._limits = limits
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
        answer = pool.submit(entry.handle, format, packed, entry.size) if format.limited else None
        return _Job(entry, format, packed, answer)


def read_folder(
    directory: Path, limits: Limits | None = None, *, strict: bool = False, progress: Progress | None = None
) -> Iterator[TextPiece | FileReport]:
    """Yield each file's pieces, then its report, in the order of names; pieces of a skipped file don't count.

    With `strict` the first file that is skipped is an error, hidden files excepted.
    """
    limits = limits or Limits()
    similar = SimilarFiles()
    done = size = 0
    with (
        tree.Tree(directory) as walked,
        _Queue(walked.entries(), limits) as waiting,
        Pool(limits) as pool,
    ):
        for job in waiting.jobs(pool):
            for item in _file(job, limits, similar):
                yield item
                if strict and isinstance(item, FileReport):
                    _refuse_skipped(item, directory)
            done = done + 1
            size = size + job.entry.size
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
            characters = characters + len(piece.text)
            count = count + 1
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
    """Yield the pieces that are not blank."""
    if job.answer is None:
        given = read_text(Source(job.entry.handle, job.packed, limits), job.facts)
    else:
        job.facts = job.answer.facts
        given = job.answer.pieces()
    return (piece for piece in given if piece.goes_on or piece.text.strip())


def _with_facts(report: FileReport, job: _Job, limits: Limits, reason: str | None) -> FileReport:
    """Return the report with the file's hash and encoding, and with the reason for skipping it if any."""
    facts = job.facts
    report = replace(report, sha256=facts.sha256, encoding=facts.encoding)
    if reason is None:
        return replace(report, status="read", reason=facts.note)
    if facts.sha256 is None and job.entry.size <= HASHED:
        whole = b"".join(Source(job.entry.handle, False, limits).raw())
        report = replace(report, sha256=hashlib.sha256(whole).hexdigest())
    return _skipped(report, reason)


def _compared(report: FileReport, signature: Signature, similar: SimilarFiles, limits: Limits) -> FileReport:
    """Return the report with the earlier file that this one nearly repeats, if any."""
    twin = similar.add(report.path, report.sha256, signature)
    if twin is None:
        return report
    report = replace(report, near_duplicate_of=twin[0], similarity=twin[1])
    return report if limits.keep_near_duplicates else _skipped(report, None)


def _skipped(report: FileReport, reason: str | None) -> FileReport:
    return replace(report, status="skipped", reason=reason, characters=0, pieces=0, documents=0)


def _refuse_skipped(report: FileReport, directory: Path) -> None:
    if report.status == "skipped" and report.reason != tree.HIDDEN:
        raise InputError(
            f"{directory}: {report.path}: {report.remark}: remove or repair it, or read without --strict"
        )


def read_corpus(directory: Path, limits: Limits | None = None, *, strict: bool = False) -> Corpus:
    """Read a whole folder, a small one, into memory."""
    manifest: list[FileReport] = []
    texts: list[str] = []
    whole = 0  # texts of the files that are done
    for item in read_folder(directory, limits, strict=strict):
        if isinstance(item, TextPiece):
            texts.append(item.text)
            continue
        manifest.append(item)
        if item.status == "skipped":
            del texts[whole:]
        whole = len(texts)
    refuse_nothing(directory, manifest)
    return Corpus(tuple(manifest), tuple(texts))


def require(directory: Path) -> None:
    """Refuse a folder without a document before a run starts; reads up to the first document."""
    skipped: list[FileReport] = []
    with closing(read_folder(directory)) as items:  # type: ignore[type-var]
        for item in items:
            if isinstance(item, TextPiece):
                return
            skipped.append(item)
    refuse_nothing(directory, skipped)


def refuse_nothing(directory: Path, manifest: list[FileReport]) -> None:
    """Refuse a folder in which no file was read."""
    if any(report.status == "read" for report in manifest):
        return
    first = next((report for report in manifest if report.reason != tree.HIDDEN), None)
    skipped = f" ({len(manifest)} skipped: {first.path}: {first.remark})" if first else ""
    raise InputError(f"{directory} holds no readable document{skipped}: add {KINDS} files")


# Keeping -------------------------------------------------------------------------------------------------


def keep(
    directory: Path,
    target: Path,
    limits: Limits | None = None,
    *,
    strict: bool = False,
    progress: Progress | None = None,
) -> list[FileReport]:
    """Write a folder's texts to one file with a manifest beside it, and return the manifest.

    Both appear when everything was read; the folder may be larger than the memory.
    """
    manifest: list[FileReport] = []
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_dirs.storage_errors(target.parent), atomic_dirs.whole_file(target) as texts:
        whole = 0  # bytes of the files that are done
        for item in read_folder(directory, limits, strict=strict, progress=progress):
            if isinstance(item, TextPiece):
                texts.write(_line(item))
                continue
            manifest.append(item)
            if item.status == "skipped":
                texts.truncate(texts.seek(whole))
            whole = texts.tell()
        refuse_nothing(directory, manifest)
        _write_manifest(target.parent / MANIFEST, manifest)
    return manifest


def _line(piece: TextPiece) -> bytes:
    """Return a text as a line of JSON, in brackets where its document goes on in the next line."""
    value = [piece.text] if piece.goes_on else piece.text
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def load_pieces(path: Path, without: frozenset[int] = frozenset()) -> Iterator[TextPiece]:
    """Yield the kept pieces of all documents but some, by number; a damaged line is an error."""
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                piece = _piece(untrusted_json.parse(line))
                if number not in without:
                    yield piece
                number += not piece.goes_on
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the kept documents of an earlier cycle cannot be read: {error}") from error


def _piece(value: Any) -> TextPiece:
    if isinstance(value, str):
        return TextPiece(value)
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return TextPiece(value[0], goes_on=True)
    raise ValueError("a line that is neither a text nor a part of one")


def load_texts(path: Path) -> list[str]:
    """Return the kept texts; a long document is several of them."""
    return [piece.text for piece in load_pieces(path)]


def _write_manifest(path: Path, manifest: Iterable[FileReport]) -> None:
    with atomic_dirs.storage_errors(path.parent):
        atomic_dirs.write_text(path, "".join(json.dumps(asdict(report)) + "\n" for report in manifest))


def load_manifest(directory: Path) -> list[FileReport]:
    """Return the manifest beside kept texts; empty where an older version kept none."""
    path = directory / MANIFEST
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8") as file:
            return [FileReport(**untrusted_json.parse_object(line)) for line in file]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: the manifest of kept documents cannot be read: {error}") from error


def kept_digest(kept: Path) -> str:
    """Return the hash of the manifest beside kept texts, which has every file's hash; else of the texts."""
    manifest = kept.parent / MANIFEST
    with (manifest if manifest.exists() else kept).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def summary(manifest: Iterable[FileReport]) -> str:
    """Return the manifest's counts as one line of the log."""
    rows = list(manifest)
    read = [row for row in rows if row.status == "read"]
    characters = sum(row.characters for row in read)
    tokens = sum(row.tokens or 0 for row in read)
    twins = sum(row.near_duplicate_of is not None for row in rows)
    nearly = f", {twins} near-duplicates" if twins else ""
    return (
        f"  documents    {sum(row.documents for row in read):,} from {len(read):,} files, "
        f"{len(rows) - len(read):,} skipped{nearly}; {characters:,} characters, {tokens:,} tokens"
    )


def manifest_rows(manifest: Iterable[FileReport]) -> list[dict[str, object]]:
    """Return the manifest as rows of the database."""
    rows = []
    for report in manifest:
        row = asdict(report)
        rows.append({name: row[name] for name in COLUMNS} | {"reason": report.remark})
    return rows
