"""The command that compiles the kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.cpu import library


def test_the_compiler_may_be_named_by_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cache", "cc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for named, found in (("cache cc -m64", ["cache", "cc", "-m64"]), (" ", ["cc"])):
        monkeypatch.setenv("CC", named)
        assert library._compiler() == [str(tmp_path / found[0]), *found[1:]]
    for named in ("'cc", "absent cc"):
        monkeypatch.setenv("CC", named)
        assert library._compiler() is None


def test_a_user_without_a_home_folder_gets_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(OSError, match="let XDG_CACHE_HOME name one"):
        library._folder()
