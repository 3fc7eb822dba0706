"""Parsing processes that stay for the next folder: to start one takes longer than a short page."""

from __future__ import annotations

import queue
import time
from collections import defaultdict
from contextlib import suppress
from typing import Any, ClassVar

from pipelines.corpus.reading.formats import Limits
from pipelines.corpus.reading.pool import Pool, _Worker


class KeptPool(Pool):
    """Begins with the idle processes of earlier pools of the same limits."""

    kept: ClassVar[defaultdict[Limits, list[_Worker]]] = defaultdict(list)

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        for running in self.kept.pop(limits, []):
            self._all.add(running)
            self._idle.put(running)
            self._started = time.monotonic()

    def __exit__(self, *error: Any) -> None:
        with suppress(queue.Empty):
            while True:
                running = self._idle.get_nowait()
                self._all.discard(running)
                self.kept[self.limits].append(running)
        super().__exit__(*error)

    @classmethod
    def end_all(cls) -> None:
        while cls.kept:
            for running in cls.kept.popitem()[1]:
                running.end()
