"""Where `init` looks for a clean model whose files are gone, and what a copy of it changes: nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from pipelines.config import settings as config
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError, RecoverError
from tests.support import tiny

FIRST, LATER = "a" * 40, "b" * 40
SHIPPED = "pipelines.microworld.shipped_model.shipped_model"


def hub(snapshots: Path, newest: Callable[[], str]) -> Callable[..., str]:
    """A hub of which every download puts a commit's files into the cache."""

    def download(name: str, *, revision: str | None, **_: Any) -> str:
        commit = revision or newest()
        return str(tiny.save(snapshots / commit, seed=int(commit == LATER)))

    return download


@pytest.fixture
def hub_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose model came from a hub that has moved on since, and is no longer in the cache."""
    commits = [LATER, FIRST]
    snapshots = tmp_path / "snapshots"
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub(snapshots, lambda: commits[-1]))
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model="owner/name", preset="microworld")
        assert ws.clean().path == snapshots / FIRST
    commits.pop()
    shutil.rmtree(snapshots)
    return tmp_path / "home"


def test_a_hub_model_is_found_again_at_its_commit(hub_home: Path) -> None:
    with Workspace.open(hub_home) as ws:
        with pytest.raises(RecoverError, match="no longer at"):
            ws.clean()
        initialise(ws, model="owner/name")
        assert ws.clean().path.name == FIRST
        assert ws.clean().config == {"model": "owner/name", "revision": FIRST, "asked": None}


def test_a_revision_in_recover_yaml_that_is_another_is_read_and_refused(hub_home: Path) -> None:
    settings = hub_home / config.CONFIG_NAME
    text = settings.read_text()
    assert '  path: "owner/name"' in text
    settings.write_text(text.replace('  path: "owner/name"', f'  path: "owner/name"\n  revision: "{LATER}"'))
    with Workspace.open(hub_home) as ws:
        with pytest.raises(InputError, match=rf"registered as \(owner/name at {FIRST}\): put that one there"):
            initialise(ws)


def test_the_shipped_model_is_found_in_a_moved_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = tiny.save(tmp_path / "old")
    monkeypatch.setattr(SHIPPED, lambda: shipped)
    with Workspace.open(tmp_path / "home") as ws:
        base = initialise(ws)["base"]
    moved = shipped.rename(tmp_path / "new")
    monkeypatch.setattr(SHIPPED, lambda: moved)
    with Workspace.open(tmp_path / "home") as ws:
        assert initialise(ws, model="microworld")["base"] == base
        assert ws.clean().path == moved


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[tuple[Workspace, Path, Path]]:
    """A home, the folder of its clean model, and a copy of that folder."""
    model = tiny.save(tmp_path / "model")
    copy = shutil.copytree(model, tmp_path / "copy")
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(model), preset="microworld")
        yield ws, model, copy


def test_a_copy_of_the_clean_model_does_not_take_its_place(copied: tuple[Workspace, Path, Path]) -> None:
    ws, model, copy = copied
    clean = ws.clean()
    assert ws.checkpoint(str(copy)) == clean == ws.clean()
    shutil.rmtree(copy)
    assert initialise(ws, model=str(model))["base"] == ws.clean().id


def test_a_clean_model_that_a_copy_had_replaced_is_registered_again(
    copied: tuple[Workspace, Path, Path],
) -> None:
    ws, model, copy = copied
    clean = ws.clean()
    ws.store.reference(copy, anew=True)
    initialise(ws, model=str(model))
    assert (ws.clean().path, ws.clean().config) == (model, clean.config)


@pytest.mark.parametrize("model", [None, "microworld", "./model", "model.gguf"])
def test_a_revision_of_a_model_that_is_not_of_the_hub_is_refused(
    model: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    with Workspace.open(tmp_path / "home") as ws:
        with pytest.raises(InputError, match=r"--revision v2: only models of the hub have revisions"):
            initialise(ws, model=model, revision="v2")
    assert not (tmp_path / "home" / config.CONFIG_NAME).exists()
