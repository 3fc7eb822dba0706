"""Attacks that are tests already: run them in a child process and count them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.attacks.outcome import NotHeld

ROOT = Path(__file__).parents[2]
PASSED = re.compile(r"(\d+) passed")


def run(tests: tuple[str, ...]) -> str:
    """Return how many tests passed, given as files below tests/ or as names; every one has to."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *nodes(tests)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.strip().splitlines()
    found = PASSED.search(lines[-1]) if lines else None
    if done.returncode or found is None:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        raise NotHeld("; ".join(failed) or done.stderr.strip()[-300:] or "no test was run")
    return f"{found[1]} tests"


def nodes(tests: tuple[str, ...]) -> list[str]:
    """Return what pytest calls these tests; a name has to be that of one test."""
    return [f"tests/{test}" if test.endswith(".py") else _node(test) for test in tests]


def _node(name: str) -> str:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if f"\ndef {name}(" in path.read_text()]
    if len(files) != 1:
        raise NotHeld(f"there are {len(files)} tests of the name {name}")
    return f"{files[0].relative_to(ROOT)}::{name}"
