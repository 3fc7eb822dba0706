"""Attacks that are tests already: run them in a child process and count them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.attacks.attack import Attack, NotHeld, Size

ROOT = Path(__file__).parents[2]
PASSED = re.compile(r"(\d+) passed")


def by_tests(name: str, promise: str, *tests: str) -> Attack:
    """Return an attack that holds where these tests pass, given as FILE or FILE::TEST below tests/."""

    def run(size: Size) -> str:
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

    return Attack(name, promise, run, of_tests=True)


def nodes(tests: tuple[str, ...]) -> list[str]:
    return [f"tests/{test}" for test in tests]
