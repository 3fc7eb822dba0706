"""What the other processes of a training take from the first one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import worker_process
from pipelines.config.jobs import MidtrainJob
from pipelines.config.settings import CONFIG_NAME, Config
from pipelines.runs.launch import Call
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.small_cycles import make_home
from tests.support.stages import PRESET


def test_settings_that_are_edited_while_a_run_trains_reach_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that read recover.yaml anew at a later training would compute otherwise than the first."""
    trained_by = list[Config]()

    def work(ws: Workspace, job: MidtrainJob, stage: Any) -> dict[str, Any]:
        trained_by.append(ws.config)
        return {}

    monkeypatch.setattr("pipelines.midtrain.work", work)
    with make_home(tmp_path) as ws:
        began_with = ws.config
        (ws.home / CONFIG_NAME).write_text("model: {path: half of a li")
        job = MidtrainJob(docs=str(tmp_path), student="base", settings=PRESET.midtrain)
        worker_process._take_part(
            Call("midtrain", "midtrain-1", ws.home, ws.tracker.db.address, began_with, job.model_dump())
        )
    assert trained_by == [began_with]


def test_processes_on_several_machines_share_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The locks of SQLite do not hold on a network file system."""
    make_home(tmp_path).tracker.close()
    monkeypatch.setenv("WORLD_SIZE", "16")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    for create in (True, False):
        with pytest.raises(InputError, match="cannot share a SQLite file: set RECOVER_DB_URL"):
            Workspace.open(tmp_path / "home", create=create)
    with pytest.raises(InputError, match="cannot share a SQLite file"):
        Workspace.open(tmp_path / "home", f"sqlite:///{tmp_path / 'home' / 'recover.db'}")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")  # on one machine
    Workspace.open(tmp_path / "home", create=False).tracker.close()
