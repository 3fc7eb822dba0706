"""Writing without waiting for the disk: no test cuts the power."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from db import sqlite

CONFIGURE = sqlite._configure  # as every program opens a database


@contextmanager
def unflushed() -> Iterator[None]:
    """Make this process, and no other that it starts, leave to the system when its files reach the disk."""

    def configure(connection: sqlite3.Connection, record: object) -> None:
        CONFIGURE(connection, record)
        connection.execute("PRAGMA synchronous=OFF")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        patched.setattr(sqlite, "_configure", configure)
        yield
