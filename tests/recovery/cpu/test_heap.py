"""A heap that is kept: what is freed is there again without the system making it anew."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

BLOCKS = """
import resource, sys, torch
from recovery.cpu import heap
kept = heap.keep()
def turn():
    return [torch.ones(900_000) for _ in range(8)]
for _ in range(3):
    turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    turn()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def said(program: str, **environment: str) -> list[str]:
    """What a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""),
    reason="another allocator",
)
def test_what_is_freed_is_there_again() -> None:
    """The pages made while 20 times the same 28 MiB were wanted and freed."""
    kept, faults = said(BLOCKS, OMP_NUM_THREADS="1", THP_MEM_ALLOC_ENABLE="0")
    assert kept == "True"
    assert int(faults) < 2 * 900_000 * 4 * 8 / 4096  # all of it made twice would be more


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"])
def test_the_user_decides(name: str) -> None:
    assert said("from recovery.cpu import heap; print(heap.keep())", **{name: "0"}) == ["False"]
