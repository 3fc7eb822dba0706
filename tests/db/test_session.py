"""Opening: migrations, settings, several processes at once, and every way in which it can fail."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import secrets
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from db import migrations, sqlite
from db.errors import BadRequest, NotFound, TrackerError, Unreachable, is_unreachable
from db.reads import queries
from db.schema import REVISION, Base, Run
from db.session import Database
from db.writes.tracker import Tracker
from tests.support.databases import BACKENDS, new_database
from tests.support.unflushed import CONFIGURE


def test_the_newest_revision_is_the_one_the_schema_names() -> None:
    assert ScriptDirectory.from_config(migrations.config()).get_current_head() == REVISION


def test_migrations_make_the_tables_of_the_schema(tmp_path: Path) -> None:
    migrated = Database.open(tmp_path / "migrated.db").engine
    declared = sqlite.connect(tmp_path / "declared.db")
    Base.metadata.create_all(declared)
    assert _definitions(migrated) == _definitions(declared)


def _definitions(engine: sa.Engine) -> dict[str, list[str]]:
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'recover_version'"
    with engine.connect() as connection:
        found = connection.exec_driver_sql(query).all()
    return {name: sorted(re.split(r"\s*[,()]\s*|\s+", sql)) for name, sql in found}


@pytest.mark.parametrize("backend", BACKENDS)
def test_opening_again_changes_nothing(backend: str, tmp_path: Path) -> None:
    with new_database(backend, tmp_path) as where:
        for _ in range(3):
            with Tracker(where) as tracker:
                tracker.start_run("demo", key="demo")
        with Tracker(where) as tracker, tracker.db.read() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(Run)) == 1


def test_sqlite_is_as_safe_as_it_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_configure", CONFIGURE)
    with Database.open(tmp_path / "a b?#%.db").read() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 5_000}


def test_a_home_that_may_only_be_read_shows_what_its_owner_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is complete while nobody writes, and then it is not."""
    path = tmp_path / "recover.db"

    def writable(may_write: bool) -> None:
        monkeypatch.setattr(sqlite, "_writable", lambda _: may_write)

    def runs() -> int | None:
        writable(False)
        with reader.read() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(Run))

    with Tracker(path) as owner:
        owner.start_run("demo")
    writable(False)
    reader = Database.open(path, create=False)
    assert runs() == 1 and not Path(f"{path}-wal").exists()
    writable(True)
    with Tracker(path) as owner:
        owner.start_run("demo")
        assert runs() == 2
    assert runs() == 2
    with pytest.raises(TrackerError):
        reader.write(lambda session: session.execute(sa.delete(Run)))


def test_a_link_to_the_file_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log was looked for, and its lock made, beside the link."""
    path, link = tmp_path / "disk" / "recover.db", tmp_path / "link.db"
    path.parent.mkdir()
    link.symlink_to(path)
    with Tracker(link) as owner:
        owner.start_run("demo")
        assert owner.db.path == path and path.stat().st_mode & 0o777 == 0o600
        assert {file.name for file in tmp_path.iterdir()} == {"disk", "link.db"}
        with sqlite.writers_lock(path), pytest.raises(TrackerError, match="locked by another process"):
            with owner.db._lock(seconds=0.05):
                pass
        monkeypatch.setattr(sqlite, "_writable", lambda _: False)
        with Database.open(link, create=False).read() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(Run)) == 1


ADD = """
import sys
from db.writes.tracker import Tracker
from db.schema import Run
def add(session):
    run = session.get(Run, sys.argv[2])
    run.seed += 1
with Tracker(sys.argv[1]) as tracker:
    for _ in range(50):
        tracker.db.write(add)
