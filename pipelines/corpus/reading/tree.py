"""Walk a folder's files in the order of their names, and open them so that nothing outside it is ever read.

Every name is opened relative to the descriptor of its folder and never through a link, so a name that is
swapped during the walk cannot lead out of it. Folders may be nested thousands of levels deep.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from recovery.errors import InputError
from recovery.named_paths import refusal

OPEN_FOLDERS = 32  # descriptors held at once, whatever the depth
LONGEST_SHOWN = 600  # characters of a path, of up to four bytes: an index of PostgreSQL takes some 2,700
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
HIDDEN = "hidden: its name begins with a dot"
COMPANIONS = ("probes", "prompts", "ifeval")  # beside a folder of documents: how to measure it
# At the top: training on them would teach what the verdict asks, or what recovery asks.
ASKED = {"qa.jsonl", *(f"{name}.jsonl" for name in COMPANIONS)}
QUESTIONS = "questions or prompts to be asked, not a document"
NO_DOCUMENTS = (HIDDEN, QUESTIONS)
LEFT_OUT = "left out, as midtrain.reading.leave_out says"
LEFT_ALONE = (*NO_DOCUMENTS, LEFT_OUT)  # reasons that nothing is wrong with


def beside(folder: Path, name: str) -> Path:
    """Return the place of a file beside a folder; of a link, beside itself first, then where it leads."""
    real = folder.resolve()
    named = (real if folder.name == ".." else folder.absolute()).parent.resolve() / name
    return named if named.exists() else real.parent / name


def require_folder(root: Path) -> None:
    """Refuse what is no folder, or cannot be entered."""
    with Tree(root):
        pass


def companions(docs: Path) -> dict[str, str]:
    """Return the files beside a folder of documents that say how to measure it, by name."""
    found = {name: beside(docs, f"{name}.jsonl") for name in COMPANIONS}
    return {name: str(path) for name, path in found.items() if path.is_file()}


def is_left_out(path: str, patterns: Collection[str]) -> bool:
    """Return whether a pattern names a path in the folder; without a slash, or behind `**/`, at any depth."""
    return any(_names(pattern, path) for pattern in patterns)


def _names(pattern: str, path: str) -> bool:
    wanted = pattern.removeprefix("./").rstrip("/")
    behind = wanted.removeprefix("**/")
    if "/" not in behind:
        return fnmatchcase(path.rpartition("/")[2], behind)
    if behind != wanted:
        return fnmatchcase(path, behind) or fnmatchcase(path, f"*/{behind}")
    return fnmatchcase(path, wanted.removeprefix("/"))


def is_read(path: str, leave_out: Collection[str]) -> bool:
    """Return whether a name in the folder is neither hidden nor left out."""
    return not (path.rpartition("/")[2].startswith(".") or is_left_out(path, leave_out))


@dataclass
class Entry:
    """One name in the folder: an open file, or the reason for skipping it."""

    path: str  # printable, relative to the root
    name: str
    reason: str | None = None
    handle: int = -1
    size: int = 0
    weight: int = 0  # bytes of it in `extent`

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
            self.handle = -1


@dataclass(eq=False)
class _Folder:
    parent: _Folder | None
    name: str
    path: str
    handle: int = -1


class Tree:
    """The walk over one folder; a context manager, as it keeps descriptors open.

    What `leave_out` names is yielded with that as its reason, and a folder is not walked.
    """

    def __init__(self, root: Path, leave_out: Collection[str] = ()) -> None:
        try:
            self.real = os.path.realpath(root, strict=True)
            top = os.open(self.real, FOLDER)
        except (OSError, ValueError) as error:
            closed = refusal(error) if isinstance(error, PermissionError) else None
            problem = closed or f"{str(root)!r} is not a folder: give a folder of documents"
            raise InputError(problem) from error
        self.top = _Folder(None, "", "", top)
        self._held: list[_Folder] = []
        self._leave_out = leave_out

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_: object) -> None:
        for folder in [self.top, *self._held]:
            os.close(folder.handle)

    def entries(self) -> Iterator[Entry]:
        """Yield every name, a folder's files before its folders; the caller closes the entries."""
        waiting = [self.top]
        while waiting:
            folder = waiting.pop()
            try:
                listed = os.listdir(self._open(folder))  # noqa: PTH208 - by descriptor
            except OSError as error:
                reason = f"a folder that cannot be listed: {error.strerror}"
                yield Entry(shown(folder.path) or ".", folder.name, reason)
                continue
            below = []
            for name in sorted(listed):
                entry = self._entry(folder, name)
                if entry is None:
                    below.append(_Folder(folder, name, f"{folder.path}{name}/"))
                else:
                    yield entry
            waiting += reversed(below)

    def _entry(self, folder: _Folder, name: str) -> Entry | None:
        """Open a file; return None for a folder, which is walked later."""
        entry = Entry(shown(folder.path + name), name)
        try:
            place = self._open(folder)
            info = os.stat(name, dir_fd=place, follow_symlinks=False)
            entry.size = info.st_size
            entry.reason = self._no_document(folder, name) or self._refused(folder, name, info)
            if entry.reason is None and stat.S_ISDIR(info.st_mode):
                return None
            if entry.reason is None:
                entry.weight = _on_disk(info)
                entry.handle = os.open(name, FILE, dir_fd=place)
                _check_regular(entry)
        except OSError as error:
            entry.close()
            linked = error.errno == errno.ELOOP
            entry.reason = "a link" if linked else f"cannot be read: {error.strerror}"
        return entry

    def _no_document(self, folder: _Folder, name: str) -> str | None:
        if name.startswith("."):
            return HIDDEN
        if is_left_out(folder.path + name, self._leave_out):
            return LEFT_OUT
        return QUESTIONS if folder is self.top and name in ASKED else None

    def _refused(self, folder: _Folder, name: str, info: os.stat_result) -> str | None:
        """Return why a name is not opened: a fifo would block, a link may lead out of the folder."""
        if stat.S_ISLNK(info.st_mode):
            return self._link(folder, name)
        return None if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode) else "not a regular file"

    def _link(self, folder: _Folder, name: str) -> str:
        """Return the message for a link, which is never followed."""
        with suppress(OSError, ValueError):
            there = os.path.realpath(f"{self.real}/{folder.path}{name}")
            if there == self.real:
                return "a link to the folder itself"
            if os.path.commonpath([there, self.real]) == self.real:
                return _linked_inside(there)
        return "a link that leads out of the folder"

    def _open(self, folder: _Folder) -> int:
        """Return the folder's descriptor; reopen it from its nearest open ancestor if it was closed."""
        missing = []
        while folder.handle < 0:
            missing.append(folder)
            assert folder.parent is not None
            folder = folder.parent
        for child in reversed(missing):
            child.handle = os.open(child.name, FOLDER, dir_fd=folder.handle)
            self._held.append(child)
            if len(self._held) > OPEN_FOLDERS:
                oldest = self._held.pop(0)
                os.close(oldest.handle)
                oldest.handle = -1
            folder = child
        return folder.handle


