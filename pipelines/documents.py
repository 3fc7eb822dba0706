"""Reading a folder of documents: every file accounted for, nothing outside the folder read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from recovery.errors import InputError
from recovery.files import storage_errors

TEXT_SUFFIXES = {".md", ".markdown", ".txt", ".text", ".rst"}
LARGEST_FILE = 64 * 2**20


@dataclass(frozen=True)
class FileReport:
    """A manifest row: read, or skipped and why."""

    path: str
    status: str  # "read" | "skipped"
    reason: str | None = None
    sha256: str | None = None
    encoding: str | None = None
    characters: int = 0
    tokens: int | None = None


@dataclass(frozen=True)
class Corpus:
    manifest: tuple[FileReport, ...]
    texts: tuple[str, ...]

    @property
    def characters(self) -> int:
        return sum(len(text) for text in self.texts)


def read_corpus(directory: Path) -> Corpus:
    """Every text file under a folder, in the order of their names; those that begin with a dot are hidden."""
    if not directory.is_dir():
        raise InputError(f"{directory} is not a folder: give --docs a folder of .md and .txt files")
    manifest: list[FileReport] = []
    texts: list[str] = []
    for path in _files(directory):
        report, text = _read(path, directory)
        manifest.append(report)
        if text is not None:
            texts.append(text)
    if not texts:
        skipped = f" ({len(manifest)} skipped: {manifest[0].reason})" if manifest else ""
        raise InputError(f"{directory} holds no readable document{skipped}: add .md or .txt files")
    return Corpus(tuple(manifest), tuple(texts))


def require(directory: Path) -> None:
    """Refuses, before anything is run, what read_corpus would refuse: up to the first readable document."""
    if not directory.is_dir() or all(_read(path, directory)[1] is None for path in _files(directory)):
        read_corpus(directory)


def _files(directory: Path) -> Iterator[Path]:
    """Files, and what cannot be walked into: folders that are links or may not be listed."""
    closed: list[Path] = []
    walk = os.walk(directory, onerror=lambda error: closed.append(Path(error.filename)), followlinks=False)
    for folder, folders, names in walk:
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(names + links):
            if not name.startswith("."):
                yield Path(folder) / name
    yield from closed


def _read(path: Path, root: Path) -> tuple[FileReport, str | None]:
    name = str(path.relative_to(root))
    reason = _unreadable(path, root)
    if reason:
        return FileReport(name, "skipped", reason), None
    try:
        data = path.read_bytes()
    except OSError as error:
        return FileReport(name, "skipped", f"cannot be read: {error.strerror}"), None
    digest = hashlib.sha256(data).hexdigest()
    decoded = _decode(data)
    if decoded is None:
        return FileReport(name, "skipped", "not text in UTF-8 or UTF-16", digest), None
    text, encoding = decoded
    if not text.strip():
        return FileReport(name, "skipped", "empty", digest, encoding), None
    return FileReport(name, "read", None, digest, encoding, len(text)), text


def _unreadable(path: Path, root: Path) -> str | None:
    """Why a file is not even opened. A fifo would block, a link may lead out of the folder."""
    try:
        info = path.lstat()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISLNK(info.st_mode) and not path.resolve().is_relative_to(root.resolve()):
        return "a link that leads out of the folder"
    if stat.S_ISLNK(info.st_mode):
        return "a link to a file of the folder"
    if stat.S_ISDIR(info.st_mode):
        return "a folder that cannot be listed"
    if not stat.S_ISREG(info.st_mode):
        return "not a regular file"
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return f"kind {path.suffix or 'without suffix'} is not read"
    if info.st_size > LARGEST_FILE:
        return f"larger than {LARGEST_FILE // 2**20} MiB"
    return None


def _decode(data: bytes) -> tuple[str, str] | None:
    encodings = ("utf-16",) if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",)
    for encoding in encodings:
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return (text, encoding.removesuffix("-sig")) if "\0" not in text else None
    return None


def save_texts(path: Path, texts: tuple[str, ...]) -> None:
    """Keeps what a cycle was trained on, so that later cycles can replay it though the folder is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with storage_errors(path.parent), partial.open("w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps(text, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def load_texts(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the kept documents of an earlier cycle cannot be read: {error}") from error


def manifest_rows(corpus: Corpus) -> list[dict[str, object]]:
    return [asdict(report) for report in corpus.manifest]
