"""The command line in two processes: output, database and checkpoints are those of one process."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipelines.config import settings

pytestmark = pytest.mark.slow


def command(home: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "pipelines.cli", "--home", str(home), *words]


def run(home: Path, *words: str, code: int = 0) -> Any:
    done = subprocess.run(command(home, "--json", "-q", *words), capture_output=True, text=True, timeout=1500)
    assert done.returncode == code, done.stderr[-2000:]
    return json.loads(done.stdout) if code == 0 else done.stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    run(folder / "unused", "microworld", str(folder), "--seed", "7")
    return folder / "docs"


def home(folder: Path, **model: Any) -> Path:
    """A home whose trainings are short."""
    folder.mkdir()
    text = settings.preset_text("microworld").replace("dtype: float32", f"dtype: float32\n  {_yaml(model)}")
    text = text.replace("\n  epochs:", "\n  steps:")
    for name, value in {"\n  steps": 3, "prompts_per_step": 8, "save_every": 1}.items():
        text = re.sub(rf"{name}: \d+", f"{name}: {value}", text)
    (folder / settings.CONFIG_NAME).write_text(text, encoding="utf-8")
    run(folder, "init")
    return folder


def _yaml(values: dict[str, Any]) -> str:
    return "\n  ".join(f"{name}: {json.dumps(value)}" for name, value in values.items())


def recorded(home: Path) -> dict[tuple[str, str, int], float]:
    """What must not depend on the number of processes."""
    rows = run(
        home,
        "query",
        "SELECT kind, name, step, value FROM metrics JOIN runs ON runs.id = run_id "
        "WHERE name IN ('loss', 'tokens', 'grad_norm')",
    )
    return {(row["kind"], row["name"], row["step"]): row["value"] for row in rows}


@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_record_what_one_does(shard: bool, world: Path, tmp_path: Path) -> None:
    one, two = home(tmp_path / "one"), home(tmp_path / "two", shard=shard)
    for where, several in ((one, []), (two, ["--processes", "2"])):
        run(where, "midtrain", "--docs", str(world), *several)
        run(where, "distill", *several)
    assert recorded(two) == pytest.approx(recorded(one), rel=1e-2)
    for table in ("runs", "checkpoints", "documents"):
        count = f"SELECT count(*) AS n FROM {table}"
        assert run(two, "query", count) == run(one, "query", count)


@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGKILL, -9, "running"), (signal.SIGTERM, 130, "stopped")]
)
def test_a_launcher_that_is_ended_leaves_nobody_behind_and_one_process_goes_on(
    number: signal.Signals, code: int, status: str, world: Path, tmp_path: Path
) -> None:
    where = home(tmp_path / "home", shard=True)
    words = command(where, "-q", "midtrain", "--docs", str(world), "--steps", "40", "--processes", "2")
    launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while not list(where.glob("runs/*/state/step-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    children = _children(launcher.pid)
    assert len(children) == 2
    assert {address for pid in children for address in _listening(pid)} <= {"127.0.0.1"}
    os.kill(launcher.pid, number)
    assert launcher.wait() == code
    time.sleep(1.0)
    assert not [pid for pid in children if _alive(pid)]
    assert run(where, "query", "SELECT status FROM runs") == [{"status": status}]
    found = run(where, "resume")
    steps = run(where, "query", "SELECT count(*) AS n FROM metrics WHERE name = 'loss'")[0]["n"]
    assert steps == 40 and found["checkpoint"]


TRAPS = ("json", "random", "socket", "db", "evals", "recovery", "pipelines", "torch")


def test_processes_never_import_from_the_current_folder(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = home(tmp_path / "home")
    trapped = tmp_path / "trapped"
    trapped.mkdir()
    for name in TRAPS:
        trap = f"open({str(tmp_path / 'sprung')!r}, 'a').write({name!r})\nraise SystemExit(99)\n"
        (trapped / f"{name}.py").write_text(trap)
        if name in ("db", "evals", "pipelines"):
            (trapped / name).mkdir()
            (trapped / name / "__init__.py").write_text(trap)
    monkeypatch.chdir(trapped)
    words = [sys.executable, "-P", "-c", "from pipelines.cli import main; main()", "--home", str(where), "-q"]
    words += ["midtrain", "--docs", str(world), "--steps", "1", "--processes", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not (tmp_path / "sprung").exists()


def test_an_error_is_one_line_and_its_own_exit_code(tmp_path: Path) -> None:
    said = run(
        home(tmp_path / "home"), "midtrain", "--docs", str(tmp_path / "no"), "--processes", "2", code=2
    )
    assert len([line for line in said.splitlines() if line.startswith("Error")]) == 1


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


def _listening(pid: int) -> set[str]:
    """The addresses on which a process accepts connections."""
    links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and inode in inodes:
                packed = bytes.fromhex(local.partition(":")[0])
                found.add(socket.inet_ntoa(packed[::-1]) if table == "tcp" else packed.hex())
    return found


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
