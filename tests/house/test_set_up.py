"""`make` sets an environment up once, and later only brings it up to the lock."""

from __future__ import annotations

import ensurepip
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def set_up(folder: Path, python: Path) -> str:
    """Run the target; the lock asks for what every new environment has, so that nothing is fetched."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of a `make test` that runs this
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = ["make", ".venv/.locked", f"PYTHON={python}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_changed_lock_leaves_what_else_is_installed(tmp_path: Path) -> None:
    """vLLM, extras and the packages of a run that is under way were gone after a pull."""
    clone = tmp_path / "a clone"  # of a path with a space, as is that of Python
    clone.mkdir()
    shutil.copy(ROOT / "Makefile", clone)
    (clone / "requirements.lock").write_text(f"pip=={ensurepip.version()}\n")
    python = clone / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    assert "Setting up .venv" in set_up(clone, python)
    locked, extra = clone / ".venv" / ".locked", clone / ".venv" / "extra"
    extra.touch()
    os.utime(locked, (1, 1))  # older than the lock
    assert "Bringing .venv up" in set_up(clone, python)
    assert extra.exists() and locked.stat().st_mtime > 1
    locked.unlink()  # as where the set-up was interrupted
    assert "Setting up .venv" in set_up(clone, python)
    assert locked.exists() and not extra.exists()
