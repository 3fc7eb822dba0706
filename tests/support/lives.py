"""Processes that end in the middle of their work: killed, or on a disk that fills.

They are forked from a process that has imported everything, so that a life costs milliseconds. What a life
acknowledges it writes to a log after the commit, which outlives it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import full_disk

LONGEST = 300.0  # seconds that a life may take after its disk is full
KILLED = -9


@dataclass(frozen=True)
class Lives:
    """Lives of one kind of work, which write to the same log."""

    log: Path
    preload: tuple[str, ...]
    cold: bool = False  # a life is no fork, but an interpreter of its own that imports everything anew

    def acknowledged(self) -> list[str]:
        """Return the lines that were printed whole."""
        return self.log.read_text().split("\n")[:-1] if self.log.exists() else []

    def killed(self, work: Callable[..., None], *given: Any, after: float) -> int:
        """Let a life work for so many seconds; return its exit code."""
        life = self._life(work, given, None)
        life.join(after)
        life.kill()
        life.join()
        return life.exitcode or 0

    def until_stuck(self, work: Callable[..., None], *given: Any, silence: float) -> int:
        """Let a life work until it ends or acknowledges nothing for so many seconds; return its exit code."""
        life = self._life(work, given, None)
        done = 0
        heard = time.monotonic()
        while life.is_alive() and time.monotonic() - heard < silence:
            life.join(0.05)
            if len(self.acknowledged()) > done:
                done = len(self.acknowledged())
                heard = time.monotonic()
        life.kill()
        life.join()
        return life.exitcode or 0

    def on_a_full_disk(self, work: Callable[..., None], *given: Any, after: float) -> tuple[int, str]:
        """Let a life work on a disk that is full after so many seconds; return its exit code and errors."""
        self.errors.unlink(missing_ok=True)
        life = self._life(work, given, after)
        life.join(LONGEST)
        if life.is_alive():
            life.kill()
            life.join()
        return life.exitcode or 0, self.errors.read_text(errors="replace")

    def seconds(self, work: Callable[..., None], *given: Any, lines: int) -> float:
        """Return how long a life takes until it has acknowledged so many lines, and kill it."""
        begun = time.monotonic()
        life = self._life(work, given, None)
        while len(self.acknowledged()) < lines and life.is_alive():
            time.sleep(0.01)
        life.kill()
        life.join()
        return time.monotonic() - begun

    @property
    def errors(self) -> Path:
        return self.log.with_suffix(".errors")

    def _life(self, work: Callable[..., None], given: tuple[Any, ...], full: float | None) -> Any:
        context: Any = multiprocessing.get_context("spawn" if self.cold else "forkserver")
        if not self.cold:
            context.set_forkserver_preload(list(self.preload))
        life = context.Process(target=_live, args=(work, given, str(self.log), str(self.errors), full))
        life.start()
        return life


def _live(
    work: Callable[..., None], given: tuple[Any, ...], log: str, errors: str, full: float | None
) -> None:
    for number, path in ((1, log), (2, errors)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout = sys.stderr  # what a command prints is no acknowledgement
    if full is not None:
        threading.Timer(full, full_disk.fill).start()
    work(*given)


def acknowledge(line: object) -> None:
    """Tell that something was committed."""
    os.write(1, f"{line}\n".encode())
