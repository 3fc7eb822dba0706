"""Fixtures of tests that compose a distillation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from tests.support import tiny


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        yield ws
