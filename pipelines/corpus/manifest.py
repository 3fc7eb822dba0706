"""The manifest of a folder of documents: a row a file, read or skipped and why."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path

from recovery import untrusted_json
from recovery.counted import counted
from recovery.errors import InputError
from recovery.storage import atomic_dirs

MANIFEST = "manifest.jsonl"  # beside the kept texts
COLUMNS = ("path", "status", "reason", "sha256", "encoding", "characters", "tokens")  # of the database


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
    markup: int = 0  # characters left out, as only the tools that build a site read them

    @property
    def remark(self) -> str | None:
        """The reason, with the file that this one nearly repeats."""
        remarks = [self.reason] if self.reason else []
        if self.near_duplicate_of:
            remarks.append(f"near-duplicate of {self.near_duplicate_of} ({self.similarity:.2f})")
        return "; ".join(remarks) or None


def skipped_by_reason(manifest: Iterable[FileReport]) -> list[tuple[str, list[FileReport]]]:
    """Return the skipped files of each reason, the commonest first."""
    found: dict[str, list[FileReport]] = {}
    for report in manifest:
        if report.status == "skipped":
            found.setdefault(report.reason or "near-duplicate of another file", []).append(report)
    return sorted(found.items(), key=lambda group: -len(group[1]))


def write_manifest(path: Path, manifest: Iterable[FileReport]) -> None:
    """Write one line of JSON a file."""
    with atomic_dirs.storage_errors(path.parent):
        atomic_dirs.write_text(path, "".join(json.dumps(asdict(report)) + "\n" for report in manifest))


def load_manifest(directory: Path) -> list[FileReport]:
    """Return the manifest beside kept texts."""
    with _opened(directory) as file:
        return [FileReport(**untrusted_json.parse_object(line)) for line in file]


def digest(directory: Path) -> str:
    """Return the hash of the manifest beside kept texts, which has the hash of every file."""
    with _opened(directory) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(directory: Path) -> Iterator[BufferedReader]:
    path = directory / MANIFEST
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: the manifest of kept documents cannot be read: {error}") from error


def summary(manifest: Iterable[FileReport]) -> str:
    """Return the manifest's counts as one line of the log."""
    rows = list(manifest)
    read = [row for row in rows if row.status == "read"]
    characters = sum(row.characters for row in read)
    tokens = sum(row.tokens or 0 for row in read)
    twins = sum(row.near_duplicate_of is not None for row in rows)
    nearly = f", {counted(twins, 'near-duplicate')}" if twins else ""
    return (
        f"  documents    {sum(row.documents for row in read):,} from {counted(len(read), 'file')}, "
        f"{len(rows) - len(read):,} skipped{nearly}; {characters:,} characters, {tokens:,} tokens"
    )


def manifest_rows(manifest: Iterable[FileReport]) -> list[dict[str, object]]:
    """Return the manifest as rows of the database."""
    rows = []
    for report in manifest:
        row = asdict(report)
        rows.append({name: row[name] for name in COLUMNS} | {"reason": report.remark})
    return rows