"""


@pytest.mark.parametrize("processes", [4])
def test_processes_that_read_and_write_wait_for_each_other(processes: int, tmp_path: Path) -> None:
    path = tmp_path / "recover.db"
    with Tracker(path) as tracker:
        run = tracker.start_run("demo", seed=0)
    children = [_python(ADD, str(path), run.id) for _ in range(processes)]
    assert [child.communicate()[1].decode() for child in children] == [""] * processes
    with Tracker(path) as tracker, tracker.db.read() as connection:
        assert connection.scalar(sa.select(Run.seed)) == 50 * processes


@pytest.mark.parametrize("backend", BACKENDS)
def test_processes_that_open_at_once_migrate_once(backend: str, tmp_path: Path) -> None:
    code = (
        "import sys; from db.writes.tracker import Tracker; Tracker(sys.argv[1]).start_run('demo', key='one')"
    )
    with new_database(backend, tmp_path) as where:
        children = [_python(code, where) for _ in range(3)]
        assert [child.communicate()[1].decode() for child in children] == ["", "", ""]
        with Tracker(where) as tracker, tracker.db.read() as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(Run)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_migration_that_is_cut_off_leaves_nothing(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade = migrations.upgrade

    def cut_off(connection: sa.Connection, where: str) -> None:
        upgrade(connection, where)
        raise KeyboardInterrupt

    with new_database(backend, tmp_path) as where:
        monkeypatch.setattr(migrations, "upgrade", cut_off)
        with pytest.raises(KeyboardInterrupt):
            Database.open(where)
        monkeypatch.undo()
        with Tracker(where) as tracker:
            assert tracker.start_run("demo").status == "running"


def _python(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, stderr=subprocess.PIPE)


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "recover.db")

    def work(session: sa.orm.Session) -> int | None:
        session.add(
            Run(
                id="x",
                kind="demo",
                status="running",
                attempts=1,
                started_at="",
                heartbeat_at="",
                progress={},
                cost={},
                config={},
                versions={},
            )
        )
        session.flush()
        with tracker.db.read() as connection:
            return connection.scalar(sa.select(sa.func.count()).select_from(Run))

    assert tracker.db.write(work) == 0


def test_a_lock_held_too_long_is_an_error(tmp_path: Path) -> None:
    with open(tmp_path / "recover.db-lock", "a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TrackerError, match="locked by another process"):
            with sqlite.writers_lock(tmp_path / "recover.db", seconds=0.05):
                pass


def test_a_foreign_writer_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "FOREIGN_SECONDS", 0.05)
    monkeypatch.setattr("db.session.RETRY_PAUSES", (0.01, 0.01))
    tracker = Tracker(tmp_path / "recover.db")
    foreign = sqlite3.connect(tmp_path / "recover.db", isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(TrackerError, match="is locked by another program"):
        tracker.start_run("demo")
    foreign.execute("ROLLBACK")
    assert tracker.start_run("demo").status == "running"


def test_all_waiting_for_a_lock_together_has_one_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five tries of thirty seconds each took 153."""
    tracker = Tracker(tmp_path / "recover.db")
    now, deadlines = [0.0], list[float]()

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    def refuse(self: object, work: object, deadline: float) -> None:
        deadlines.append(deadline)
        pass_by(2 / 3 * sqlite.BUSY_SECONDS)
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        raise OperationalError("BEGIN IMMEDIATE", {}, busy)

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=pass_by)
    monkeypatch.setattr("db.session.time", clock)
    monkeypatch.setattr(type(tracker.db), "_write_once", refuse)
    with pytest.raises(TrackerError, match="is locked by another program"):
        tracker.start_run("demo")
    assert deadlines == [sqlite.BUSY_SECONDS] * 2 and now[0] < 1.5 * sqlite.BUSY_SECONDS


@pytest.mark.parametrize(("away", "written"), [(20.0, True), (40.0, False)])
def test_a_server_that_restarts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, away: float, written: bool
) -> None:
    """The connection that was cut is tried again at once, and is refused then: without an SQLSTATE."""
    tracker = Tracker(tmp_path / "recover.db")
    slept = list[float]()
    refused = type("OperationalError", (Exception,), {"__module__": "psycopg"})("connection refused")
    once = type(tracker.db)._write_once

    def restarting(self: Database, work: Callable[[Session], object], deadline: float) -> object:
        if sum(slept) < away:
            raise OperationalError("BEGIN", {}, refused, connection_invalidated=not slept)
        return once(self, work, deadline)

    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("db.session.time", clock)
    monkeypatch.setattr(type(tracker.db), "_write_once", restarting)
    if written:
        assert tracker.start_run("demo").status == "running"
    else:
        with pytest.raises(TrackerError, match=r"cannot be reached \(connection refused\)"):
            tracker.start_run("demo")
    assert slept == sorted(slept) and slept[-1] == 2.0
    assert min(away, 27.0) <= sum(slept) <= sqlite.BUSY_SECONDS


@pytest.mark.parametrize(("waits", "slept"), [(True, [0.05, 0.2, 0.8]), (False, [])])
def test_the_reads_of_a_run_wait_for_a_server_that_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, slept: list[float]
) -> None:
    """It is away for a second: 0.05 + 0.2 + 0.8. A page of the dashboard says so at once."""
    tracker = Tracker(tmp_path / "recover.db")
    tracker.start_run("demo")
    tracker.db.reads_wait = waits
    passed = list[float]()
    refused = type("OperationalError", (Exception,), {"__module__": "psycopg"})("connection refused")
    connect = sa.Engine.connect

    def restarting(self: sa.Engine) -> sa.Connection:
        if sum(passed) < 1:
            raise OperationalError("", {}, refused)
        return connect(self)

    clock = SimpleNamespace(monotonic=lambda: sum(passed), sleep=passed.append)
    monkeypatch.setattr("db.session.time", clock)
    monkeypatch.setattr(sa.Engine, "connect", restarting)
    if waits:
        assert len(queries.runs(tracker.db)) == 1
    else:
        with pytest.raises(TrackerError, match=r"cannot be reached \(connection refused\)"):
            queries.runs(tracker.db)
    assert passed == slept


