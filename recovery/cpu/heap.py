"""Keep freed memory in the process on CPUs: what a training step frees, the next step reuses.

glibc returns the free end of its heap, and every large block, to the system; allocated again, each page is
mapped and zeroed anew. A training step frees and allocates the same hundreds of megabytes each time.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # parameters of mallopt
LARGEST = 32 * 2**20  # bytes, the largest block that glibc can take from its heap


@cache
def keep() -> bool:
    """Keep the heap from here on; return False where the environment or another allocator decides."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
