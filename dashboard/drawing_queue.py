"""Draw pages in threads: one long drawing at a time, with a few short ones beside it, the shortest first.

Python runs one thread at a time, so a page that is drawn beside eight others takes nine times as long, and
longer still where it asks the database often. How long a drawing will take is taken from the last ones of its
address, else of its page. Drawings wait without a thread, so that other requests are answered meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic, thread_time
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")
AT_ONCE, LONG_AT_ONCE = 4, 1  # drawings, and how many of them may be long
LONG = 0.05  # seconds of processor time
DUE_AFTER = 10.0  # seconds for each that a drawing takes: a longer one is due later, but never waits for ever
FADES = 0.9  # of a page's longest drawing, with each drawing
MOST_REMEMBERED = 1000  # addresses and pages


@dataclass(order=True)
class _Waiting:
    due: float
    number: int
    is_long: bool = field(compare=False)
    ready: Future[None] = field(compare=False, default_factory=Future)


class DrawingQueue:
    """Runs drawings in the order in which they are due. Safe for several threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []
        self._running = {True: 0, False: 0}  # long ones, short ones
        self._seconds: OrderedDict[str, float] = OrderedDict()

    async def run(self, address: str, draw: Callable[[], T]) -> T:
        """Wait for a turn, draw in a thread, and return what was drawn."""
        expected = self.expected(address)
        is_long = expected > LONG
        await self._turn(monotonic() + DUE_AFTER * expected, is_long)
        try:
            drawn, seconds = await run_in_threadpool(_timed, draw)
        finally:
            self._leave(is_long)
        self._remember(address, seconds)
        return drawn

    def expected(self, address: str) -> float:
        """Return how many seconds of processor time a drawing will take; 0 for a page not yet drawn."""
        return self._seconds.get(address, self._seconds.get(_page(address), 0.0))

    async def _turn(self, due: float, is_long: bool) -> None:
        entry = _Waiting(due, next(self._numbers), is_long)
        with self._lock:
            insort(self._waiting, entry)
            self._start()
        try:
            await asyncio.wrap_future(entry.ready)
        except asyncio.CancelledError:
            if not entry.ready.cancel():  # its turn has come already
                self._leave(is_long)
            raise

    def _leave(self, is_long: bool) -> None:
        with self._lock:
            self._running[is_long] -= 1
            self._start()

    def _start(self) -> None:
        """Start every waiting drawing that there is room for."""
        for entry in [*self._waiting]:
            if not self._has_room(entry.is_long):
                continue
            self._waiting.remove(entry)
            if entry.ready.set_running_or_notify_cancel():
                self._running[entry.is_long] += 1
                entry.ready.set_result(None)

    def _has_room(self, is_long: bool) -> bool:
        if is_long and self._running[True] >= LONG_AT_ONCE:
            return False
        return sum(self._running.values()) < AT_ONCE

    def _remember(self, address: str, seconds: float) -> None:
        page = _page(address)
        with self._lock:
            self._seconds[page] = max(seconds, FADES * self._seconds.get(page, 0.0))
            self._seconds[address] = seconds
            for name in (address, page):
                self._seconds.move_to_end(name)
            while len(self._seconds) > MOST_REMEMBERED:
                self._seconds.popitem(last=False)


def _page(address: str) -> str:
    return address.partition("?")[0]


def _timed(draw: Callable[[], T]) -> tuple[T, float]:
    begun = thread_time()
    drawn = draw()
    return drawn, thread_time() - begun
