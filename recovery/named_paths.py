"""Paths as a user names them: `~` in them, and one line on those that cannot be opened. No torch here."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# What the system says of a path that is there, or is asked for, and cannot be opened as wanted.
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
MISLED = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)


def expanded(place: str | os.PathLike[str]) -> Path:
    """Return a path with the user's own folder for `~`; as it is where that user is not known."""
    return Path(os.path.expanduser(place))  # noqa: PTH111 - Path's own fails where it does not know the user


def folder(place: str | os.PathLike[str]) -> Path:
    """Return a folder as it is named, links included; one that is named `..` by its real name, as the folder
    that it lies in could not be told from that."""
    found = expanded(place)
    return found.resolve() if found.name == ".." else found


def refusal(error: BaseException) -> str | None:
    """Return what is wrong with the path that an error names, and what to do; None for any other error."""
    if not isinstance(error, OSError) or not isinstance(error.filename, (str, bytes)):
        return None
    if error.errno not in (*CLOSED, *MISLED):
        return None
    remedy = "mount it for writing, or name another" if error.errno == errno.EROFS else "name another"
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = "change its rights or those of the folders above it, or name another"
    return f"{os.fsdecode(error.filename)} cannot be opened ({error.strerror}): {remedy}"


def why_closed(place: Path) -> str | None:
    """Return what keeps a path from being looked at, such as a closed folder above it; else None."""
    try:
        place.stat()
    except PermissionError as error:
        return f"{place} cannot be opened ({error.strerror})"
    except OSError:  # absent, or no folder: other checks say so
        return None
    return None
