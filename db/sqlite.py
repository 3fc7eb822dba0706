"""Make SQLite safe with several processes: settings per connection and a lock for writers."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, urlencode

from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event

from db.errors import TrackerError

BUSY_SECONDS = 30.0  # longest wait of a write for other writers, retries included
FOREIGN_SECONDS = 5.0  # per attempt, for programs that ignore this lock, such as sqlite3
PRIVATE = 0o600  # prompts, responses and settings are private to the owner
WRITING = {"begin": "BEGIN IMMEDIATE"}  # execution options of a connection that will write


def connect(path: Path, **settings: object) -> Engine:
    """Return an engine for one file; transactions begin deferred unless the WRITING option is set."""
    if _writable(path):
        url = URL.create("sqlite", database=str(path))
        engine = create_engine(url, connect_args={"timeout": FOREIGN_SECONDS}, **settings)
    else:
        # Whether the file is complete changes as writers come and go: no connection may be kept.
        engine = create_engine("sqlite://", creator=lambda: _reader(path), poolclass=NullPool, **settings)
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def _writable(path: Path) -> bool:
    """Return whether SQLite can create files beside the database, which need not exist yet."""
    return not path.exists() or os.access(path.parent, os.W_OK)


def _reader(path: Path) -> sqlite3.Connection:
    # The rows of a download are read by several of the server's threads, one after the other.
    return sqlite3.connect(read_only_file(path), FOREIGN_SECONDS, check_same_thread=False, uri=True)


def read_only_file(path: Path) -> str:
    """Return the URI by which a file is read only, as it is now: without a write-ahead log it is complete.

    Where no file may be written beside it, a complete one must be opened as immutable."""
    complete = not _writable(path) and not Path(f"{path}-wal").exists()
    options = {"mode": "ro", **({"immutable": "1"} if complete else {})}
    return f"file:{quote(str(path))}?{urlencode(options)}"


def _configure(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # the Python driver's BEGIN is deferred and comes too late
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    # SQLite's own knows ASCII letters only: a search would tell É from é, which PostgreSQL's does not.
    connection.create_function("lower", 1, _casefold, deterministic=True)


def _casefold(value: object) -> str | None:
    return None if value is None else str(value).casefold()


def _begin(connection: Connection) -> None:
    # A deferred transaction that upgrades to a write fails at once with "locked", whatever the busy timeout.
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def make_private(path: Path) -> None:
    """Create the file readable by its owner alone; SQLite copies the permissions to its other files."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))


def use_wal(engine: Engine) -> None:
    """Switch permanently to WAL mode, in which readers never wait; call outside a transaction."""
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()


@contextmanager
def writers_lock(path: Path, seconds: float = BUSY_SECONDS) -> Iterator[None]:
    """Allow one writer at a time over all processes, by a lock on a file beside the database.

    SQLite 3.7.0 to 3.51.2 can lose pages when one connection checkpoints the WAL while another commits
    (the "WAL-reset bug"). Both happen only under this lock; the kernel releases it if the process dies."""
    mode = path.stat().st_mode & 0o666 if path.exists() else PRIVATE  # same permissions as the database
    descriptor = os.open(f"{path}-lock", os.O_CREAT | os.O_RDWR, mode)
    try:
        deadline = time.monotonic() + seconds
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise TrackerError(
                    f"database {path} is locked by another process: end it or wait, then run again"
                )
            time.sleep(0.002)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
