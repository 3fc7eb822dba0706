"""Run an engine in a worker thread with a heartbeat deadline, to detect that it died or hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from recovery.errors import EngineLost, RecoverError

Answer = TypeVar("Answer")


class EngineThread:
    """One worker thread that runs an engine's calls; a caller gets EngineLost when a call fails or hangs.

    The thread is a daemon: a hung call must not keep the process from exiting.
    """

    def __init__(self) -> None:
        self.hung = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.beat()
        threading.Thread(target=self._work, daemon=True, name="engine").start()

    def beat(self) -> None:
        """Record a heartbeat, which restarts the deadline of the current call."""
        self._alive = time.monotonic()

    def call(self, work: Callable[[], Answer], seconds: float) -> Answer:
        """Run `work` in the thread and return its result.

        Raise EngineLost if it fails, or if `seconds` pass without a heartbeat.
        """
        if self.hung:
            raise EngineLost("it still hangs")
        done = threading.Event()
        found: list[Any] = []

        def job() -> None:
            try:
                found.append((work(), None))
            except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
                found.append((None, error))
            done.set()

        self.beat()
        self._jobs.put(job)
        while not done.wait(0.05 if seconds < 5 else 1.0):
            if time.monotonic() - self._alive > seconds:
                self.hung = True
                raise EngineLost(f"no sign of life for {seconds:g} s")
        answer, error = found[0]
        if isinstance(error, RecoverError):
            raise error
        if error is not None:
            reason = " ".join(str(error).split())[:300] or "no message"
            raise EngineLost(f"it failed ({type(error).__name__}: {reason})") from error
        return answer

    def end(self) -> None:
        """Stop the thread after the queued calls."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
