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

from pipelines.writing.protocol import CUT_OFF, REFUSED, TOO_LONG, Text, Writer
from recovery.errors import InputError, RecoverError
from recovery.storage.atomic_dirs import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable


MOST_REFUSED = 3  # batches in a row
GOES_ON = "the same command goes on with the texts that are written"


class Cache:
    """One file of {"key", "text"} lines, with "ended": false where a text was cut off, and with "flaw" for
    another reason.

    An incomplete last line is cut off before the next write. A damaged line is passed over: it costs its own
    text alone. Several processes may write to one file: each adds behind what the others wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, Text] = {}
        self.answered = False  # whether any text that was asked for here says something
        self.refused = 0  # batches one after the other of which an endpoint refused every request
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
                key, said = row["key"], row["text"]
                self.texts[key] = Text(said, row.get("flaw", None if row.get("ended", True) else CUT_OFF))
            self._whole += len(line)

    def add(self, rows: Iterable[tuple[str, Text]]) -> None:
        """Append rows and flush them to disk."""
        rows = list(rows)
        data = "".join(_line(key, text) for key, text in rows).encode()
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


def _line(key: str, text: Text) -> str:
    row: dict[str, object] = {"key": key, "text": text.said}
    if text.flaw:
        row["ended"] = False
    if text.flaw not in (None, CUT_OFF):
        row["flaw"] = text.flaw
    return json.dumps(row, ensure_ascii=False) + "\n"


def key_of(writer: str, request: str) -> str:
    return hashlib.sha256(f"{writer}\0{request}".encode()).hexdigest()[:24]


def written(
    cache: Cache,
    writer: Writer,
    requests: Sequence[str],
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Text]:
    """Return the writer's text for each request, from the cache where it is there.

    Each text is kept as it comes. Where texts depend on what is requested together, an interrupted batch is
    requested again as a whole, so that the same texts are drawn. Ends where the first batch says nothing, and
    where an endpoint refuses everything."""
    keys = [key_of(writer.name, request) for request in requests]
    wanted = dict(zip(keys, requests, strict=True))
    try:
        found = _found(cache, writer, wanted, on_progress)
    except KeyboardInterrupt as error:
        error.add_note(GOES_ON)
        raise
    return [found[key] for key in keys]


def _found(
    cache: Cache, writer: Writer, wanted: dict[str, str], on_progress: Callable[[int, int], None] | None
) -> dict[str, Text]:
    """Return the writer's text for each request by its key."""
    names = list(wanted)
    found: dict[str, Text] = {}
    for start in range(0, len(names), writer.at_once):
        batch = names[start : start + writer.at_once]
        found |= _read_back(cache, batch)
        missing = [key for key in batch if key not in found or not _is_kept(found[key], writer)]
        asked = batch if missing and writer.together else missing
        if asked:
            for place, text in writer.write([wanted[key] for key in asked]):
                found[asked[place]] = text
                if _is_kept(text, writer):
                    cache.add([(asked[place], text)])
        _require_answers(cache, [found[key] for key in batch], last=start + len(batch) == len(names))
        if on_progress:
            on_progress(start + len(batch), len(names))
    return found


def _read_back(cache: Cache, batch: Sequence[str]) -> dict[str, Text]:
    """Return the texts that are there; none of a first batch that ended the command, as it says nothing: it
    would end every later one too, whatever was mended in between."""
    there = {key: cache.texts[key] for key in batch if key in cache.texts}
    return there if cache.answered or any(text.says_something for text in there.values()) else {}


def _is_kept(text: Text, writer: Writer) -> bool:
    """Return whether a text is final: an endpoint that says nothing may say something another time. Where
    texts depend on each other, a whole batch would be requested again for one."""
    return writer.together or text.says_something


def _require_answers(cache: Cache, batch: Sequence[Text], *, last: bool) -> None:
    """End where none of the texts so far says anything: thousands more would not.

    A batch that is refused may be one document, which a content filter refuses. What is too long says nothing
    of the writer."""
    batch = [text for text in batch if text.flaw != TOO_LONG]
    if not batch:
        return
    refused = all(text.flaw == REFUSED for text in batch)
    cache.refused = cache.refused + 1 if refused else 0
    cache.answered = cache.answered or any(text.says_something for text in batch)
    if cache.refused == MOST_REFUSED or (refused and last and not cache.answered):
        raise RecoverError(batch[0].reason)
    if not refused and not cache.answered:
        raise InputError(
            "the writer's answers hold only thinking or nothing: give a larger --max-new-tokens, such as "
            "2048, or another --writer"
        )
