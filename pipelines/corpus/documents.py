"""The door to a folder of documents: every file accounted for, nothing outside the folder read.

read_folder -> pieces of text and a report a file -> keep (on the disk) or read_corpus (in memory)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from pipelines.corpus.reading import tree
from pipelines.corpus.reading.formats import KINDS, MIB, Format, Limits, Unreadable, format_of, unknown
from pipelines.corpus.reading.plain import Facts, Piece, Source, pieces, read_text
from pipelines.corpus.reading.pool import Outcome, Pool
from pipelines.corpus.reading.records import read_csv, read_jsonl
from pipelines.corpus.reading.similar import Signature, Similar
from recovery.errors import InputError
from recovery.storage import atomic_dirs

HERE = {"text": read_text, "jsonl": read_jsonl, "csv": read_csv}
AHEAD = 32  # files that are opened before their turn, so that the limited processes never wait for work
HASHED = 16 * MIB  # a file that is skipped half-way is still hashed up to this size
COLUMNS = ("path", "status", "reason", "sha256", "encoding", "characters", "tokens")  # of the database
MANIFEST = "manifest.jsonl"  # beside the kept texts
Progress = Callable[[int, int], None]  # hears of files and bytes that are done


@dataclass(frozen=True)
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
        twin = f"near-duplicate of {self.near_duplicate_of}" if self.near_duplicate_of else None
        return "; ".join(filter(None, (self.reason, twin and f"{twin} ({self.similarity:.2f})"))) or None


@dataclass(frozen=True)
class Corpus:
    manifest: tuple[FileReport, ...]
    texts: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts)


# Reading -------------------------------------------------------------------------------------------------


@dataclass
class _Job:
    """A file whose turn will come; what needs a limited process is under way meanwhile."""

    entry: tree.Entry
    format: Format | None = None
    packed: bool = False
    answer: Future[Outcome] | None = None
    facts: Facts = field(default_factory=Facts)


def read_folder(
    directory: Path, limits: Limits | None = None, *, strict: bool = False, progress: Progress | None = None
) -> Iterator[Piece | FileReport]:
    """Each file's pieces, then its report, in the order of names; pieces of a skipped file don't count.

    Strict, the first file that is skipped is an error; hidden ones are left alone all the same.
    """
    limits, similar = limits or Limits(), Similar()
    waiting: deque[_Job] = deque()
    done = size = 0
    with tree.Tree(directory) as walked, Pool(limits) as pool:
        entries = walked.entries()
        try:
            while _fill(waiting, entries, limits, pool):
                for found in _file(waiting[0], limits, similar):
                    yield found
                    if strict and isinstance(found, FileReport):
                        _insist(found, directory)
                job = waiting.popleft()
                job.entry.close()
                done, size = done + 1, size + job.entry.size
                if progress:
                    progress(done, size)
        finally:
            for job in waiting:
                job.entry.close()


def _fill(waiting: deque[_Job], entries: Iterator[tree.Entry], limits: Limits, pool: Pool) -> bool:
    """Takes up files until AHEAD of them wait; whether any does."""
    while len(waiting) < AHEAD:
        entry = next(entries, None)
        if entry is None:
            break
        waiting.append(_taken_up(entry, limits, pool))
    return bool(waiting)


def _taken_up(entry: tree.Entry, limits: Limits, pool: Pool) -> _Job:
    if entry.reason:
        return _Job(entry)
    format, packed = format_of(entry.name)
    if format is None:
        entry.reason = unknown(entry.name)
        return _Job(entry)
    largest = limits.largest_text_mib if format.here else limits.largest_file_mib
    if entry.size > largest * MIB:
        entry.reason = f"larger than {largest} MiB"
        return _Job(entry, format)
    answer = None if format.here else pool.submit(entry.handle, format, packed, entry.size)
    return _Job(entry, format, packed, answer)


def _file(job: _Job, limits: Limits, similar: Similar) -> Iterator[Piece | FileReport]:
    entry, kind = job.entry, job.format.name if job.format else None
    report = FileReport(entry.path, "skipped", entry.reason, kind=kind, size=entry.size)
    if entry.reason is None:
        signature = Signature()
        characters = count = documents = 0
        try:
            for piece in _pieces(job, limits):
                signature.add(piece.text)
                characters, count = characters + len(piece.text), count + 1
                documents += not piece.goes_on
                yield piece
            report = replace(report, characters=characters, pieces=count, documents=documents)
            reason = None if documents else "empty"
        except Unreadable as error:
            reason = str(error)
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
        report = _judged(report, job, limits, reason)
        if report.status == "read":
            report = _compared(report, signature, similar, limits)
    yield report


def _pieces(job: _Job, limits: Limits) -> Iterator[Piece]:
    """Pieces with something in them."""
    assert job.format is not None
    if job.answer is None:
        found = HERE[job.format.name](Source(job.entry.handle, job.packed, limits), job.facts)
    else:
        outcome = job.answer.result()
        job.facts = outcome.facts
        if outcome.reason:
            raise Unreadable(outcome.reason)
        found = pieces(outcome.parts())
    return (piece for piece in found if piece.goes_on or piece.text.strip())


def _judged(report: FileReport, job: _Job, limits: Limits, reason: str | None) -> FileReport:
    """The report with what was learned of the file."""
    facts = job.facts
    report = replace(report, sha256=facts.sha256, encoding=facts.encoding)
    if reason is None:
        return replace(report, status="read", reason=facts.note)
    if facts.sha256 is None and job.entry.size <= HASHED:
        whole = b"".join(Source(job.entry.handle, False, limits).raw())
        report = replace(report, sha256=hashlib.sha256(whole).hexdigest())
    return _skipped(report, reason)


def _compared(report: FileReport, signature: Signature, similar: Similar, limits: Limits) -> FileReport:
    twin = similar.add(report.path, report.sha256, signature)
    if twin is None:
        return report
    report = replace(report, near_duplicate_of=twin[0], similarity=twin[1])
    return report if limits.keep_near_duplicates else _skipped(report, None)


def _skipped(report: FileReport, reason: str | None) -> FileReport:
    """A file that is skipped holds no text."""
    return replace(report, status="skipped", reason=reason, characters=0, pieces=0, documents=0)


def _insist(report: FileReport, directory: Path) -> None:
    if report.status == "skipped" and report.reason != tree.HIDDEN:
        raise InputError(
            f"{directory}: {report.path}: {report.remark}: remove or repair it, or read without --strict"
        )


def read_corpus(directory: Path, limits: Limits | None = None, *, strict: bool = False) -> Corpus:
    """The whole folder in memory: for small ones."""
    manifest: list[FileReport] = []
    texts: list[str] = []
    whole = 0
    for found in read_folder(directory, limits, strict=strict):
        if isinstance(found, Piece):
            texts.append(found.text)
            continue
        manifest.append(found)
        if found.status == "skipped":
            del texts[whole:]
        whole = len(texts)
    refuse_nothing(directory, manifest)
    return Corpus(tuple(manifest), tuple(texts))


def require(directory: Path) -> None:
    """Refuses, before anything is run, a folder without a document: looks until it meets the first one."""
    skipped: list[FileReport] = []
    with closing(read_folder(directory)) as found:  # type: ignore[type-var]
        for one in found:
            if isinstance(one, Piece):
                return
            skipped.append(one)
    refuse_nothing(directory, skipped)


def refuse_nothing(directory: Path, manifest: list[FileReport]) -> None:
    """A folder without a single document is a mistake."""
    if any(report.status == "read" for report in manifest):
        return
    told = next((report for report in manifest if report.reason != tree.HIDDEN), None)
    skipped = f" ({len(manifest)} skipped: {told.path}: {told.remark})" if told else ""
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
    """Reads a folder into a file of texts with a manifest beside it: what a run and later cycles learn from.

    Both appear once all is read; the folder may be larger than the memory.
    """
    manifest: list[FileReport] = []
    partial = target.with_suffix(".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_dirs.storage_errors(target.parent), partial.open("wb") as texts:
        whole = 0
        for found in read_folder(directory, limits, strict=strict, progress=progress):
            if isinstance(found, Piece):
                texts.write(_line(found))
                continue
            manifest.append(found)
            if found.status == "skipped":
                texts.truncate(texts.seek(whole))
            whole = texts.tell()
        refuse_nothing(directory, manifest)
        texts.flush()
        os.fsync(texts.fileno())
    _write_manifest(target.parent / MANIFEST, manifest)
    partial.rename(target)
    return manifest


def save_texts(path: Path, texts: Iterable[str]) -> None:
    """Texts in the form that `keep` writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with atomic_dirs.storage_errors(path.parent), partial.open("wb") as file:
        file.writelines(_line(Piece(text)) for text in texts)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _line(piece: Piece) -> bytes:
    """A text as JSON; in brackets where its document goes on in the next line."""
    return json.dumps([piece.text] if piece.goes_on else piece.text, ensure_ascii=False).encode() + b"\n"