def _linked_inside(there: str) -> str:
    """Name what a link inside the folder leads to; a link to itself leads nowhere."""
    try:
        mode = os.lstat(there).st_mode
    except OSError:
        return "a link that leads nowhere"
    if stat.S_ISLNK(mode):
        return "a link that leads nowhere"
    return f"a link to a {'folder' if stat.S_ISDIR(mode) else 'file'} of the folder"


def _check_regular(entry: Entry) -> None:
    """Check the opened file again: the name may have been replaced since it was examined."""
    info = os.fstat(entry.handle)
    entry.size = info.st_size
    if not stat.S_ISREG(info.st_mode):
        entry.close()
        entry.reason = "not a regular file"


def shown(path: str) -> str:
    """Return a name as one printable line, different for different names, shortened in the middle."""
    if not path.isprintable() or "\\" in path:
        path = "".join(
            c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in path
        )
    if len(path) > LONGEST_SHOWN:
        import hashlib

        middle = hashlib.sha256(path.encode()).hexdigest()[:16]
        path = f"{path[: LONGEST_SHOWN // 2]}…{middle}…{path[-LONGEST_SHOWN // 3 :]}"
    return path.rstrip("/") if path.endswith("/") else path


def extent(root: Path, leave_out: Collection[str] = ()) -> tuple[int, int]:
    """Count the names that a walk yields, and the bytes of its files, without opening any."""
    count = size = 0
    waiting: list[tuple[str | Path, str]] = [(root, "")]  # folders, each with its path seen from the root
    while waiting:
        folder, path = waiting.pop()
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                wanted = is_read(path + entry.name, leave_out)
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False) and wanted:
                        waiting.append((entry.path, f"{path}{entry.name}/"))
                        continue
                    count += 1
                    if entry.is_file(follow_symlinks=False) and wanted:
                        size += _on_disk(entry.stat(follow_symlinks=False))
    return count, size


def _on_disk(info: os.stat_result) -> int:
    """Return how many bytes of a file there are to read: holes cost nothing."""
    return min(info.st_size, info.st_blocks * 512)
