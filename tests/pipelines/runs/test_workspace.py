"""A home: what names a checkpoint of it, and which database is its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from db.reads import queries
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from tests.support import tiny
from tests.support.databases import BACKENDS, new_database


@pytest.mark.parametrize("kind", ["full", "adapter"])
def test_a_checkpoint_that_is_named_by_its_folder_in_the_home_keeps_its_lineage(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It was taken for a model from elsewhere: what it had learned was neither guarded nor replayed."""
    clean = ws.clean()
    run = ws.tracker.start_run("midtrain").id
    made = ws.store.publish(
        lambda folder: write_model(clean.path, folder),
        parent=clean.id,
        base=clean.id if kind == "adapter" else None,
    )
    ws.record(made, run)
    (tmp_path / "linked").symlink_to(ws.home)
    monkeypatch.chdir(tmp_path)
    for home in (ws.home, "./home", "linked"):
        assert ws.checkpoint(f"{home}/checkpoints/{made.id}") == made
    assert ws.checkpoint(str(ws.store.root / clean.id)) == clean
    assert {row["id"] for row in queries.checkpoints(ws.tracker.db)} == {clean.id, made.id}
    assert [row["id"] for row in ws.midtraining_runs(ws.checkpoint(str(made.path)).id)] == [run]


def write_model(source: Path, folder: Path) -> None:
    """Write files of other bytes than those of the source."""
    shutil.copy(source / "model.safetensors", folder)
    (folder / "config.json").write_text("{}")


def test_a_tokenizer_is_read_once_for_the_same_checkpoint_and_settings(ws: Workspace) -> None:
    clean = ws.clean()
    first = ws.encoder(clean)
    assert ws.encoder(clean) is first
    settings = ws.home / "recover.yaml"
    text = settings.read_text()
    settings.write_text(text.replace("model:\n", "model:\n  template_args: {enable_thinking: false}\n", 1))
    vars(ws).pop("config", None)
    other = ws.encoder(clean)
    turns = [{"role": "user", "content": "a"}]
    assert other.prompt_text(turns) == first.prompt_text(turns) + "<think>\n\n</think>\n\n"


def test_a_database_behind_a_link_is_noted_by_the_link(tmp_path: Path) -> None:
    """It may point to another disk later."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    link, home = tmp_path / "disk", tmp_path / "home"
    link.symlink_to("one")
    with Workspace.open(home, str(link / "x.db")) as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
    shutil.move(tmp_path / "one" / "x.db", tmp_path / "two" / "x.db")
    link.unlink()
    link.symlink_to("two")
    with Workspace.open(home, create=False) as ws:
        assert ws.clean().path == tmp_path / "model"


@pytest.mark.parametrize("backend", BACKENDS)
def test_init_notes_a_changed_password_of_its_database(backend: str, tmp_path: Path) -> None:
    """Any other spelling of the address stands for the one before."""
    note = tmp_path / "home" / "database.url"
    model = str(tiny.save(tmp_path / "model"))
    with new_database(backend, tmp_path) as where:
        for noted in ("", f"{where}?before"):
            if noted:
                note.write_text(noted)
            with Workspace.open(note.parent, where) as ws:
                initialise(ws, model=model)
                ws.note_database(where)
            assert note.read_text().strip() == where
        with Workspace.open(note.parent, create=False) as ws:
            assert ws.clean().path == tmp_path / "model"
