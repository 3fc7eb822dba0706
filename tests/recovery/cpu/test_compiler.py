"""The command that compiles the kernels, and what is kept of it."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from recovery.cpu import library

MADE = b"this is no library" * 20_000


class Compiler:
    """A compiler that writes MADE in place of a library, and counts how often."""

    def __init__(self, folder: Path) -> None:
        (folder / "made").write_bytes(MADE)
        self.log, program = folder / "log", folder / "cc"
        linked = f'for last; do :; done; cp {folder}/made "$last"; echo made >> {self.log}'
        program.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) {linked};; esac\n')
        program.chmod(0o755)
        self.command = [str(program)]

    def compiled(self) -> Path:
        path, handle = library._compiled(self.command, "libgomp.so")
        os.close(handle)
        return path

    def times(self) -> int:
        return len(self.log.read_text().splitlines())


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Compiler(tmp_path)


def test_a_library_that_does_not_load_is_compiled_once(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted noexec: whole, and of no use at any start."""
    monkeypatch.setattr(library, "_compiler", lambda: compiler.command)
    monkeypatch.setattr(library, "_openmp", lambda: "libgomp.so")
    for _ in range(2):
        kernels, why = library._found.__wrapped__()
        assert kernels is None
        assert f"{compiler.compiled()}: " in why
        assert why.endswith("Let XDG_CACHE_HOME name another folder")
        assert compiler.times() == 1


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "nothing written": lambda whole: b"",
    "cut off": lambda whole: whole[:200_000],
    "zeros behind its header": lambda whole: whole[:4096] + bytes(len(whole) - 4096),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_library_is_made_anew(damage: str, compiler: Compiler) -> None:
    """A power cut leaves such files; the loader itself crashes on some."""
    whole = compiler.compiled().read_bytes()
    assert whole[: len(MADE)] == MADE
    assert compiler.compiled().read_bytes() == whole
    assert compiler.times() == 1
    compiler.compiled().write_bytes(DAMAGES[damage](whole))
    assert compiler.compiled().read_bytes() == whole
    assert compiler.times() == 2


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


PACKAGES = Path(str(torch.__file__)).resolve().parents[1]


@pytest.mark.parametrize("shipped", ["torch/lib/libgomp.so.1", "torch.libs/libgomp-9a2b.so.1"])
def test_pytorchs_openmp_is_told_from_that_of_a_package_of_like_name(
    shipped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{PACKAGES}/{name}" for name in (shipped, "torchaudio.libs/libgomp.so.1")]
    maps = tmp_path / "maps"
    maps.write_text("".join(f"7f0-7f1 r-xp 0 08:01 5    {name}\n" for name in names))
    monkeypatch.setattr(library, "MAPS", maps)
    assert library._openmp() == names[0]


def test_a_user_without_a_home_folder_gets_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(OSError, match="let XDG_CACHE_HOME name one"):
        library._folder()


def test_a_library_that_others_could_have_written_is_made_anew(compiler: Compiler, tmp_path: Path) -> None:
    made = compiler.compiled()
    whole = made.read_bytes()
    assert made.stat().st_mode & 0o777 == 0o600
    made.chmod(0o660)
    assert compiler.compiled().stat().st_mode & 0o777 == 0o600
    assert compiler.times() == 2
    made.rename(tmp_path / "elsewhere")
    made.symlink_to(tmp_path / "elsewhere")
    assert not compiler.compiled().is_symlink()
    assert compiler.times() == 3
    assert made.read_bytes() == whole == MADE + hashlib.sha256(MADE).digest()


def test_what_was_checked_is_what_is_loaded(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    path, handle = library._compiled(compiler.command, "libgomp.so")
    path.unlink()
    path.write_bytes(b"another library")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(content=Path(name).read_bytes()))
    assert library._loaded(path, handle).content[:-32] == MADE
    os.close(handle)


def test_a_folder_that_others_could_have_replaced_is_refused(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compiler.compiled().parent
    cache = folder.parent
    cache.chmod(0o1777)  # as /tmp
    assert library._folder() == folder
    cache.chmod(0o777)
    with pytest.raises(OSError, match=f"{cache} can be written to by others: "):
        library._folder()
    cache.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=f"{folder} is a link: "):
        library._folder()
    folder.unlink()
    monkeypatch.setattr(os, "getuid", lambda: folder.parent.stat().st_uid + 1)
    with pytest.raises(OSError, match=f"{folder} belongs to another user: "):
        library._folder()
