"""Ctrl-C, and other requests to end: the end of what serves, and a hint only where a run can go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from db.reads import queries
from db.writes.tracker import Tracker
from pipelines.cli.options import Session
from pipelines.engines import engine_places
from pipelines.runs.home_database import to_name
from pipelines.runs.stage_runner import run_stage
from pipelines.runs.workspace import Workspace
from recovery.launch_env import RENDEZVOUS
from tests.attacks.load import free_port, wait_for
from tests.support.commands import Recover

HEARD = signal.getsignal(signal.SIGHUP) == signal.SIG_DFL  # not below nohup
REQUESTS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if HEARD else [])]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a database and nothing in it."""
    with Tracker(tmp_path / "recover.db"):
        return tmp_path


def interrupt(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("number", REQUESTS)
def test_it_is_the_way_to_end_the_dashboard(home: Path, number: signal.Signals) -> None:
    port = free_port()
    command = [sys.executable, "-m", "pipelines.cli", "--home", str(home), "dashboard", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}", server)
            server.send_signal(number)
            said = server.communicate(timeout=60)[1]
        finally:
            server.kill()
    assert (server.returncode, said) == (0, "")


RUNNING = """
import signal, sys, time
from pathlib import Path
import click
from pipelines.cli import commands
from pipelines.runs.stage_runner import run_stage
from pipelines.runs.workspace import Workspace

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it

def wait(stage):
    print("runs", flush=True)
    time.sleep(60)

@click.command()
def run():
    with Workspace.open(Path(sys.argv[1])) as ws:
        run_stage(ws, "cycle", wait, config={}, key="cycle")

commands.cli.get_command = lambda *_: run
sys.argv = ["recover", sys.argv[1]]
commands.main()
"""


@pytest.mark.parametrize("number", REQUESTS)
def test_a_run_that_is_asked_to_end_is_recorded_as_interrupted(home: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", RUNNING, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout and running.stdout.readline() == "runs\n"
            running.send_signal(number)
            said = running.communicate(timeout=60)[1]
        finally:
            running.kill()
    with Workspace.open(home) as ws:
        [run] = queries.unfinished_runs(ws.tracker.db)
    assert run["status"] == "stopped"
    assert (running.returncode, said.strip()) == (
        130,
        f"interrupted: go on with `recover --home {home} resume {run['id']}`",
    )


def test_it_is_the_way_to_end_a_served_checkpoint(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def serving(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(url="http://127.0.0.1:9", name="base", log=home / "log", wait=interrupt)

    monkeypatch.setattr(engine_places, "serve", serving)
    said = recover("--home", home, "serve", "base")
    assert (said.code, said.err) == (0, "")


def test_a_command_that_only_reads_names_nothing_to_go_on_with(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "runs", interrupt)
    said = recover("--home", home, "ls", "runs")
    assert (said.code, said.err.strip()) == (130, "interrupted")


def hint(ws: Workspace, work: Callable[[Any], Any] = interrupt, options: str = "") -> str:
    """Interrupt a cycle; return the command that it says goes on, without the run's id and some options."""
    with ws, pytest.raises(KeyboardInterrupt) as caught:
        run_stage(ws, "cycle", work, config={}, key="cycle")
    run = queries.run_of_key(ws.tracker.db, "cycle")
    [said], end = caught.value.__notes__, f" resume {run and run['id']}{options}`"
    assert said.startswith("go on with `") and said.endswith(end)
    return said.removeprefix("go on with `").removesuffix(end)


def test_the_hint_is_given_once_and_names_the_cycle_where_a_stage_within_is_interrupted(home: Path) -> None:
    def outer(stage: Any) -> dict[str, Any]:
        return run_stage(ws, "midtrain", interrupt, config={}, parent=stage.id, key="midtrain")

    ws = Workspace.open(home)
    assert hint(ws, outer) == f"recover --home {home}"


def test_a_home_that_was_found_is_not_named(home: Path) -> None:
    assert hint(Workspace.open(home, implicit=True)) == "recover"


def test_the_hint_names_the_number_of_processes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, str(home / "rendezvous"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert hint(Workspace.open(home, implicit=True), options=" --processes 2") == "recover"


def test_the_hint_names_a_database_that_a_command_would_not_open_unnamed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = str(home / "recover.db"), str(tmp_path / "other.db")
    with Tracker(other):
        pass
    assert hint(Workspace.open(home, own)) == f"recover --home {home}"
    assert hint(Workspace.open(home, other)) == f"recover --home {home} --db {other}"
    monkeypatch.setenv("RECOVER_DB_URL", other)  # as the same shell goes on
    assert hint(Workspace.open(home, other)) == f"recover --home {home}"
    assert hint(Workspace.open(home, own)) == f"recover --home {home} --db {own}"
    monkeypatch.delenv("RECOVER_DB_URL")
    server = "postgresql://ada:secret@db.example/recover"
    (home / "database.url").write_text(server)
    assert to_name(home, server, implicit=False) is None
    assert to_name(home, server, implicit=True) == server  # refused unless it is named
    (home / "database.url").write_text("postgres:/x://[bad")
    assert to_name(home, server, implicit=False) == server


@pytest.mark.parametrize("password", ["secret", "12345/secret", "a secret", "s@secret"])
def test_a_command_that_names_a_database_hides_its_password(home: Path, password: str) -> None:
    server = f"postgresql://ada:{password}@db.example/recover?password=secret"
    ws = Workspace.open(home)
    ws.named_db = server
    for command in (ws.command, Session(home=str(home), db=server).command):
        said = command("resume")
        assert said.startswith(f"recover --home {home} --db 'postgresql://")
        assert "@db.example/recover" in said
        assert "secret" not in said
        assert "12345" not in said
