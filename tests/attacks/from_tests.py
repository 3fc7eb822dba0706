"""Attacks that are tests already: run them in a child process and count them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.attacks.outcome import LeftOut, NotHeld

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest", "-q", "-rsfE", "--no-header", "-p", "no:cacheprovider")
COUNTS = re.compile(r"(\d+) (passed|skipped)")
SKIPPED = re.compile(r"^SKIPPED \[\d+\] \S+: (.+)$")


def run(tests: tuple[str, ...]) -> str:
    """Return how many tests passed, given as files below tests/ or as names; all that can be run have to."""
    done = subprocess.run(
        [*PYTEST, *nodes(tests)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    lines = done.stdout.strip().splitlines()
    counts = {name: int(count) for count, name in COUNTS.findall(lines[-1])} if lines else {}
    if done.returncode or not counts:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        raise NotHeld("; ".join(failed) or done.stderr.strip()[-300:] or "no test was run")
    skipped = _skipped(counts.get("skipped", 0), lines)
    if "passed" not in counts:
        raise LeftOut(skipped)
    return ", ".join(filter(None, (f"{counts['passed']} tests", skipped)))


def _skipped(count: int, lines: list[str]) -> str:
    """Return how many tests were skipped, and why; nothing where none was."""
    reasons = {found[1]: None for line in lines if (found := SKIPPED.match(line))}
    return f"{count} skipped ({'; '.join(reasons)})" if count else ""


def nodes(tests: tuple[str, ...]) -> list[str]:
    """Return what pytest calls these tests; a name has to be that of one test."""
    return [f"tests/{test}" if test.endswith(".py") else _node(test) for test in tests]


def _node(name: str) -> str:
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if f"\ndef {name}(" in path.read_text()]
    if len(files) != 1:
        raise NotHeld(f"there are {len(files)} tests of the name {name}")
    return f"{files[0].relative_to(ROOT)}::{name}"
