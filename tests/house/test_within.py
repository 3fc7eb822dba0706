"""`--within` begins no test later, and says how many it left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_TEST = "tests/recovery/models/test_device.py"


@pytest.mark.parametrize(("seconds", "said"), [("0", "over: 2\n"), ("600", "2 passed")])
def test_no_test_begins_later(seconds: str, said: str) -> None:
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--within",
        seconds,
        "tests/recovery/models/test_device.py",
    ]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said in done.stdout