def options_of(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Return what the driver is asked for where a URL is opened."""
    psycopg = pytest.importorskip("psycopg")
    asked = dict[str, object]()

    def connect(**options: object) -> None:
        asked.update(options)
        raise psycopg.OperationalError("away")

    monkeypatch.setattr(psycopg, "connect", connect)
    refused(url)
    return asked


def test_no_statement_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler in transaction mode runs it on whichever connection is free: it is not known there."""
    assert options_of("postgresql://db.example/x", monkeypatch)["prepare_threshold"] is None


def test_a_connection_that_dies_silently_ends_in_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's own limits are a quarter of an hour for what is sent and two hours for an answer."""
    asked = options_of("postgresql://db.example/x", monkeypatch)
    assert asked["tcp_user_timeout"] == 20_000
    names = ("keepalives_idle", "keepalives_interval", "keepalives_count", "connect_timeout")
    assert [asked[name] for name in names] == [10, 5, 3, 10]
    assert asked["client_encoding"] == "utf8"
    own = options_of("postgresql://db.example/x?keepalives_idle=60&connect_timeout=3", monkeypatch)
    assert [own[name] for name in names] == ["60", 5, 3, "3"]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_postgres_database_that_cannot_hold_every_text_is_refused(encoding: str) -> None:
    """It failed when the first texts were recorded, after they had been generated."""
    if not (server := os.environ.get("RECOVER_TEST_POSTGRES")):
        pytest.skip("RECOVER_TEST_POSTGRES names no PostgreSQL server")
    url = sa.make_url(server).set(drivername="postgresql+psycopg")
    name = f"recover_{secrets.token_hex(6)}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
        )
        try:
            error = refused(url.set(database=name).render_as_string(hide_password=False))
        finally:
            connection.exec_driver_sql(f"DROP DATABASE {name}")
    engine.dispose()
    assert isinstance(error, BadRequest)
    assert f"encoded in {encoding}, not UTF8: create it with `createdb -E UTF8 -T template0`" in str(error)


