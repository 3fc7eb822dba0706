"""A thread in which something lives that may die or hang, and a clock on it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from recovery.errors import EngineLost, RecoverError

Answer = TypeVar("Answer")


class Lane:
    """One thread in which the engine lives; whoever waits for it hears when it died or hangs.

    A daemon: a hung call must not keep the process from ending.
    """

    def __init__(self) -> None:
        self.hung = False
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.beat()
        threading.Thread(target=self._work, daemon=True, name="engine").start()

    def beat(self) -> None:
        self._alive = time.monotonic()

    def call(self, work: Callable[[], Answer], seconds: float) -> Answer:
        """What the work returns; EngineLost when it raises, or shows no sign of life for that long."""
        if self.hung:
            raise EngineLost("it still hangs")
        done = threading.Event()
        found: list[Any] = []

        def job() -> None:
            try:
                found.append((work(), None))
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
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
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
