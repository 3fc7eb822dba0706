"""What the speed benchmarks share."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed
from benchmarks.common import Contender

(PLACE,) = speed.__path__
NAMES = [path.stem for path in Path(PLACE).glob("*.py") if '"--child" in' in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", NAMES)
def test_a_contender_runs_a_module_that_exists(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)

    monkeypatch.setattr(subprocess, "run", run)
    Contender(print, {}).apart(name, "a")
    ((_, _, module, *rest),) = commands
    assert find_spec(module) is not None
    assert rest == ["--child", "a"]
