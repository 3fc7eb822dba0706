"""Open a database (SQLite by path, PostgreSQL by URL), and run its read and write transactions."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Engine, column, create_engine, inspect, make_url, select, table
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from db import sqlite
from db.errors import BadRequest, NotFound, TrackerError, driver_code, explain, is_unreachable
from db.redact import names_a_secret, redact_text
from db.schema import DEFAULT_PROJECT, REVISION, VERSION_TABLE
from db.values import plain

T = TypeVar("T")

RETRY_PAUSES = (0.05, 0.2, 0.8, 2.0)  # seconds; a server that is away is asked again after the last one
# Busy; serialization failure; deadlock; two writers created the same row or table at once: a retry sees it.
TRANSIENT = ("SQLITE_BUSY", "SQLITE_LOCKED", "40001", "40P01", "23505", "42P07")
SERVER_LOCK_LIMIT = f"SET LOCAL lock_timeout = '{sqlite.BUSY_SECONDS:.0f}s'"
REACHED_BY = ("host", "hostaddr")  # what a URL may name after its question mark
SERVICES = ("service", "servicefile")  # of which a file elsewhere says the host
# By these a connection that dies silently, behind a firewall or with its host, ends in half a minute.
CONNECTING: dict[str, Any] = {
    "connect_timeout": 10,
    "tcp_user_timeout": 20_000,  # milliseconds; the others are seconds
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
SERVER_READING = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}


class Database:
    """An open, migrated database. Threads may share it."""

    def __init__(self, engine: Engine, where: str, path: Path | None, project: str = DEFAULT_PROJECT) -> None:
        self.engine = engine
        self.project = project  # scope of aliases, cycles and runs
        self.where = where  # for messages, without a password
        self.path = path  # None on a server
        self.reads_wait = False  # for a server that is away, as writes do
        self._reading = SERVER_READING if path is None else {}

    @classmethod
    def open(cls, where: str | os.PathLike[str], *, create: bool = True) -> Database:
        """Open by path or URL. Create or migrate the tables; with create=False a missing file is NotFound."""
        file = file_of(where)
        database = _sqlite(file, create) if file else _postgres(_url(where))
        try:
            database._migrate()
        except BaseException:
            database.close()
            raise
        return database

    @property
    def address(self) -> str:
        """Return the path or the URL by which it is opened again; a URL may hold a password."""
        if self.path is not None:
            return str(self.path)
        return self.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read transaction with a consistent snapshot; never wait for a writer."""
        engine = self.engine.execution_options(**self._reading)
        seconds = sqlite.BUSY_SECONDS if self.reads_wait else 0.0
        with self._explained(), _tried_again(lambda _: engine.connect(), seconds) as connection:
            with connection.begin():
                yield connection

    def write(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction, and again after a lost connection or while the server restarts.

        `work` must be idempotent; every write here is an upsert with an explicit key."""
        with self._explained():
            return _tried_again(lambda deadline: self._write_once(work, deadline), sqlite.BUSY_SECONDS)

    def of_project(self, project: str) -> Database:
        """Return the same database, scoped to another of its projects."""
        return Database(self.engine, self.where, self.path, project)

    def close(self) -> None:
        self.engine.dispose()

    def _write_once(self, work: Callable[[Session], T], deadline: float) -> T:
        with (
            self._lock(deadline - time.monotonic()),
            self.engine.connect().execution_options(**sqlite.WRITING) as connection,
            Session(connection, expire_on_commit=False) as session,
            session.begin(),
        ):
            if self.path is None:
                session.connection().exec_driver_sql(SERVER_LOCK_LIMIT)
            return work(session)

    def _lock(self, seconds: float = sqlite.BUSY_SECONDS) -> AbstractContextManager[None]:
        return nullcontext() if self.path is None else sqlite.writers_lock(self.path, seconds)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError, OverflowError) as error:
            raise explain(error, self.where) from error

    def _migrate(self) -> None:
        """Bring the tables to this program's revision. Import Alembic only if something is missing."""
        with self.read() as connection:
            revision = _revision(connection)
            if revision is None:
                refuse = _refuse_encoding if self.path is None else _refuse_foreign
                refuse(connection, self.where)
        if revision == REVISION:
            return
        if self.path is not None:
            with self._explained(), self._lock():
                sqlite.use_wal(self.engine)
        from db.migrations import upgrade

        self.write(lambda session: upgrade(session.connection(), self.where))


def _tried_again(work: Callable[[float], T], seconds: float) -> T:
    """Return what `work` returns, given its deadline; until then try again after errors that pass."""
    deadline = time.monotonic() + seconds
    tries = 0
    while True:
        try:
            return work(deadline)
        except DBAPIError as error:
            pause = RETRY_PAUSES[min(tries, len(RETRY_PAUSES) - 1)]
            if not _passes(error, tries) or time.monotonic() + pause > deadline:
                raise
        tries += 1
        time.sleep(pause)


def _passes(error: DBAPIError, tries: int) -> bool:
    """Return whether a repetition may succeed: within a few tries, or once a server is there again."""
    soon = error.connection_invalidated or driver_code(error).startswith(TRANSIENT)
    return is_unreachable(error) or (soon and tries < len(RETRY_PAUSES))


def file_of(where: str | os.PathLike[str]) -> Path | None:
    """Return the file that a path or URL names; None for a database on a server."""
    url = _url(where)
    return Path(url.database or "") if url.drivername == "sqlite" else None


def hosts_of(where: str | os.PathLike[str]) -> list[str]:
    """Return the hosts and services by which a URL reaches a server; none for a file or a local socket."""
    url = _url(where)
    named = [url.host or ""]
    for key in REACHED_BY:
        values = url.query.get(key, ())
        named += [values] if isinstance(values, str) else values
    hosts = [re.sub(r"(?<=[^:]):\d+\Z", "", host) for value in named for host in value.split(",")]
    services = [f"{key} {url.query[key]}" for key in SERVICES if key in url.query]
    return [host for host in hosts if host and not host.startswith(("/", "@"))] + services


def name_the_same(one: str, other: str) -> bool:
    """Return whether two paths or URLs name the same database, with the same user and password."""
    return _url(one) == _url(other)


def without_password(where: str) -> str:
    """Return a path or URL for messages; a password with a space or a slash is found in no text."""
    if "://" in where:
        with suppress(SQLAlchemyError, ValueError):
            where = make_url(where).render_as_string(hide_password=True)
    return redact_text(where)


def _url(where: str | os.PathLike[str]) -> URL:
    text = os.fspath(where)
    if "://" not in text:
        return _file_url(text)
    try:
        url = make_url(text)
    except (SQLAlchemyError, ValueError):  # what they say may hold the password
        raise BadRequest(
            "the database URL cannot be read: use a path or postgresql://user@host/name"
        ) from None
    if "@" in (url.host or ""):  # which messages quote: SQLAlchemy ends a password at its first @
        raise BadRequest("the host in the database URL holds an @: write %40 for @ in the password")
    if url.get_backend_name() in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername == "sqlite" and url.database and url.database != ":memory:":
        return _file_url(url.database)
    raise BadRequest(f"database {_shown(url)} is not supported: use a path or postgresql://user@host/name")


def _file_url(path: str) -> URL:
    """Return a file's URL, links followed: SQLite keeps its log beside the file itself, and we our lock."""
    named = os.path.expanduser(path)  # noqa: PTH111 - Path's own fails where it does not know the user
    return URL.create("sqlite", database=os.path.realpath(named))


def _sqlite(path: Path, create: bool) -> Database:
    if not create and not path.exists():
        raise NotFound(
            f"there is no database at {path}: check its name, or run `recover init` with this --db first"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sqlite.make_private(path)
    except OSError as error:
        raise TrackerError(f"{path} cannot be made ({error.strerror}): give another --home") from error
    return Database(sqlite.connect(path, json_serializer=_json), str(path), path)


def _postgres(url: URL) -> Database:
    options = {name: value for name, value in CONNECTING.items() if name not in url.query}
    options["prepare_threshold"] = None  # a pooler may run a prepared statement where it was not prepared
    options["client_encoding"] = "utf8"  # that of the server, the default, may be without most characters
    try:
        engine = create_engine(url, json_serializer=_json, pool_pre_ping=True, connect_args=options)
    except ModuleNotFoundError as error:
        install = shlex.join([sys.executable, "-m", "pip", "install", "psycopg[binary]"])
        raise TrackerError(f"PostgreSQL needs the psycopg package: run `{install}`") from error
    return Database(engine, _shown(url), None)


def _shown(url: URL) -> str:
    """Return a URL for messages, without a password in any of its parts."""
    kept = {name: value for name, value in url.query.items() if not names_a_secret(name)}
    return url.set(query=kept).render_as_string(hide_password=True)


def _json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False, ensure_ascii=False)


def _refuse_foreign(connection: Connection, where: str) -> None:
    """Refuse a file whose tables are another program's: ours would be made among them.

    Ours are made together with their version, so that a kill leaves all of them or none."""
    tables = inspect(connection).get_table_names()
    if tables and VERSION_TABLE not in tables:
        raise BadRequest(
            f"{where} is the database of another program, whose tables it holds: name one of recover's, or a "
            "new file"
        )


def _refuse_encoding(connection: Connection, where: str) -> None:
    """Refuse a database that cannot hold every text: it would fail when the first answers are recorded."""
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
    if encoding != "UTF8":
        raise BadRequest(
            f"database {where} is encoded in {encoding}, not UTF8: create it with "
            "`createdb -E UTF8 -T template0`"
        )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version = table(VERSION_TABLE, column("version_num"))
    return connection.execute(select(version.c.version_num)).scalar()
