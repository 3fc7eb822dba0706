"""Fill the disk for this process alone: from a call on, whatever is written to a file ends in ENOSPC.

A seccomp filter answers the system calls; it needs no privilege, holds for every thread and child, native
code included, and cannot be taken back. Standard output and error may be written as before.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

# write, pwrite64, writev, pwritev, pwritev2, fallocate, sendfile, copy_file_range, mkdir, mkdirat
CALLS = {
    "x86_64": (1, 18, 20, 296, 328, 285, 40, 326, 83, 258),
    "aarch64": (64, 68, 66, 70, 287, 47, 71, 285, 34),
}
SECCOMP = {"x86_64": 317, "aarch64": 277}
LOAD, EQUAL, GREATER, RETURN = 0x20, 0x15, 0x25, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
FIRST_ARGUMENT = 16  # its place in struct seccomp_data: the file, in all of these calls but mkdir
NO_NEW_PRIVILEGES, SET_FILTER, ALL_THREADS = 38, 1, 1


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def can_fill() -> bool:
    return platform.system() == "Linux" and platform.machine() in CALLS


def fill() -> None:
    """Fill the disk: files from the fourth on cannot be written any more."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = _filter(CALLS[platform.machine()])
    held = ctypes.create_string_buffer(code)
    program = _Program(len(code) // 8, ctypes.addressof(held))
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.syscall(SECCOMP[platform.machine()], SET_FILTER, ALL_THREADS, ctypes.byref(program)):
        raise OSError(ctypes.get_errno(), "the filter is refused")


def _filter(calls: tuple[int, ...]) -> bytes:
    """Return the program: these calls on a file above 2 fail, all else is allowed."""
    tests = [_step(EQUAL, len(calls) - at, 0, call) for at, call in enumerate(calls)]
    return b"".join(
        [
            _step(LOAD, 0, 0, 0),
            *tests,
            _step(RETURN, 0, 0, ALLOW),
            _step(LOAD, 0, 0, FIRST_ARGUMENT),
            _step(GREATER, 0, 1, 2),
            _step(RETURN, 0, 0, ERRNO | errno.ENOSPC),
            _step(RETURN, 0, 0, ALLOW),
        ]
    )


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
