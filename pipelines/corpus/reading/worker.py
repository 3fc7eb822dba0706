"""The process that parses one strange file after another: little memory, little time, no writing.

It is given open files over a socket and answers with text. Whatever a file does to it costs that file alone.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from pipelines.corpus.reading.formats import MIB, Limits, Unreadable
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.office import read_docx, read_pptx
from pipelines.corpus.reading.pdf import read_pdf
from pipelines.corpus.reading.plain import Facts, Source

READERS: dict[str, Callable[[Source, Facts], Iterator[str]]] = {
    "html": read_html,
    "pdf": read_pdf,
    "docx": read_docx,
    "pptx": read_pptx,
}
HEADER = struct.Struct("!cI")  # kind of the frame and its length
TEXT, DONE, REFUSED, BROKEN = b"T", b"D", b"R", b"B"
FRAME = 2**18  # characters
MOST_FILES = 8  # in one message


def main() -> None:
    """Serves until the other side is gone."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    limits = Limits(**json.loads(sys.argv[2]))
    _limit(limits.memory_mib)
    while True:
        request, handles, *_ = socket.recv_fds(connection, 4096, MOST_FILES)
        if not request:
            return
        for job, handle in zip(json.loads(request), handles, strict=True):
            _limit_seconds(limits.seconds_per_file)
            try:
                _serve(connection, Source(handle, job["packed"], limits), READERS[job["format"]])
            finally:
                os.close(handle)


def _limit(memory_mib: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * MIB, memory_mib * MIB))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_seconds(seconds: int) -> None:
    """A file's processor time; the parent watches the clock, this one holds though the parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    allowed = math.ceil(used.ru_utime + used.ru_stime) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (allowed, resource.RLIM_INFINITY))


def _serve(connection: socket.socket, source: Source, read: Callable[[Source, Facts], Iterator[str]]) -> None:
    facts, answer = Facts(), _Answer(connection)
    try:
        for text in read(source, facts):
            for start in range(0, len(text), FRAME):
                answer.add(TEXT, text[start : start + FRAME].encode("utf-8", "replace"))
        answer.end(DONE, asdict(facts))
    except Unreadable as error:
        answer.end(REFUSED, str(error))
    except RecursionError:
        answer.end(REFUSED, "nested too deeply")
    except MemoryError:
        answer.end(BROKEN, "needs more memory than one file may take")
    except BrokenPipeError:
        sys.exit()
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        reason = " ".join(f"{type(error).__name__} {error}".split())
        answer.end(BROKEN, f"cannot be parsed: {reason[:200]}")


class _Answer:
    """Frames, sent together: each time that the other side is woken costs as much as a short page."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._waiting = connection, bytearray()

    def add(self, kind: bytes, payload: bytes) -> None:
        self._waiting += HEADER.pack(kind, len(payload)) + payload
        if len(self._waiting) > FRAME:
            self._send()

    def end(self, kind: bytes, value: Any) -> None:
        self._waiting += HEADER.pack(kind, len(payload := json.dumps(value).encode())) + payload
        self._send()

    def _send(self) -> None:
        self._connection.sendall(self._waiting)
        self._waiting.clear()


if __name__ == "__main__":
    main()
