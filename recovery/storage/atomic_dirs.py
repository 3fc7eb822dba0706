"""Directories and files that are either whole or absent. No torch here.

A directory is written under `tmp-*`, flushed to the disk, then renamed: a kill at any moment leaves
either the old state or the new one. A locked file beside it says that its writer lives; leftovers of killed
writers are swept by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from recovery import untrusted_json
from recovery.errors import DamagedCheckpoint, RecoverError
from recovery.storage.file_hashes import digest

locks: Any = None  # where a system has no advisory locks, leftovers are never swept
with suppress(ImportError):
    import fcntl as locks

TEMPORARY = "tmp-"
SCRATCH = re.compile(r"\..+\.[0-9a-f]{8}")  # a file while `whole_file` writes it
FRESH = 60.0  # seconds in which a writer makes the directory that it has marked
SEAL = "manifest_sha256"
FULL = ("No space left on device", "Disk quota exceeded")  # what the system says of a full disk


@contextmanager
def new_directory(root: Path, prefix: str = TEMPORARY, *, lockless: bool = False) -> Iterator[Path]:
    """Create a directory `tmp-*` (or with another prefix); remove it at the end unless it was renamed.

    Storage errors (disk full, no permission) come out as one-line RecoverErrors. `lockless` goes on where the
    file system has no locks: what a killed writer leaves there stays.
    """
    with storage_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root, prefix)
        directory = root / f"{prefix}{os.getpid()}-{secrets.token_hex(6)}"
        handle = _hold(directory, lockless)
    try:
        with storage_errors(root):
            directory.mkdir()
            yield directory
    finally:
        if directory.exists():
            shutil.rmtree(directory, ignore_errors=True)
        if handle is not None:
            os.close(handle)
            _mark(directory).unlink(missing_ok=True)


@contextmanager
def storage_errors(place: Path) -> Iterator[None]:
    """Turn what a full or unwritable disk raises, directly or inside safetensors, into one clear line."""
    try:
        yield
    except RecoverError:
        raise
    except Exception as error:
        if disk_full(error):
            raise full_disk(place) from error
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            message = f"{place}: cannot write there ({reason}): check the path and its rights"
            raise RecoverError(message) from error
        raise


def nearest(place: Path) -> Path:
    """Return a place, or the nearest folder above it that is there."""
    return next(path for path in (place, *place.parents) if path.exists())


def full_disk(place: Path | str | None) -> RecoverError:
    """Return the error that says that the disk is full, and where, if that is known."""
    where = "" if place is None else f"{place}: "
    return RecoverError(f"{where}the disk is full: free some space and run it again")


def disk_full(error: BaseException) -> bool:
    """Return whether an error, also one from a library's native code, means that the disk is full."""
    number = getattr(error, "errno", None)
    return number in (errno.ENOSPC, errno.EDQUOT) or any(words in str(error) for words in FULL)


def publish(directory: Path, target: Path) -> bool:
    """Flush `directory` and rename it to `target`; False when a whole `target` was already there."""
    flush(directory)
    try:
        directory.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    flush_entry(target.parent)
    return True


def replace(directory: Path, target: Path) -> None:
    """Flush `directory` and rename it to `target`, in place of one that may be there.

    A kill at any moment leaves one of both whole: the one that is there stays while the other is flushed,
    which may take minutes; between the two renamings it is `target.old`, where readers find it too.
    """
    flush(directory)
    old = target.with_name(f"{target.name}.old")
    if target.exists():
        remove(old)
        target.rename(old)
    directory.rename(target)
    flush_entry(target.parent)
    remove(old)


def remove(target: Path) -> None:
    """Remove a directory in one step; the next writer in that folder sweeps what a kill left."""
    if target.exists():
        aside = target.parent / f"{TEMPORARY}aside-{secrets.token_hex(6)}"
        target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def flush(directory: Path) -> None:
    """Call fsync on every file and folder under `directory`, and on itself."""
    for folder, _, names in os.walk(directory):
        for name in names:
            flush_entry(Path(folder, name))
        flush_entry(Path(folder))


