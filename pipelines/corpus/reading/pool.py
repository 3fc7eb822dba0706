"""Send files to limited processes (worker.py) and stream their answers.

A process that crashes, hangs or gives too much is killed: its file is skipped with that as the reason, and
the next file gets a new process. Answers are bytes in frames that are checked; nothing in them is executed.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.corpus.reading import worker
from pipelines.corpus.reading.formats import MIB, Format, Limits, Unreadable
from pipelines.corpus.reading.plain import PIECE, FileFacts, Source, TextPiece
from recovery.import_places import import_places
from recovery.printable import one_line
from recovery.usable_cpus import usable_cpus

# -I: neither the current folder nor PYTHONPATH is searched; -S: no site hooks, as slow as all the rest.
START = (
    "import json, sys; descriptor, limits, places = map(json.loads, sys.argv[1:]); sys.path += places; "
    f"from {worker.__name__} import serve; serve(descriptor, limits)"
)
# Of the environment: what starting Python may need, and no keys.
KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
LONGEST_FRAME = 4 * PIECE  # bytes
LONGEST_REASON = 300  # characters
HELD_BLOCKS = 4  # of an answer, before its turn; then its process waits
BY_THE_CLOCK = 5  # times the limit on processor time: a busy machine must not decide what is read
PATIENCE = 0.3  # seconds of work before one more process: starting one costs as much as a hundred short files
FILES_EACH = 1000  # files after which a process is replaced, so that leaks do not add up
TOGETHER = 2**18  # bytes of files that go to a process in one request


class FileText:
    """A file's text as blocks of pieces, read while its process still parses."""

    def __init__(self, closed: threading.Event) -> None:
        self.facts = FileFacts()
        self._closed = closed
        self._blocks: queue.Queue[list[TextPiece] | BaseException | None] = queue.Queue(HELD_BLOCKS)

    def put(self, block: list[TextPiece] | BaseException | None) -> None:
        """Add a block, a final error, or None for the end; wait while HELD_BLOCKS are unread."""
        while not self._closed.is_set():
            with suppress(queue.Full):
                self._blocks.put(block, timeout=0.2)
                return

    def pieces(self) -> Iterator[TextPiece]:
        """Yield the text; the facts are complete afterwards."""
        while (block := self._blocks.get()) is not None:
            if isinstance(block, BaseException):
                raise block
            yield from block


@dataclass(frozen=True)
class _Job:
    handle: int
    format: Format
    packed: bool
    size: int
    context: str
    answer: FileText


