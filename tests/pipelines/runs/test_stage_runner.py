"""A run that ends, is killed or is resumed, and the home that it is recorded in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from db.errors import TrackerError
from db.reads import queries
from db.schema import DEFAULT_PROJECT, Run
from pipelines.runs.stage_runner import Stage, run_stage
from pipelines.runs.workspace import Workspace, database_of


def test_a_kill_right_after_the_end_leaves_no_training_state(tmp_path: Path) -> None:
    """Between "done" and the removal of the state, which is several times the model's size."""

    def work(stage: Stage) -> dict[str, int]:
        stage.state.mkdir()
        return {"made": 1}

    with Workspace.open(tmp_path) as ws:
        run_stage(ws, "midtrain", work, config={}, key="one")
        (run,) = queries.runs(ws.tracker.db)
        state = ws.run_directory(run["id"]) / "state"
        assert not state.exists()
        state.mkdir()  # killed before it was removed
        assert run_stage(ws, "midtrain", work, config={}, key="one") == {"made": 1}
        assert not state.exists()


def test_a_finished_run_leaves_no_training_state_of_one_below_it_that_failed(tmp_path: Path) -> None:
    """It may have done without that one, which is never resumed then."""

    def fail(stage: Stage) -> dict[str, int]:
        stage.state.mkdir(exist_ok=True)
        raise RuntimeError("cut off")

    def do_without(stage: Stage) -> dict[str, int]:
        with pytest.raises(RuntimeError):
            run_stage(stage.workspace, "distill", fail, config={}, parent=stage.id, key="one")
        if not stage.resumed:
            raise KeyboardInterrupt
        return {"made": 1}

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "choose", do_without, config={}, key="one")
        (failed,) = queries.runs(ws.tracker.db, kind="distill")
        state = ws.run_directory(failed["id"]) / "state"
        assert state.is_dir()
        run_stage(ws, "choose", do_without, config={}, key="one")
        assert not state.exists()


def test_a_run_that_another_process_ends_meanwhile_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading that it is unfinished and holding its lock: it has no state left to go on from."""

    def work(stage: Stage) -> dict[str, int]:
        raise AssertionError("worked again")

    with Workspace.open(tmp_path) as ws:
        start = ws.tracker.start_run

        def start_late(*named: Any, **columns: Any) -> Run:
            run = start(*named, **columns)
            ws.tracker.finish_run(run.id, {"made": 1}, cost={"seconds": 5.0})
            return run

        monkeypatch.setattr(ws.tracker, "start_run", start_late)
        assert run_stage(ws, "midtrain", work, config={}, key="one") == {"made": 1}
        (run,) = queries.runs(ws.tracker.db)
        assert run["status"] == "done" and run["cost"]["seconds"] == 5.0


def test_a_resumed_run_removes_what_its_killed_attempt_left_unfinished(tmp_path: Path) -> None:
    def work(stage: Stage) -> dict[str, int]:
        names = {path.name for path in stage.directory.iterdir()}
        if not names & {".documents.jsonl.3e8c2938", ".notes"}:
            (stage.directory / ".documents.jsonl.3e8c2938").write_text("half a corpus")
            (stage.directory / ".notes").write_text("a user's own")
            raise KeyboardInterrupt
        assert names & {".documents.jsonl.3e8c2938", ".notes"} == {".notes"}
        return {}

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "midtrain", work, config={}, key="one")
        run_stage(ws, "midtrain", work, config={}, key="one")


@pytest.mark.parametrize("ended_by", [ValueError("the loss is not finite"), KeyboardInterrupt()])
def test_an_end_that_cannot_be_recorded_hides_no_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    ended_by: BaseException,
) -> None:
    def away(*_: object, **__: object) -> None:
        raise TrackerError("database cannot be reached")

    def work(stage: Stage) -> dict[str, int]:
        monkeypatch.setattr(stage.workspace.tracker, "_end_run", away)
        raise ended_by

    with Workspace.open(tmp_path) as ws, pytest.raises(type(ended_by)) as caught:
        run_stage(ws, "midtrain", work, config={}, key="one")
    assert caught.value is ended_by
    assert "could not be recorded: database cannot be reached" in caplog.text


def test_a_database_is_remembered_after_a_kill_while_it_was_noted(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "database.url").write_text("")  # created, but not yet written
    Workspace.open(home, str(tmp_path / "elsewhere.db")).tracker.close()
    assert database_of(home) == str(tmp_path / "elsewhere.db")


def test_a_project_is_taken_again_after_a_kill_while_it_was_noted(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared.db")
    for name, project in (("first", DEFAULT_PROJECT), ("second", "second")):
        with Workspace.open(tmp_path / name, shared) as ws:
            ws.settle_project()
            assert ws.tracker.db.project == project
        named = tmp_path / name / "project"
        kept = named.read_text()
        assert kept.startswith(f"{project}\n")
        named.write_text("")  # created, but not yet written
        with Workspace.open(tmp_path / name, shared) as ws:
            ws.settle_project()
            assert ws.tracker.db.project == project and named.read_text() == kept


def test_a_resumed_run_names_the_evaluations_that_other_code_has_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def evaluated(stage: Stage, label: str) -> None:
        config = {"label": label}
        run_stage(stage.workspace, "eval", lambda _: {}, config=config, parent=stage.id, key=label)

    def work(stage: Stage) -> dict[str, Any]:
        evaluated(stage, "clean")
        evaluated(stage, "midtrained")
        if stage.resumed:
            evaluated(stage, "recovered")
        raise KeyboardInterrupt

    with Workspace.open(tmp_path) as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        with monkeypatch.context() as earlier:
            earlier.setattr("pipelines.runs.stage_runner.versions", lambda: {"recover-llm": "0.0.1"})
            with pytest.raises(KeyboardInterrupt):
                run_stage(ws, "cycle", work, config={}, key="one")
        assert said == []
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                run_stage(ws, "cycle", work, config={}, key="one")
        assert len(said) == 2 and said[0] == said[1]
        assert "clean, midtrained: scored by other code" in said[0]
        assert "recover-llm 0.0.1, now" in said[0]
        said.clear()
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "cycle", work, config={}, key="two")
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "cycle", work, config={}, key="two")
        assert said == []