def flush_entry(path: Path) -> None:
    """Call fsync on one file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def without_locks(place: Path, error: OSError) -> RecoverError:
    """Return the refusal of a place whose file system knows no locks."""
    return RecoverError(
        f"{place}: its file system has no locks ({error.strerror}), which keep two processes from "
        "writing the same files: put the home on a local disk, or mount this with locks (Lustre: -o flock)"
    )


def _mark(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.lock")


def _marked(mark: Path) -> Path:
    return mark.with_name(mark.name.removeprefix(".").removesuffix(".lock"))


def _hold(directory: Path, lockless: bool) -> int | None:
    """Mark a directory as being written, before it is made: the lock ends with the process, however it ends.

    The lock is on a file, as on NFS each machine knows only its own locks of folders. It is held first, so
    that no other writer takes the directory for a leftover.
    """
    if locks is None:
        return None
    mark = _mark(directory)
    handle = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        locks.flock(handle, locks.LOCK_EX | locks.LOCK_NB)
    except OSError as error:
        os.close(handle)
        mark.unlink(missing_ok=True)
        if lockless:
            return None
        raise without_locks(directory.parent, error) from error
    return handle


def _sweep(root: Path, prefix: str) -> None:
    """Remove the temporary directories whose writer is gone, and marks of directories that are."""
    if locks is None:
        return
    long_ago = time.time() - FRESH
    marks = [mark for mark in root.glob(f".{prefix}*.lock") if _is_older(mark, long_ago)]
    for leftover in {*root.glob(f"{prefix}*"), *(_marked(mark) for mark in marks)}:
        with suppress(OSError):  # its writer lives, or it has just ended
            _sweep_unheld(leftover)


def _is_older(mark: Path, moment: float) -> bool:
    """Return whether a mark is from before a moment; not one that its writer has removed meanwhile."""
    try:
        return mark.stat().st_mtime < moment
    except OSError:
        return False


def _sweep_unheld(leftover: Path) -> None:
    """Remove a directory that no process holds; raise OSError for one that is held."""
    mark = _mark(leftover)
    # One without a mark is that of an earlier version, which locked the directory itself, or was put aside.
    place, access = (mark, os.O_RDWR) if mark.exists() else (leftover, os.O_RDONLY)
    handle = os.open(place, access | os.O_NOFOLLOW)
    try:
        locks.flock(handle, locks.LOCK_EX | locks.LOCK_NB)
        shutil.rmtree(leftover, ignore_errors=True)
        mark.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _open_already(path: Path) -> int | None:
    """Return the number of the open file that a path such as /dev/stdout stands for."""
    named = {"/dev/stdout": 1, "/dev/stderr": 2}.get(str(path))
    numbered = re.fullmatch(r"/(?:dev|proc/self)/fd/([0-9]+)", str(path))
    return int(numbered[1]) if numbered else named


@contextmanager
def whole_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a scratch file that replaces `path` in one step when the block ends; after an error it is removed.

    Durable files are flushed to the disk first, and survive a power cut too. A link stays, and what it leads
    to is replaced. What is there and is no file, such as a pipe, is written to as it is, and so is a file
    that is open already, as /dev/stdout may be.
    """
    target, handle = Path(os.path.realpath(path)), _open_already(path)
    if handle is not None or (path.exists() and not target.is_file()):
        with open(path if handle is None else os.dup(handle), "wb") as file:
            yield file
        return
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        scratch.replace(target)
        if durable:
            flush_entry(target.parent)
    finally:
        scratch.unlink(missing_ok=True)


def sweep_files(directory: Path) -> None:
    """Remove the files that killed writers left unfinished, in a directory with no other writer now."""
    for leftover in directory.glob(".*"):
        if SCRATCH.fullmatch(leftover.name) and leftover.is_file():
            leftover.unlink(missing_ok=True)


def write_text(path: Path, text: str, *, durable: bool = True) -> None:
    """Replace a text file in one step."""
    with whole_file(path, durable=durable) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace a file by readable JSON in one step."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """Replace a file by JSON that carries its own hash, so that a changed byte in it shows."""
    write_json(path, {**value, SEAL: digest(value)})


def read_sealed(label: str, path: Path) -> dict[str, Any]:
    """Return what `write_sealed` wrote; raise DamagedCheckpoint naming a changed file."""
    try:
        value = untrusted_json.parse_object(path.read_bytes())
        seal = value.pop(SEAL)
        sealed = digest(value)
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise DamagedCheckpoint(f"{label}: {path.name} is missing or unreadable: use another one") from error
    if seal != sealed:
        raise DamagedCheckpoint(f"{label}: {path.name} has changed bytes: it is damaged, use another one")
    return value
