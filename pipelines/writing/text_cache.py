"""Append-only cache of written texts, keyed by the hash of writer and request; intact after a kill."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from recovery.storage.atomic_dirs import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipelines.writing.writers import Writer


class Cache:
    """One file of {"key", "text"} lines; an incomplete last line is cut off before the next write.

    A damaged line is passed over: it costs its own text alone. Several processes may write to one file: each
    adds behind what the others wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self._whole = 0  # bytes of the lines that were read or written
        if path.exists():
            with path.open("rb") as file:
                self._read_on(file)

    def _read_on(self, file: BinaryIO) -> None:
        file.seek(self._whole)
        for line in file:
            if not line.endswith(b"\n"):
                break
            with suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                self.texts[row["key"]] = row["text"]
            self._whole += len(line)

    def add(self, rows: Iterable[tuple[str, str]]) -> None:
        """Append rows and flush them to disk."""
        rows = list(rows)
        data = "".join(json.dumps({"key": k, "text": t}, ensure_ascii=False) + "\n" for k, t in rows).encode()
        with storage_errors(self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._read_on(file)
                file.truncate(self._whole)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        self._whole += len(data)
        self.texts.update(rows)


def key_of(writer: str, request: str) -> str:
    return hashlib.sha256(f"{writer}\0{request}".encode()).hexdigest()[:24]


def written(
    cache: Cache,
    writer: Writer,
    requests: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Return the writer's text for each request, from the cache where it is there.

    Each text is kept as it comes. Where texts depend on what is requested together, an interrupted batch is
    requested again as a whole, so that the same texts are drawn.
    """
    keys = [key_of(writer.name, request) for request in requests]
    wanted = dict(zip(keys, requests, strict=True))
    names = list(wanted)
    for start in range(0, len(names), writer.at_once):
        batch = names[start : start + writer.at_once]
        missing = [key for key in batch if key not in cache.texts]
        asked = batch if missing and writer.together else missing
        for place, text in writer.write([wanted[key] for key in asked]):
            cache.add([(asked[place], text)])
        if on_progress:
            on_progress(start + len(batch), len(names))
    return [cache.texts[key] for key in keys]
