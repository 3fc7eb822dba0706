"""Memory on CPUs: what a step frees, the next step gets.

glibc gives the free end of its heap back to the system, and large blocks at once; wanted again, every page of
them is made and zeroed anew. A training step frees and wants the same hundreds of megabytes each time.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

SWITCH = "RECOVER_HEAP"  # 0: leave everything as it is
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt
LARGEST = 32 * 2**20  # the largest block that glibc takes from its heap


@cache
def keep() -> bool:
    """Whether this process keeps its heap from here on; not where the user or another allocator decides."""
    asked = any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"))
    if asked or os.environ.get(SWITCH) == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
