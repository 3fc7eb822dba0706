"""What every page may use: rows to read, the tracker for what a person decides, when something changed."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from db import queries
from db.session import Database
from db.tracker import Tracker

T = TypeVar("T")
KEPT = 64  # answers kept until the rows change


@dataclass(frozen=True)
class Desk:
    """`db` to read from (through db.queries), `tracker` to record what a person decides."""

    tracker: Tracker
    token: str  # of this launch; a change that comes without it is refused
    reviewer: str = ""  # a name to begin with in the review box
    _kept: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: tuple[Any, ...] | None = None  # the version of the rows that one drawing holds on to

    @property
    def db(self) -> Database:
        return self.tracker.db

    def for_one_drawing(self) -> Desk:
        """Asks once whether rows have changed, however many answers a page wants."""
        return replace(self, _rows=queries.structure_version(self.db))

    def version(self) -> str:
        """Changes when anything that a page shows has changed: rows, or how far a running stage is."""
        return _digest(self._structure(), queries.live_version(self.db))

    def cached(self, name: Any, make: Callable[[], T]) -> T:
        """What make() gives, kept until a score, verdict, review, cycle or run changes. `name` is hashable;
        not for what moves while a stage runs (progress, metrics)."""
        key = (name, self._structure())
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _structure(self) -> tuple[Any, ...]:
        return queries.structure_version(self.db) if self._rows is None else self._rows


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
