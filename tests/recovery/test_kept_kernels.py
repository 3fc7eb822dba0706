"""oneDNN's kernels: a process that multiplies matrices of ever new sizes keeps only some of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

PRODUCTS = """
import ctypes, random
import recovery, torch

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]  # the eighth: bytes in use

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Heap
weight = torch.ones(384, 192)
sizes = list(range(200, 1000))
random.Random(0).shuffle(sizes)

def in_use(sizes):
    for rows in sizes:
        torch.ops.mkldnn._linear_pointwise(torch.ones(rows, 192), weight, None, "none", [], "")
    return mallinfo2().h

filled = in_use(sizes[:200])
print(in_use(sizes[200:]) - filled)
"""


def _growth(**environment: str) -> int:
    """Return the bytes that 600 products of new sizes leave in use, after 200 others."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCTS],
        env={**kept, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
@pytest.mark.skipif(
    "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="another allocator cannot be asked"
)
def test_new_sizes_of_products_do_not_add_up_in_memory() -> None:
    assert _growth() < 20 * 2**20


def test_the_environment_takes_precedence() -> None:
    code = "import os, recovery; print(os.environ['LRU_CACHE_CAPACITY'])"
    environment = {**os.environ, "LRU_CACHE_CAPACITY": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "7"
