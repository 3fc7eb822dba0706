"""The hashes and the sizes of files: a damaged file is named, and equal ones are known. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from recovery.errors import DamagedCheckpoint
from recovery.usable_cpus import usable_cpus

FileTable = dict[str, dict[str, Any]]


def file_table(directory: Path, names: Iterable[str] | None = None) -> FileTable:
    """Return {relative path: size and sha256} of the files under `directory` (or of those named)."""
    chosen = sorted(names if names is not None else relative_files(directory))
    with ThreadPoolExecutor(workers()) as pool:
        entries = pool.map(lambda name: _entry(directory / name), chosen)
        return dict(zip(chosen, entries, strict=True))


def relative_files(directory: Path) -> list[str]:
    """Return every file under `directory`, as sorted relative paths with forward slashes."""
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())


def bytes_of(directory: Path) -> int:
    """Return the bytes of a folder's files; 0 where it is not there."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def check_files(label: str, directory: Path, table: FileTable) -> None:
    """Raise DamagedCheckpoint, naming the file, unless each file has the size and bytes of `table`."""
    for name, entry in table.items():
        path = directory / name
        if not path.is_file():
            raise DamagedCheckpoint(f"{label}: {name} is missing from {directory}: use another one")
        if path.stat().st_size != entry["size"]:
            raise DamagedCheckpoint(f"{label}: {name} has the wrong size: it is damaged, use another one")
    try:
        found = file_table(directory, table)
    except OSError as error:
        raise DamagedCheckpoint(f"{label}: {error.filename} is unreadable: use another one") from error
    for name, entry in found.items():
        if entry["sha256"] != table[name]["sha256"]:
            raise DamagedCheckpoint(f"{label}: {name} has changed bytes: it is damaged, use another one")


def digest(value: Any) -> str:
    """Return the sha256 of a JSON value in canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def workers() -> int:
    """Return the number of threads for hashing, which runs outside Python's lock."""
    return min(8, usable_cpus())
