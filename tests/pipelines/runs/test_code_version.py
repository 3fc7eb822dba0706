"""What a run records of the software that executes it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pipelines.runs import code_version
from pipelines.runs.code_version import revision_of, source_hash


@pytest.fixture(autouse=True)
def no_settings_of_the_user_s_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither signatures nor hooks, nor the repository that a hook runs for."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(folder: Path, *words: str) -> None:
    named = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *named, *words], check=True, capture_output=True)


def test_a_revision_is_that_of_the_files_own_repository(tmp_path: Path) -> None:
    """A package installed into a virtual environment inside a project has not the project's revision."""
    installed = tmp_path / ".venv" / "code_version.py"
    installed.parent.mkdir()
    installed.write_text("")
    own = tmp_path / "code_version.py"
    own.write_text("")
    assert revision_of(own) is None
    git(tmp_path, "init")
    git(tmp_path, "add", "code_version.py")
    git(tmp_path, "commit", "-m", "first")
    found = revision_of(own)
    assert found and not found.endswith("-dirty")
    assert revision_of(installed) is None
    changed = set()
    for text in ("changed", "changed again"):
        own.write_text(text)
        changed.add(revision_of(own))
    assert len(changed) == 2  # else scores of one would be taken for the other's
    assert all(str(revision).startswith(f"{found}-dirty-") for revision in changed)


def test_code_that_git_knows_nothing_of_is_named_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version of a wheel stays: scores of one state would be taken for those of another."""
    rules = tmp_path / "evals" / "rules.py"
    rules.parent.mkdir()
    rules.write_text("strict = True")
    (tmp_path / "tests").mkdir()
    first = source_hash(tmp_path)
    compiled = rules.parent / "__pycache__" / "rules.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"")
    (tmp_path / "tests" / "test_rules.py").write_text("")
    assert source_hash(tmp_path) == first
    rules.write_text("strict = None")
    changed = source_hash(tmp_path)
    (rules.parent / "words.yaml").write_text("")
    assert len({first, changed, source_hash(tmp_path)}) == 3

    monkeypatch.setattr(code_version, "revision_of", lambda file: None)
    own = code_version.code_revision.__wrapped__()
    assert own == f"source-{source_hash(Path(code_version.__file__).parents[2])}"
