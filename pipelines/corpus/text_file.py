"""Keep the texts of a folder of documents in one file, with the manifest beside it, and read them again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.corpus.documents import Progress, read_folder, require_any_read
from pipelines.corpus.manifest import MANIFEST, FileReport, write_manifest
from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.plain import TextPiece
from recovery import untrusted_json
from recovery.errors import InputError
from recovery.storage import atomic_dirs


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
        require_any_read(directory, manifest)
        write_manifest(target.parent / MANIFEST, manifest)
    return manifest


def _line(piece: TextPiece) -> bytes:
    """Return a text as a line of JSON, in brackets where its document goes on in the next line."""
    value = [piece.text] if piece.goes_on else piece.text
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def rewrite(path: Path, changed: Callable[[int, str], str]) -> None:
    """Replace each kept text by what a function makes of it and of its number, all in one step."""
    with atomic_dirs.storage_errors(path.parent), atomic_dirs.whole_file(path) as texts:
        for number, piece in enumerate(load_pieces(path)):
            texts.write(_line(replace(piece, text=changed(number, piece.text))))


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
