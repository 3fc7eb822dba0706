"""`make` sets an environment up once, and later only brings it up to the lock."""

from __future__ import annotations

import ensurepip
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


def set_up(folder: Path) -> str:
    """Run the target; the lock asks for what every new environment has, so that nothing is fetched."""
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # of a `make test` that runs this
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    command = ["make", ".venv/.locked", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_changed_lock_leaves_what_else_is_installed(tmp_path: Path) -> None:
    """vLLM, extras and the packages of a run that is under way were gone after a pull."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements.lock").write_text(f"pip=={ensurepip.version()}\n")
    assert "Setting up .venv" in set_up(tmp_path)
    locked, extra = tmp_path / ".venv" / ".locked", tmp_path / ".venv" / "extra"
    extra.touch()
    os.utime(locked, (1, 1))  # older than the lock
    assert "Bringing .venv up" in set_up(tmp_path)
    assert extra.exists() and locked.stat().st_mtime > 1
    locked.unlink()  # as where the set-up was interrupted
    assert "Setting up .venv" in set_up(tmp_path)
    assert locked.exists() and not extra.exists()
