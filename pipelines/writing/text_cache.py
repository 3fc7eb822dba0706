"""Append-only cache of written texts, keyed by the hash of writer and request; intact after a kill."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pipelines.writing.protocol import REFUSED, TOO_LONG, Text, Writer
from recovery.errors import InputError, RecoverError
from recovery.storage.atomic_dirs import storage_errors

if TYPE_CHECKING:
    from collections.abc import Callable


GOES_ON = "the same command goes on with the texts that are written"


class Cache:
    """One file of {"key", "text"} lines, with "flaw" where a text has one.

    An incomplete last line is cut off before the next write. A damaged line is passed over: it costs its own
    text alone. Several processes may write to one file: each adds behind what the others wrote.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, Text] = {}
        self.answered = ""  # a request here whose text says something
        self.unanswered = 0  # texts one after the other that say nothing
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
                self.texts[key] = Text(said, row.get("flaw"))
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
    row = {"key": key, "text": text.said}
    if text.flaw:
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
    requested again as a whole, so that the same texts are drawn. Ends where the first texts say nothing, and
    where an endpoint answers nothing, or nothing any more."""
    keys = [key_of(writer.name, request) for request in requests]
    wanted = dict(zip(keys, requests, strict=True))
    try:
        found = _found(cache, writer, wanted, on_progress or (lambda done, total: None))
    except KeyboardInterrupt as error:
        error.add_note(GOES_ON)
        raise
    return [found[key] for key in keys]


def _found(
    cache: Cache, writer: Writer, wanted: dict[str, str], show: Callable[[int, int], None]
) -> dict[str, Text]:
    """Return the writer's text for each request by its key."""
    names = list(wanted)
    size = writer.at_once if writer.together else max(1, len(names))
    found: dict[str, Text] = {}
    for start in range(0, len(names), size):
        batch = names[start : start + size]
        found |= _read_back(cache, batch, wanted)
        missing = [key for key in batch if key not in found or not _is_kept(found[key], writer)]
        asked = batch if missing and writer.together else missing
        done = start + len(batch) - len(asked)
        show(done, len(names))
        for place, text in writer.write([wanted[key] for key in asked]) if asked else ():
            done += 1
            found[asked[place]] = text
            if _is_kept(text, writer):
                cache.add([(asked[place], text)])
            other = wanted[names[-1]] if done < len(names) else None
            _require_answers(cache, writer, wanted[asked[place]], text, other)
            show(done, len(names))
    return found


def _read_back(cache: Cache, batch: Sequence[str], wanted: Mapping[str, str]) -> dict[str, Text]:
    """Return the texts that are there; none of a first batch that ended the command, as it says nothing: it
    would end every later one too, whatever was mended in between."""
    there = {key: cache.texts[key] for key in batch if key in cache.texts}
    answered = (wanted[key] for key, text in there.items() if text.says_something)
    cache.answered = cache.answered or next(answered, "")
    return there if cache.answered else {}


def _is_kept(text: Text, writer: Writer) -> bool:
    """Return whether a text is final: an endpoint that says nothing may say something another time. Where
    texts depend on each other, a whole batch would be requested again for one."""
    return writer.together or text.says_something


def _require_answers(cache: Cache, writer: Writer, request: str, text: Text, other: str | None) -> None:
    """End where nothing is answered: thousands more would not be. Until all are done `other` is the last.

    What is refused may be one document, which a content filter refuses: whether another request is answered
    is asked. What is too long says nothing of the writer."""
    if text.flaw == TOO_LONG and (other or not cache.unanswered):
        return
    if text.says_something:
        cache.answered, cache.unanswered = cache.answered or request, 0
        return
    cache.unanswered += 1
    if other and cache.unanswered % writer.at_once:
        return
    if other and text.flaw == REFUSED:
        again = cache.answered or other
        answers = [answer for _, answer in writer.write([again]) if answer.says_something]
        cache.answered = again if answers else ""
    if not cache.answered and text.flaw == REFUSED:
        raise RecoverError(text.reason)
    if not cache.answered:
        raise InputError(
            "the writer's answers hold only thinking or nothing: give a larger --max-new-tokens, such as "
            "2048, or another --writer"
        )