class Pool:
    """Up to limits.workers processes: the first is started with the first file, others when there is work.

    Answers must be read in the order of their submission.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = limits.workers or min(4, usable_cpus())
        self._threads = ThreadPoolExecutor(self._most)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._waiting: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._started = -math.inf
        self._closed = threading.Event()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for running in list(self._all):
            running.end()
        self._threads.shutdown(cancel_futures=True)
        for running in list(self._all):
            running.end()

    def submit(self, handle: int, format: Format, packed: bool, size: int, context: str = "") -> FileText:
        """Queue an open file; close the handle after its answer was read or the pool was closed.

        `context` is what its parser needs to know of other files.
        """
        job = _Job(handle, format, packed, size, context, FileText(self._closed))
        self._waiting.append(job)
        self._threads.submit(self._work)
        return job.answer

    def _work(self) -> None:
        """Serve some of the waiting files; those behind one that breaks its process go to another."""
        jobs = self._batch()
        try:
            while jobs and not self._closed.is_set():
                self._serve(jobs)
        except BaseException as error:
            for job in jobs:
                job.answer.put(error)
            raise

    def _batch(self) -> deque[_Job]:
        """Take short files together, as a request for each costs more than they do, and others alone."""
        taken: deque[_Job] = deque()
        size = 0
        with self._lock:
            most = min(worker.MOST_FILES, max(1, len(self._waiting) // (2 * self._most)))
            while self._waiting and len(taken) < most:
                size += self._waiting[0].size + len(self._waiting[0].context)
                if taken and size > TOGETHER:
                    break
                taken.append(self._waiting.popleft())
        return taken

    def _serve(self, jobs: deque[_Job]) -> None:
        running = self._take()
        try:
            running.request(jobs)
            while jobs and running.usable:
                self._answer(running, jobs[0])
                jobs.popleft()
        finally:
            self._give_back(running)

    def _answer(self, running: _Worker, job: _Job) -> None:
        answer = job.answer
        failed = None
        try:
            source = Source(job.handle, job.packed, self.limits)
            answer.facts.sha256 = source.sha256()  # while the other process parses
        except OSError as error:
            failed = error
        try:
            for block in running.blocks(job.format, answer.facts):
                if failed is None:
                    answer.put(block)
            answer.put(failed)
        except Unreadable as error:
            answer.put(failed or error)

    def _take(self) -> _Worker:
        """Return an idle process, else a new one unless the newest has only just been started."""
        patience = 0.0
        while True:
            with suppress(queue.Empty):
                return self._idle.get(timeout=patience) if patience > 0 else self._idle.get_nowait()
            with self._lock:
                patience = self._started + PATIENCE - time.monotonic()
                if patience <= 0 or not self._all:
                    return self._start()

    def _start(self) -> _Worker:
        running = _Worker(self.limits)
        self._all.add(running)
        self._started = time.monotonic()
        return running

    def _give_back(self, running: _Worker) -> None:
        if running.fresh and running.usable and not self._closed.is_set():
            self._idle.put(running)
        else:
            running.end()
            self._all.discard(running)


class _Worker:
    """A limited process and the socket to it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.served = 0
        self.usable = True
        self._received = bytearray()
        self._patience = 0.0  # seconds that remain of waiting for the current file
        self._socket, theirs = socket.socketpair()
        with theirs:
            options = [theirs.fileno(), asdict(limits), import_places()]
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", START, *map(json.dumps, options)],
                pass_fds=[theirs.fileno()],
                env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    @property
    def fresh(self) -> bool:
        return self.served < FILES_EACH

    def request(self, jobs: Collection[_Job]) -> None:
        """Send several files; their texts come back one by one, in this order."""
        rows = [{"format": job.format.name, "packed": job.packed, "context": job.context} for job in jobs]
        said = json.dumps(rows).encode()
        header = worker.HEADER_OF_REQUEST.pack(len(said))
        self._socket.settimeout(self._whole_patience)
        try:
            socket.send_fds(self._socket, [header], [job.handle for job in jobs])
            self._socket.sendall(said)
        except OSError:  # it is gone or stands still: reading the answer says how it ended
            self.process.kill()

    def blocks(self, format: Format, facts: FileFacts) -> Iterator[list[TextPiece]]:
        """Yield the text of the next file and fill in its facts, or raise Unreadable with the reason."""
        self.served += 1
        try:
            yield from self._blocks(format, facts)
        except TimeoutError:
            raise self._failure(f"took longer than {self.limits.seconds_per_file} s") from None
        except (OSError, EOFError):
            raise self._failure(self._how_it_ended()) from None
        except (ValueError, TypeError, KeyError):
            raise self._failure("its parser broke down: it gives what is no answer") from None

    def _blocks(self, format: Format, facts: FileFacts) -> Iterator[list[TextPiece]]:
        largest = self.limits.largest_mib(format)
        block: list[TextPiece] = []
        size = paced = 0
        self._patience = self._whole_patience
        while True:
            kind, payload = self._frame()
            if kind not in (worker.PART, worker.LAST):
                break
            cost = worker.HEADER.size + len(payload)
            size, paced = size + cost, paced + cost
            if size > largest * MIB:
                raise self._failure(f"gives more than {largest} MiB of text")
            if paced > worker.PACE:
                paced = 0
                self._patience = self._whole_patience
            block.append(TextPiece(payload.decode(), goes_on=kind == worker.PART))
            if not self._has_frame():
                yield block
                block = []
        yield block
        self._end_of_answer(kind, json.loads(payload), facts)

    def _end_of_answer(self, kind: bytes, value: Any, facts: FileFacts) -> None:
        if kind == worker.DONE:
            facts.encoding = value["encoding"] and _quoted(value["encoding"])
            facts.note = value["note"] and _quoted(value["note"])
            return
        if kind not in (worker.REFUSED, worker.BROKEN) or not isinstance(value, str):
            raise ValueError("a frame that no worker sends")
        self.usable = self.usable and kind == worker.REFUSED
        raise Unreadable(_quoted(value))

    @property
    def _whole_patience(self) -> float:
        return float(BY_THE_CLOCK * self.limits.seconds_per_file)

    def _frame(self) -> tuple[bytes, bytes]:
        self._receive(worker.HEADER.size)
        kind, length = worker.HEADER.unpack_from(self._received)
        if length > LONGEST_FRAME:
            raise ValueError("a frame that no worker sends")
        end = worker.HEADER.size + length
        self._receive(end)
        payload = bytes(self._received[worker.HEADER.size : end])
        del self._received[:end]
        return kind, payload

    def _has_frame(self) -> bool:
        if len(self._received) < worker.HEADER.size:
            return False
        _, length = worker.HEADER.unpack_from(self._received)
        return len(self._received) >= worker.HEADER.size + int(length)

    def _receive(self, size: int) -> None:
        """Wait until so many bytes are there; only waiting counts, not what the reader does in between."""
        while len(self._received) < size:
            begun = time.monotonic()
            self._socket.settimeout(max(0.001, self._patience))
            part = self._socket.recv(2**18)
            self._patience -= time.monotonic() - begun
            if not part:
                raise EOFError
            self._received += part

    def _failure(self, reason: str) -> Unreadable:
        self.usable = False
        self.end()
        return Unreadable(reason)

    def _how_it_ended(self) -> str:
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(timeout=5)
        if code == -signal.SIGXCPU:
            return f"took longer than {self.limits.seconds_per_file} s"
        name = signal.Signals(-code).name if code and code < 0 else f"exit {code}"
        return f"its parser broke down ({name}): damaged, hostile, or more than {self.limits.memory_mib} MiB"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._socket.close()


def _quoted(value: Any) -> str:
    """Return a process's words as one printable line: they may repeat what the file says."""
    return one_line(value, LONGEST_REASON)
