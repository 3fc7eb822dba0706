"""Take from this process the right to change files and to open TCP connections, by Linux's Landlock.

What is open already stays usable, and files can be read. It cannot be undone, and children inherit it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

# System calls that have the same numbers on all processors, and flags, of linux/landlock.h and linux/prctl.h
CREATE_RULESET, RESTRICT_SELF = 444, 446
ASK_VERSION = 1
NO_NEW_PRIVILEGES = 38
WRITE_FILE = 1 << 1
REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # of files, folders, links, pipes and sockets
MOVE, TRUNCATE = 1 << 13, 1 << 14  # known from versions 2 and 3 on
BIND_AND_CONNECT = 3  # of TCP; from version 4 on
ABSTRACT_SOCKETS_AND_SIGNALS = 3  # to processes outside; from version 6 on
NEWEST = 6  # of the versions that deny something here


class _Rules(ctypes.Structure):
    """What is denied where no rule allows it, and there are none."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scope", ctypes.c_uint64))


def confine() -> bool:
    """Deny what this kernel can deny; return whether that includes writing files."""
    known = version()
    if known < 1:
        return False
    rules = _rules(known)
    descriptor = _call(CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    if descriptor < 0:
        return False
    try:
        promised = ctypes.CDLL(None).prctl(NO_NEW_PRIVILEGES, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
        return promised and _call(RESTRICT_SELF, descriptor, 0) == 0
    finally:
        os.close(descriptor)


def version() -> int:
    """Return the version of this kernel's Landlock; less than 1 where it has none."""
    return _call(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)


def _call(number: int, *arguments: Any) -> int:
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), *arguments))


def _rules(known: int) -> _Rules:
    files = WRITE_FILE | REMOVE_AND_MAKE
    files |= MOVE if known >= 2 else 0
    files |= TRUNCATE if known >= 3 else 0
    network = BIND_AND_CONNECT if known >= 4 else 0
    scope = ABSTRACT_SOCKETS_AND_SIGNALS if known >= NEWEST else 0
    return _Rules(files, network, scope)