def test_a_lock_on_postgres_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_database("postgres", tmp_path) as where, Tracker(where) as tracker:
        monkeypatch.setattr("db.session.SERVER_LOCK_LIMIT", "SET LOCAL lock_timeout = '50ms'")
        with tracker.db.engine.connect() as other, other.begin():
            other.exec_driver_sql("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TrackerError, match="is locked by another program"):
                tracker.start_run("demo")


def test_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with Tracker(tmp_path / "recover.db") as tracker:
            tracker.start_run("demo")
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert len(modes) >= 3 and set(modes.values()) == {0o600}, modes


SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "where",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/x",
        f"postgresql://:{SECRET}@127.0.0.1:1/x",
        f"postgresql://ann:with@{SECRET}@127.0.0.1:1/x",
        f"postgresql://127.0.0.1:1/x?user=ann&password={SECRET}",
        f"postgresql://127.0.0.1:1/x?sslpassword={SECRET}",
        f"postgresql://ann:{SECRET}/x",
        f"mysql://ann:{SECRET}@127.0.0.1/x",
        f"mysql://127.0.0.1/x?password={SECRET}",
        f"postgresql:/ann:{SECRET}@127.0.0.1/x",
        f"host=127.0.0.1 user=ann password={SECRET}",
        f"postgresql%3A%2F%2Fann%3A{SECRET}%40127.0.0.1%2Fx",
    ],
)
def test_a_password_never_stands_in_a_message(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    error = refused(where, create=False)
    assert SECRET not in "".join(traceback.format_exception(error))


def refused(where: object, **options: bool) -> TrackerError:
    with pytest.raises(TrackerError) as caught:
        Database.open(where, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "recover.db"
    path.write_bytes(b"this is not a database, it is a letter to my mother" * 40)
    assert "is not a SQLite database: move the file away" in str(refused(path))


@pytest.mark.parametrize("table", ["customers", "runs"])
@pytest.mark.parametrize("create", [True, False])
def test_the_file_of_another_program_is_left_as_it_is(tmp_path: Path, table: str, create: bool) -> None:
    """Ours were made among its tables; where one had the same name, it was left with another journal."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"CREATE TABLE {table} (name text)")
    before = path.read_bytes()
    error = refused(path, create=create)
    assert isinstance(error, BadRequest) and "is the database of another program" in str(error)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A kill in the middle of `init` leaves one."""
    (tmp_path / "recover.db").touch()
    with Tracker(tmp_path / "recover.db") as tracker:
        assert tracker.start_run("demo").status == "running"


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "recover.db").mkdir()
    assert "cannot be opened" in str(refused(tmp_path / "recover.db"))


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    error = refused(tmp_path / "home" / "recover.db")
    assert "cannot be made" in str(error) and error.exit_code == 1


def test_an_unwritable_home(tmp_path: Path) -> None:
    assert "/proc" in str(refused(Path("/proc/recover.db")))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be" in str(refused(tmp_path / "recover.db"))


def test_a_missing_file_where_none_may_be_made(tmp_path: Path) -> None:
    error = refused(tmp_path / "recover.db", create=False)
    assert isinstance(error, NotFound) and error.exit_code == 2 and not (tmp_path / "recover.db").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_of_a_newer_recover(backend: str, tmp_path: Path) -> None:
    with new_database(backend, tmp_path) as where:
        database = Database.open(where)
        newer = sa.text("UPDATE recover_version SET version_num = '9999'")
        database.write(lambda session: session.execute(newer))
        database.close()
        assert "written by a newer recover" in str(refused(where))


@pytest.mark.parametrize("url", ["mysql://user:secret@host/x", "sqlite://", "not a url://x", "://"])
def test_urls_that_are_not_supported(url: str) -> None:
    error = refused(url)
    assert isinstance(error, BadRequest) and "secret" not in str(error)


def test_a_server_that_is_not_there() -> None:
    pytest.importorskip("psycopg")
    error = refused("postgresql://someone:secret@127.0.0.1:1/recover")
    assert "cannot be reached" in str(error) and "secret" not in str(error)


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ('FATAL:  password authentication failed for user "ann"', "refuses this password or user: check the"),
        ('FATAL:  Peer authentication failed for user "ann"', "refuses this password or user: check the"),
        ('FATAL:  role "ann" does not exist', "refuses this password or user: check the database URL"),
        (
            'FATAL:  no pg_hba.conf entry for host "::1", user "ann"',
            "refuses this password or user: check the",
        ),
        ("fe_sendauth: no password supplied", "refuses this password or user: check the database URL"),
        (
            'FATAL:  database "x" does not exist',
            r"does not exist on the server: create it first \(createdb\)",
        ),
        ("FATAL:  the database system is starting up", "cannot be reached"),
        ("FATAL:  sorry, too many clients already", "cannot be reached"),
    ],
)
def test_what_a_server_says_on_refusing_a_connection(
    said: str, meaning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver passes on its words without an SQLSTATE; only what may pass is waited for."""
    psycopg = pytest.importorskip("psycopg")
    words = f'connection failed: connection to server at "127.0.0.1", port 5432 failed: {said}'

    def connect(**_: object) -> None:
        raise psycopg.OperationalError(words)

    monkeypatch.setattr(psycopg, "connect", connect)
    error = refused("postgresql://ann@127.0.0.1/x")
    assert isinstance(error, Unreachable) and re.search(meaning, str(error)), error
    assert is_unreachable(OperationalError("", {}, psycopg.OperationalError(words))) is (
        meaning == "cannot be reached"
    )


def test_a_full_disk_as_sqlite_reports_it(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "recover.db")

    def fill(session: sa.orm.Session) -> None:
        session.execute(sa.text("PRAGMA max_page_count = 1"))
        session.execute(sa.text("CREATE TABLE big AS SELECT zeroblob(10000000) AS x"))

    with pytest.raises(TrackerError, match=r"no room left.*free some space"):
        tracker.db.write(fill)


FILL = """
import sys
from db.writes.tracker import Tracker
from db.writes.points import Point, store
from db.errors import TrackerError
try:
    tracker = Tracker(sys.argv[1])
    run = tracker.start_run("demo", key="demo")
    for step in range(10_000):
        points = [Point.of(run.id, f"metric {i}", step, 0.5) for i in range(200)]
        tracker.db.write(lambda session: store(session, points))
except TrackerError as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("kilobytes", [1, 100, 400])
def test_a_full_disk_as_the_system_reports_it(kilobytes: int, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes * 1024, kilobytes * 1024))

    path = tmp_path / "recover.db"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.run(
        [sys.executable, "-c", FILL, str(path)],
        env=environment,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"database \S+ .*(disk full|full or failing).*\n", child.stderr), child.stderr
    with Tracker(path) as tracker, tracker.db.read() as connection:  # with room again, all is well
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        assert connection.exec_driver_sql("SELECT count(*) % 200 FROM metrics").scalar() == 0
