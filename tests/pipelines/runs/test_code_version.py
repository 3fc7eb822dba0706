"""What a run records of the software that executes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pipelines.runs.code_version import revision_of


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
