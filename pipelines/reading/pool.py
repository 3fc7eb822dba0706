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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pipelines.reading import worker
from pipelines.reading.formats import MIB, Format, Limits
from pipelines.reading.plain import Facts, Source

HELD = 2**20  # bytes of an answer kept in memory; the rest waits on the disk
BY_THE_CLOCK = 5  # times a file's processor time: a busy machine must not decide what is read
FILES_EACH = 1000  # files that a process reads before it is replaced: leaks do not add up


@dataclass
class Outcome:
    """What became of a file: its text, or why there is none."""

    facts: Facts
    text: IO[bytes] | None = None
    reason: str | None = None

    def parts(self) -> Iterator[str]:
        if self.text is not None:
            self.text.seek(0)
            with self.text:
                while size := self.text.read(4):
                    yield self.text.read(int.from_bytes(size, "big")).decode("utf-8")


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
        source = Source(handle, packed, self.limits)
        hashed = hashlib.sha256()
        for block in source.raw():
            hashed.update(block)
        try:
            running = self._idle.get_nowait()
        except queue.Empty:
            running = _Worker(self.limits)
            self._all.add(running)
        outcome = running.read(handle, format, packed)
        outcome.facts.sha256 = hashed.hexdigest()
        if running.usable and not self._closed:
            self._idle.put(running)
        else:
            running.end()
            self._all.discard(running)
        return outcome


class _Worker:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.served = 0
        self.usable = True
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", worker.__name__, str(theirs.fileno()), str(limits.memory_mib)]
            places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": places},
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def read(self, handle: int, format: Format, packed: bool) -> Outcome:
        self.served += 1
        self.usable = self.served < FILES_EACH
        text = tempfile.SpooledTemporaryFile(max_size=HELD)  # noqa: SIM115 - it outlives this call
        job = {"format": format.name, "packed": packed, "limits": asdict(self.limits)}
        try:
            self._deadline = time.monotonic() + BY_THE_CLOCK * self.limits.seconds_per_file
            socket.send_fds(self._socket, [json.dumps(job).encode()], [handle])
            outcome = self._answer(text)
        except TimeoutError:
            outcome = self._failed(f"took longer than {self.limits.seconds_per_file} s")
        except (OSError, EOFError):
            outcome = self._failed(None)
        if outcome.text is None:
            text.close()
        return outcome

    def _answer(self, text: IO[bytes]) -> Outcome:
        size = 0
        while True:
            kind, length = worker.HEADER.unpack(self._receive(worker.HEADER.size))
            payload = self._receive(length)
            if kind == worker.TEXT:
                size += length
                if size > self.limits.largest_file_mib * MIB:
                    return self._failed(f"gives more than {self.limits.largest_file_mib} MiB of text")
                text.write(length.to_bytes(4, "big") + payload)
            elif kind == worker.DONE:
                return Outcome(Facts(**json.loads(payload)), text)
            else:
                self.usable = self.usable and kind == worker.REFUSED
                return Outcome(Facts(), reason=json.loads(payload))

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            part = self._socket.recv(min(size - len(parts), 2**18))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _failed(self, reason: str | None) -> Outcome:
        """The process is of no more use; without a reason, its end tells one."""
        self.usable = False
        code = self._wait() if reason is None else None
        self.end()
        return Outcome(Facts(), reason=reason or self._ended_by(code))

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

