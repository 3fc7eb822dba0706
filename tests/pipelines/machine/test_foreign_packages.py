"""Another project's `evals` or `db` is never run in place of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.machine import foreign_packages

CHECK = ("-c", "from pipelines.machine.foreign_packages import foreign_package; print(foreign_package())")


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(foreign_packages.ROOT)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("trap", ["db.py", "evals/__init__.py", "recovery/__init__.py"])
def test_a_package_of_the_current_folder_is_refused_by_name(tmp_path: Path, trap: str) -> None:
    path = tmp_path / trap
    path.parent.mkdir(exist_ok=True)
    path.write_text("print('ran')")
    refused = python(tmp_path, *CHECK)
    name = trap.partition("/")[0].removesuffix(".py")
    assert refused.stdout.startswith(f"`{name}` would be imported from"), refused.stderr
    assert python(tmp_path, "-P", *CHECK).stdout == "None\n"
    command = python(tmp_path, "-m", "pipelines.cli", "--version")
    assert (command.returncode, command.stdout) == (2, ""), command.stderr


def test_a_missing_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_packages, "find_spec", lambda name: None)
    assert "from nowhere" in (foreign_packages.foreign_package() or "")


def test_names_that_two_distributions_claim_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    owners = {"evals": ["recover-llm", "other-evals"], "db": ["recover-llm"], "numpy": ["numpy"]}
    monkeypatch.setattr(foreign_packages, "packages_distributions", lambda: owners)
    assert foreign_packages.shared_names() == {"evals": ["other-evals"]}