def load_pieces(path: Path) -> Iterator[Piece]:
    """What was kept, one piece at a time."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                text = json.loads(line)
                yield Piece(text[0], goes_on=True) if isinstance(text, list) else Piece(text)
    except (OSError, ValueError, IndexError) as error:
        raise InputError(f"{path}: the kept documents of an earlier cycle cannot be read: {error}") from error


def load_texts(path: Path) -> list[str]:
    """What was kept, all at once: a long document in several texts."""
    return [piece.text for piece in load_pieces(path)]


def _write_manifest(path: Path, manifest: Iterable[FileReport]) -> None:
    with atomic_dirs.storage_errors(path.parent), path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(report)) + "\n" for report in manifest)
        file.flush()
        os.fsync(file.fileno())


def load_manifest(directory: Path) -> list[FileReport]:
    """The manifest beside kept texts; empty where an older version kept them."""
    path = directory / MANIFEST
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return [FileReport(**json.loads(line)) for line in file]


def kept_digest(kept: Path) -> str:
    """What names kept texts: the hash of their manifest, which has every file's hash; else of themselves."""
    manifest = kept.parent / MANIFEST
    with (manifest if manifest.exists() else kept).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def summary(manifest: Iterable[FileReport]) -> str:
    """One line for a person."""
    rows = list(manifest)
    read = [row for row in rows if row.status == "read"]
    characters, tokens = sum(row.characters for row in read), sum(row.tokens or 0 for row in read)
    twins = sum(row.near_duplicate_of is not None for row in rows)
    nearly = f", {twins} near-duplicates" if twins else ""
    return (
        f"  documents    {sum(row.documents for row in read):,} from {len(read):,} files, "
        f"{len(rows) - len(read):,} skipped{nearly}; {characters:,} characters, {tokens:,} tokens"
    )


def manifest_rows(manifest: Iterable[FileReport]) -> list[dict[str, object]]:
    """As the database has them."""
    rows = ((report, asdict(report)) for report in manifest)
    return [{name: row[name] for name in COLUMNS} | {"reason": report.remark} for report, row in rows]
