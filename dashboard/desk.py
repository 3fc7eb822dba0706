"""The context of a page: the database to read, the tracker for reviews, a cache, change detection."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from db.reads import queries
from db.session import Database
from db.writes.tracker import Tracker

T = TypeVar("T")
KEPT = 256  # answers kept until the rows change


@dataclass
class Answer:
    """A value that is computed once, under its lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: bool = False
    value: Any = None


@dataclass(frozen=True)
class Desk:
    """`db` to read from (through db.reads.queries), `tracker` to record reviews."""

    tracker: Tracker
    token: str  # of this launch; a change that comes without it is refused
    reviewer: str = ""  # a name to begin with in the review box
    _kept: OrderedDict[Any, Answer] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: tuple[Any, ...] | None = None  # the version of the rows that one drawing holds on to

    @property
    def db(self) -> Database:
        return self.tracker.db

    def knows(self, token: str) -> bool:
        """Whether a request carries this launch's token; any text may be given."""
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def for_one_drawing(self) -> Desk:
        """Return a desk that checks once for changed rows, however many answers a page needs."""
        return replace(self, _rows=queries.structure_version(self.db))

    def version(self) -> str:
        """Changes when anything that a page shows has changed: rows, or how far a running stage is."""
        return _digest(self._structure(), queries.live_version(self.db))

    def cached(self, name: Any, make: Callable[[], T]) -> T:
        """What make() gives, kept until a score, verdict, review, cycle or run changes. `name` is hashable;
        not for what moves while a stage runs (progress, metrics)."""
        key = (name, self._structure())
        with self._lock:
            answer = self._kept.setdefault(key, Answer())
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        with answer.lock:  # concurrent requests for one answer compute it once
            if not answer.made:
                answer.value, answer.made = make(), True
        return cast(T, answer.value)

    def _structure(self) -> tuple[Any, ...]:
        return queries.structure_version(self.db) if self._rows is None else self._rows


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
