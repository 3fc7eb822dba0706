"""Parse untrusted files in a process with limits on memory and processor time that cannot change files.

It receives open files over a socket and answers with framed text. A file that breaks it costs only itself.
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
from typing import Any

from pipelines.corpus.reading.epub import read_epub
from pipelines.corpus.reading.formats import MIB, Limits, Unreadable
from pipelines.corpus.reading.html import read_html
from pipelines.corpus.reading.latex import read_latex
from pipelines.corpus.reading.manual import read_manual
from pipelines.corpus.reading.notebook import read_notebook
from pipelines.corpus.reading.office import read_docx, read_pptx
from pipelines.corpus.reading.opendocument import read_opendocument
from pipelines.corpus.reading.pdf import read_pdf
from pipelines.corpus.reading.plain import FileFacts, Source, TextPiece, pieces
from pipelines.corpus.reading.tables import read_csv, read_jsonl
from recovery.landlock import confine

ONE_DOCUMENT: dict[str, Callable[[Source, FileFacts], Iterator[str]]] = {
    "html": read_html,
    "man": read_manual,
    "latex": read_latex,
    "ipynb": read_notebook,
    "pdf": read_pdf,
    "docx": read_docx,
    "pptx": read_pptx,
    "odt": read_opendocument,
    "epub": read_epub,
}
TABLES: dict[str, Callable[[Source, FileFacts], Iterator[TextPiece]]] = {"jsonl": read_jsonl, "csv": read_csv}
HEADER = struct.Struct("!cI")  # kind of the frame and its length in bytes
HEADER_OF_REQUEST = struct.Struct("!I")  # the length of its rows in bytes
PART, LAST, DONE, REFUSED, BROKEN = b"P", b"L", b"D", b"R", b"B"  # PART, LAST: of a document's text
SENT_TOGETHER = 2**18  # bytes
PACE = 64 * MIB  # bytes of text after which the limits on time start again
MOST_FILES = 8  # in one request


def serve(descriptor: int, options: dict[str, Any]) -> None:
    """Answer requests until the other side closes the socket."""
    connection = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers itself
    limits = Limits(**options)
    _limit(limits.memory_mib)
    confine()
    while True:
        request, handles, *_ = socket.recv_fds(connection, HEADER_OF_REQUEST.size, MOST_FILES)
        if not request:
            return
        for job, handle in zip(_jobs(connection, request), handles, strict=True):
            try:
                source = Source(handle, job["packed"], limits, job["context"])
                _answer(_Frames(connection, limits), job["format"], source)
            finally:
                os.close(handle)


def _jobs(connection: socket.socket, header: bytes) -> list[dict[str, Any]]:
    """Return the rows of a request, one a file, behind the header that says their length."""
    (length,) = HEADER_OF_REQUEST.unpack(header)
    rows = b""
    while len(rows) < length:
        part = connection.recv(length - len(rows))
        if not part:
            sys.exit()
        rows += part
    return list(json.loads(rows))


def _limit(memory_mib: int) -> None:
    memory = _allowed(resource.RLIMIT_AS, memory_mib * MIB)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_seconds(seconds: int) -> None:
    """Limit processor time from now on; unlike the parent's clock it holds when the parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    wanted = math.ceil(used.ru_utime + used.ru_stime) + seconds
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (_allowed(resource.RLIMIT_CPU, wanted), hard))


def _allowed(limit: int, wanted: int) -> int:
    """Return what is wanted, or this machine's lower hard limit, which only a privileged process raises."""
    hard = resource.getrlimit(limit)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _answer(frames: _Frames, format: str, source: Source) -> None:
    """Send a file's text, then its facts or the reason for skipping it."""
    facts = FileFacts()
    try:
        for piece in _read(format, source, facts):
            frames.add(PART if piece.goes_on else LAST, piece.text.encode("utf-8", "replace"))
        frames.end(DONE, {"encoding": facts.encoding, "note": facts.note})
    except Unreadable as error:
        frames.end(REFUSED, str(error))
    except RecursionError:
        frames.end(REFUSED, "nested too deeply")
    except MemoryError:
        frames.end(BROKEN, "needs more memory than one file may take")
    except BrokenPipeError:
        sys.exit()
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        frames.end(BROKEN, f"cannot be parsed: {type(error).__name__} {error}")


def _read(format: str, source: Source, facts: FileFacts) -> Iterator[TextPiece]:
    if format in TABLES:
        return TABLES[format](source, facts)
    return pieces(ONE_DOCUMENT[format](source, facts))


class _Frames:
    """The answer to one file: frames are sent together, as each wake-up of the parent costs a short page."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection = connection
        self._seconds = limits.seconds_per_file
        self._waiting = bytearray()
        self._text = 0  # bytes since the limit on time was set
        _limit_seconds(self._seconds)

    def add(self, kind: bytes, text: bytes) -> None:
        self._waiting += HEADER.pack(kind, len(text)) + text
        if len(self._waiting) > SENT_TOGETHER:
            self._send()
        self._text += len(text)
        if self._text > PACE:
            self._text = 0
            _limit_seconds(self._seconds)

    def end(self, kind: bytes, value: Any) -> None:
        payload = json.dumps(value).encode()
        self._waiting += HEADER.pack(kind, len(payload)) + payload
        self._send()

    def _send(self) -> None:
        self._connection.sendall(self._waiting)
        self._waiting.clear()
