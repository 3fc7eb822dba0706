"""The C kernels under address and undefined-behaviour sanitizers: a wrong access ends the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.cpu import library
from tests.recovery.cpu.test_hostile_ids import CASES, script

ROOT = Path(__file__).parents[3]
SANITIZED = """
import os
del os.environ["LD_PRELOAD"]  # the compiler needs none of it
from recovery.cpu import library
library.TIMEOUT = 600
library.FLAGS = [
    "-O1", "-g", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer",
]
assert library.library() is not None
"""
SHAPES = """
import sys, pytest
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
TESTS = (
    "test_kernels.py",
    "test_llama_forward.py",
    "test_reading_in_bf16.py",
    "test_llama_decode.py",
    "test_fused_layers.py",
)
READ_IN_BF16 = """
from recovery.cpu.library import products
half, kernels = tiny.model().bfloat16(), library()
for found in [(None, None), products()] * kernels.multiplies_bf16():
    kernels.multiply_with(*found)
    Reader(half, kernels).states(Packed.of([[1, 2, 3], [4, 5]]), None).float().sum().backward()
    Reader(half, kernels).states(Packed.of([[1]]), torch.tensor([0])).float().sum().backward()
print("bf16")
"""
ASTRAY = """
import torch
from recovery.cpu.library import call
call(library.library().gates, torch.zeros(5, 8), 5, 4, torch.empty(19))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(library.library() is None, reason="no compiler here"),
]


def run(source: str, folder: Path, *given: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the sanitizers' libraries loaded before all others, and kernels of its own."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    preload = []
    for name in ("libasan.so", "libubsan.so"):
        asked = [str(compiler), f"-print-file-name={name}"]
        path = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
        if not path.is_absolute():
            pytest.skip(f"the compiler has no {name}")
        preload.append(str(path.resolve()))
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, "-c", SANITIZED + source, *given]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1500)


def test_a_wrong_access_is_seen(tmp_path: Path) -> None:
    """The check itself: a kernel that is told to write behind its output ends the process."""
    done = run(ASTRAY, tmp_path)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr


@pytest.mark.skipif(os.environ.get("RECOVER_SANITIZE") != "all", reason="many minutes: RECOVER_SANITIZE=all")
def test_every_shape_of_the_rooms_tests_is_clean(tmp_path: Path) -> None:
    here = Path(__file__).parent
    leave_out = ["-k", "not library and not compiler and not others_may_write and not shorter_vectors"]
    done = run(SHAPES, tmp_path, *leave_out, *(str(here / name) for name in TESTS))
    assert done.returncode == 0, (done.stdout[-1500:], done.stderr[-2500:])


def test_hostile_ids_and_shapes_and_odd_tokens_in_bf16_are_clean(tmp_path: Path) -> None:
    done = run(script() + READ_IN_BF16, tmp_path)
    assert done.returncode == 0, done.stderr[-2500:]
    assert done.stdout.splitlines() == [*CASES, "bf16"]
