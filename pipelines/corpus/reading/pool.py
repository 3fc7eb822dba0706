"""Sends files to limited processes (worker.py) and holds what they answer until it is their turn.

A process that crashes, hangs or talks without end is killed; its file is skipped with that as the reason,
and the next file gets a new process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from pipelines.corpus.reading import worker
from pipelines.corpus.reading.formats import MIB, Format, Limits
from pipelines.corpus.reading.plain import Facts, Source

ROOT = Path(worker.__file__).parents[3]  # where `pipelines` lies, whatever hook found it
HELD = 2**20  # bytes of an answer kept in memory; what comes after them waits on the disk
BY_THE_CLOCK = 5  # times a file's processor time: a busy machine must not decide what is read
PATIENCE = 0.3  # seconds of work before one more process: starting one costs as much as a hundred short files
FILES_EACH = 1000  # files after which a process is replaced: leaks do not add up
TOGETHER = 2**18  # bytes of files that go to a process in one message


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


@dataclass(frozen=True)
class _Job:
    handle: int
    format: Format
    packed: bool
    size: int
    answer: Future[Outcome] = field(default_factory=Future)


class Pool:
    """Up to limits.workers processes: the first when a file needs one, others when there is work for more."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = limits.workers or min(4, os.cpu_count() or 1)
        self._threads = ThreadPoolExecutor(self._most)
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._all: set[_Worker] = set()
        self._waiting: deque[_Job] = deque()
        self._lock, self._started = threading.Lock(), -math.inf
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

    def submit(self, handle: int, format: Format, packed: bool, size: int) -> Future[Outcome]:
        """The handle stays the caller's, to be closed when the answer is there."""
        job = _Job(handle, format, packed, size)
        self._waiting.append(job)
        self._threads.submit(self._work)
        return job.answer

    def _work(self) -> None:
        """Takes some of the waiting files to a process; what a broken one leaves goes to the next."""
        jobs = self._batch()
        try:
            while jobs and not self._closed:
                self._served(jobs)
        except BaseException as error:
            for job in jobs:
                job.answer.set_exception(error)
            raise

    def _batch(self) -> deque[_Job]:
        """Short files go together, as a message each costs more than they do; others alone."""
        found: deque[_Job] = deque()
        with self._lock:
            most = min(worker.MOST_FILES, max(1, len(self._waiting) // (2 * self._most)))
            while self._waiting and len(found) < most:
                if found and self._waiting[0].size + sum(job.size for job in found) > TOGETHER:
                    break
                found.append(self._waiting.popleft())
        return found

    def _served(self, jobs: deque[_Job]) -> None:
        running = self._take()
        try:
            running.ask(jobs)
            while jobs and running.usable:
                self._answered(running, jobs[0])
                jobs.popleft()
        finally:
            self._give_back(running)

    def _answered(self, running: _Worker, job: _Job) -> None:
        failed, hashed = None, hashlib.sha256()
        try:
            for block in Source(job.handle, job.packed, self.limits).raw():  # while the other process parses
                hashed.update(block)
        except OSError as error:
            failed = error
        outcome = running.answer()
        outcome.facts.sha256 = hashed.hexdigest()
        if failed:
            job.answer.set_exception(failed)
        else:
            job.answer.set_result(outcome)

    def _take(self) -> _Worker:
        """One that is idle; else a new one, unless the newest has only just begun."""
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
        if running.fresh and running.usable and not self._closed:
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
            # Without `site`, whose hooks take as long to load as everything else: all places are handed over.
            command = [sys.executable, "-S", "-m", worker.__name__]
            command += [str(theirs.fileno()), json.dumps(asdict(limits))]
            places = os.pathsep.join([str(ROOT), *(place or str(Path.cwd()) for place in sys.path)])
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": places},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    @property
    def fresh(self) -> bool:
        return self.served < FILES_EACH

    def ask(self, jobs: Collection[_Job]) -> None:
        """A message for several files; they are answered one by one, in this order."""
        rows = [{"format": job.format.name, "packed": job.packed} for job in jobs]
        with suppress(OSError):  # it is gone: then no answer comes either
            socket.send_fds(self._socket, [json.dumps(rows).encode()], [job.handle for job in jobs])

    def answer(self) -> Outcome:
        outcome = Outcome()
        self.served += 1
        self._deadline = time.monotonic() + BY_THE_CLOCK * self.limits.seconds_per_file
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
