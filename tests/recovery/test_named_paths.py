"""Paths with `~`, and the line on a path that cannot be opened."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from recovery.named_paths import expanded, refusal


def test_an_unknown_user_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/work") == tmp_path / "work"
    assert expanded("~no-such-user/work") == Path("~no-such-user/work")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
def test_a_path_that_cannot_be_opened_is_named_with_a_remedy(number: int) -> None:
    said = refusal(OSError(number, os.strerror(number), "there/file"))
    assert said is not None
    assert said.startswith(f"there/file cannot be opened ({os.strerror(number)}): ")


def test_other_errors_are_not_about_a_path() -> None:
    assert refusal(OSError(errno.EACCES, "Permission denied")) is None
    assert refusal(ValueError("no")) is None
    assert refusal(OSError(errno.EACCES, "Permission denied", 3)) is None  # of a file that is open
    assert refusal(FileNotFoundError(errno.ENOENT, "No such file or directory", "x")) is None
