"""What `recover show` and `recover ls` print of a checkpoint: where its files are, not where they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines import Home
from pipelines.prune import prune
from pipelines.runs.recorded import recorded
from pipelines.runs.workspace import Workspace
from tests.support.commands import Recover
from tests.support.small_cycles import make_home


@pytest.fixture
def made(tmp_path: Path) -> str:
    """The id of a checkpoint that nothing needs, in a home that was moved after it was made."""
    with make_home(tmp_path) as ws:
        clean = ws.clean()

        def write(folder: Path) -> None:
            shutil.copytree(clean.path, folder, dirs_exist_ok=True)
            (folder / "notes.txt").write_text("unlike the clean model")

        run = ws.tracker.start_run("merge").id
        checkpoint = ws.publish_files(write, parent=clean, run_id=run, config={})
        assert recorded(ws, checkpoint.id)["path"] == str(checkpoint.path)
    (tmp_path / "home").rename(tmp_path / "moved")
    return checkpoint.id


def test_a_moved_home_names_its_own_folder(made: str, tmp_path: Path) -> None:
    with Home.open(tmp_path / "moved", quiet=True) as home:
        assert home.show(made)["path"] == str(tmp_path / "moved" / "checkpoints" / made)
        assert Path(home.show("base")["path"]).samefile(tmp_path / "model")


def test_a_list_says_the_same_of_each_checkpoint(made: str, tmp_path: Path, recover: Recover) -> None:
    home = tmp_path / "moved"
    listed = recover("--home", home, "ls", "checkpoints", "--json").json
    assert [row["id"] for row in listed][1:] == [made]
    assert listed == [recover("--home", home, "show", row["id"], "--json").json for row in listed]
    with Workspace.open(home, create=False) as ws:
        ws.store.remove(made)
    (_, gone) = recover("--home", home, "ls", "checkpoints", "--json").json
    assert gone == recover("--home", home, "show", made, "--json").json
    assert gone["path"] is None


def test_a_checkpoint_whose_files_are_gone_has_no_path(made: str, tmp_path: Path, recover: Recover) -> None:
    home = tmp_path / "moved"
    with Workspace.open(home, create=False) as ws:
        assert [row["id"] for row in prune(ws, remove=True)["checkpoints"]] == [made]
        other = ws.tracker.new_project("notes", "host:/notes")
        other.record_checkpoint(made, path="/notes/checkpoints/made", kind="full", sha256="x")
    shown = recover("--home", home, "show", made, "--json").json
    assert shown["path"] is None
    assert shown["places"] == [{"project": "notes", "home": "host:/notes", "path": "/notes/checkpoints/made"}]
    text = recover("--home", home, "show", made).out
    assert "path: not in this home\n" in text and "path: /notes/checkpoints/made\n" in text
    page = Path(__file__).parents[3] / "docs" / "json.md"
    (row,) = [line for line in page.read_text(encoding="utf-8").splitlines() if "`show CHECKPOINT`" in line]
    named = {"path", "places", "id", "kind", "parent_id", "base_id", "run_id", "config", "aliases"}
    assert named <= shown.keys() and all(f"`{name}`" in row for name in named)
