"""How many requests are under way at an endpoint: fewer where it answers them one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recovery.engines.json_client import Refused, TimedOut
from recovery.errors import EngineLost

STEADY = 64  # answers in a row after which twice as many requests may be under way again
TOO_MANY = 429  # requests, says an endpoint by this status


class Waited(EngineLost):
    """A request timed out behind others, whose answers came meanwhile."""


class InFlight:
    """Lets `most` requests be under way at once: half as many once one has waited in vain for others, or the
    endpoint finds them too many, and twice as many again, up to the first number, while all are answered."""

    def __init__(self, most: int) -> None:
        self.most = self.first = most
        self._steady = 0
        self.parts = 0  # of answers, that came
        self._now = 0
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[Callable[[], None]]:
        """Wait until another request may be under way; give what counts a part of its answer."""
        with self._changed:
            self._changed.wait_for(lambda: self._now < self.most)
            self._now += 1
            most, before = self.most, self.parts
        mine = 0

        def count() -> None:
            nonlocal mine
            with self._changed:
                self.parts += 1
                mine += 1

        try:
            yield count
        except TimedOut as error:
            if self.parts - mine == before:
                raise
            self._halve(most)
            raise Waited(str(error)) from error
        except Refused as error:
            if error.status == TOO_MANY:
                self._halve(most)
            raise
        else:
            self._note_answer()
        finally:
            with self._changed:
                self._now -= 1
                self._changed.notify_all()

    def _halve(self, most: int) -> None:
        """Halve what there was when a request was sent: of those sent together, the first halves alone."""
        with self._changed:
            self.most, self._steady = min(self.most, max(1, most // 2)), 0

    def _note_answer(self) -> None:
        with self._changed:
            self._steady += 1
            if self._steady >= STEADY:
                self.most, self._steady = min(self.first, 2 * self.most), 0
