"""Provide the context of a page: database, tracker, cache and change detection."""

from __future__ import annotations

import hashlib
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from db.reads import queries
from db.session import Database
from db.writes.tracker import Tracker
from recovery.command_line import Command, command, unnamed

T = TypeVar("T")
MOST_CACHED = 256  # most cached values


@dataclass
class CachedValue:
    """A cached value, computed once under its lock, and the row version that it was computed of."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: tuple[Any, ...] | None = None
    value: Any = None


@dataclass(frozen=True)
class PageContext:
    """The context of a page: `db` for reads (through db.reads.queries), `tracker` for recording reviews."""

    tracker: Tracker
    token: str  # random per launch; form submissions without it are refused
    reviewer: str = ""  # default name in the review form
    typed: Command = unnamed  # writes a command for the home that is looked at
    machine: str = ""  # on which commands have to be typed, where it is another one
    _cached: OrderedDict[Any, CachedValue] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rows: tuple[Any, ...] | None = None  # row version pinned for one drawing

    @property
    def db(self) -> Database:
        return self.tracker.db

    def knows(self, token: str) -> bool:
        """Return whether a request carries this launch's token; `token` is untrusted text."""
        return secrets.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def for_one_drawing(self) -> PageContext:
        """Return a context that checks for changed rows once, for all queries of one page."""
        return replace(self, _rows=queries.structure_version(self.db))

    def command(self, *words: str) -> str:
        """Return a `recover` command as a reader of the page types it; a comment names another machine."""
        typed = self.typed(*words)
        return f"{typed}  # on {self.machine}" if self.machine else typed

    def cycle_numbers(self) -> list[int]:
        return self.cached("numbers", lambda: queries.cycle_numbers(self.db))

    def judged(self, number: int) -> dict[str, Any]:
        """Return a cycle with its scores, but for those on earlier documents."""
        return self.cached(("judged", number), lambda: queries.cycle(self.db, number, earlier=False))

    def projects(self) -> list[str]:
        return self.cached("projects", lambda: queries.projects(self.db))

    def of_project(self, name: str) -> PageContext:
        """Return the context of another project of the same database, whose commands name its own home."""
        if name == self.db.project:
            return self
        machine, _, folder = (queries.project_home(self.db, name) or "").partition(":")
        home = Path(folder or "HOME")  # a word to replace, where no home is recorded
        there = "" if machine == socket.gethostname() else machine
        typed = partial(command, home)
        return replace(self, tracker=Tracker(self.db, project=name), typed=typed, machine=there)

    def version(self) -> str:
        """Return a value that changes with anything a page shows: rows, or a running stage's progress."""
        shown = self._structure(), queries.live_version(self.db)
        return hashlib.sha256(repr(shown).encode()).hexdigest()[:16]

    def cached(self, name: Any, make: Callable[[], T]) -> T:
        """Return make()'s result, cached until a score, verdict, review, cycle or run changes.

        `name` is the hashable cache key. Don't cache what changes while a stage runs (progress, metrics)."""
        key, rows = (name, self.db.project), self._structure()
        with self._lock:
            answer = self._cached.setdefault(key, CachedValue())
            self._cached.move_to_end(key)
            while len(self._cached) > MOST_CACHED:
                self._cached.popitem(last=False)
        with answer.lock:  # concurrent requests compute the value once
            if answer.rows != rows:  # replace it: a value holds whole tables, and every score is a change
                answer.value = make()
                answer.rows = rows
            return cast(T, answer.value)

    def _structure(self) -> tuple[Any, ...]:
        return queries.structure_version(self.db) if self._rows is None else self._rows
