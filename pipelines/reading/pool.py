"""Sends files to limited processes (worker.py) and holds what they answer until it is their turn.

A process that crashes, hangs or talks without end is killed; its file is skipped with that as the reason,
and the next file gets a new process.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from pipelines.reading import worker
from pipelines.reading.formats import MIB, Format, Limits
from pipelines.reading.plain import Facts, Source

HELD = 2**20  # bytes of an answer kept in memory; what comes after them waits on the disk
BY_THE_CLOCK = 5  # times a file's processor time: a busy machine must not decide what is read
FILES_EACH = 1000  # files that a process reads before it is replaced: leaks do not add up


@dataclass
class Outcome:
    """What became of a file: its text, or why there is none."""

    facts: Facts = field(default_factory=Facts)
    reason: str | None = None
    held: list[bytes] = field(default_factory=list)
    size: int = 0
    rest: IO[bytes] | None = None

    def add(self, text: bytes) -> None:
        self.size += len(text)
        if self.size <= HELD:
            self.held.append(text)
            return
        if self.rest is None:
            self.rest = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `parts` or `drop`
        self.rest.write(len(text).to_bytes(4, "big") + text)

    def parts(self) -> Iterator[str]:
        yield from (text.decode("utf-8") for text in self.held)
        if self.rest is not None:
            self.rest.seek(0)
            with self.rest as file:
                while size := file.read(4):
                    yield file.read(int.from_bytes(size, "big")).decode("utf-8")

    def refused(self, reason: str) -> Outcome:
        """Without text, for a reason."""
        if self.rest is not None:
            self.rest.close()
        return Outcome(reason=reason)


class Pool:
    """As many processes as limits.workers; they start when the first file needs one."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._threads = ThreadPoolExecutor(limits.workers or min(4, os.cpu_count() or 1))
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._closed = False

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        for running in list(self._all):
            running.end()
        self._threads.shutdown(cancel_futures=True)
        for running in list(self._all):
            running.end()

    def submit(self, handle: int, format: Format, packed: bool) -> Future[Outcome]:
        """The handle stays the caller's, to be closed when the answer is there."""
        return self._threads.submit(self._read, handle, format, packed)

    def _read(self, handle: int, format: Format, packed: bool) -> Outcome:
        running = self._take()
        try:
            running.ask(handle, format, packed)
            hashed = hashlib.sha256()
            for block in Source(handle, packed, self.limits).raw():  # while the other process parses
                hashed.update(block)
            outcome = running.answer()
        except OSError:
            running.usable = False  # its answer would be taken for the next file's
            raise
        finally:
            self._give_back(running)
        outcome.facts.sha256 = hashed.hexdigest()
        return outcome

    def _take(self) -> _Worker:
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        running = _Worker(self.limits)
        self._all.add(running)
        return running

    def _give_back(self, running: _Worker) -> None:
        if running.usable and not self._closed:
            self._idle.put(running)
        else:
            running.end()
            self._all.discard(running)


class _Worker:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.served = 0
        self.usable = True
        self._heard_of = bytearray()  # of an answer, and not taken yet
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", worker.__name__, str(theirs.fileno()), str(limits.memory_mib)]
            places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": places},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def ask(self, handle: int, format: Format, packed: bool) -> None:
        self.served += 1
        self.usable = self.served < FILES_EACH
        job = {"format": format.name, "packed": packed, "limits": asdict(self.limits)}
        self._deadline = time.monotonic() + BY_THE_CLOCK * self.limits.seconds_per_file
        with suppress(OSError):  # it is gone: then no answer comes either
            socket.send_fds(self._socket, [json.dumps(job).encode()], [handle])

    def answer(self) -> Outcome:
        outcome = Outcome()
        try:
            return self._heard(outcome)
        except TimeoutError:
            return self._failed(outcome, f"took longer than {self.limits.seconds_per_file} s")
        except (OSError, EOFError):
            return self._failed(outcome, None)

    def _heard(self, outcome: Outcome) -> Outcome:
        largest = self.limits.largest_file_mib
        while True:
            kind, length = worker.HEADER.unpack(self._receive(worker.HEADER.size))
            if outcome.size + length > largest * MIB:
                return self._failed(outcome, f"gives more than {largest} MiB of text")
            payload = self._receive(length)
            if kind == worker.TEXT:
                outcome.add(payload)
            elif kind == worker.DONE:
                outcome.facts = Facts(**json.loads(payload))
                return outcome
            else:
                self.usable = self.usable and kind == worker.REFUSED
                return outcome.refused(json.loads(payload))

    def _receive(self, size: int) -> bytes:
        while len(self._heard_of) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            part = self._socket.recv(2**18)
            if not part:
                raise EOFError
            self._heard_of += part
        found = bytes(self._heard_of[:size])
        del self._heard_of[:size]
        return found

    def _failed(self, outcome: Outcome, reason: str | None) -> Outcome:
        """The process is of no more use; without a reason, its end tells one."""
        self.usable = False
        code = self._wait() if reason is None else None
        self.end()
        return outcome.refused(reason or self._ended_by(code))

    def _wait(self) -> int | None:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def _ended_by(self, code: int | None) -> str:
        if code == -signal.SIGXCPU:
            return f"took longer than {self.limits.seconds_per_file} s"
        name = signal.Signals(-code).name if code and code < 0 else f"exit {code}"
        return f"its parser broke down ({name}): damaged, hostile, or more than {self.limits.memory_mib} MiB"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()

