"""A run that ends, is killed or is resumed, and the home that it is recorded in."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from db.errors import TrackerError
from db.reads import queries
from db.schema import DEFAULT_PROJECT, Run
from pipelines.resume import resume
from pipelines.runs.code_version import versions
from pipelines.runs.home_database import database_of
from pipelines.runs.stage_runner import Stage, exclusive, run_stage, worked_on
from pipelines.runs.workspace import Workspace
from recovery.errors import RecoverError


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


def test_the_reads_of_a_stage_wait_for_a_server_that_restarts(tmp_path: Path) -> None:
    """At the end of a stage one that was away for a second failed the run, whose work was done."""
    with Workspace.open(tmp_path) as ws:
        db = ws.tracker.db
        assert not db.reads_wait
        assert run_stage(ws, "demo", lambda _: {"waits": db.reads_wait}, config={}) == {"waits": True}


def test_a_run_that_is_interrupted_after_its_end_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its states were removed, which takes seconds: it was recorded as stopped, and trained again."""

    def work(stage: Stage) -> dict[str, int]:
        assert not stage.resumed
        stage.state.mkdir()
        return {"made": 1}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with Workspace.open(tmp_path) as ws:
        with monkeypatch.context() as patched:
            patched.setattr("pipelines.runs.stage_runner._forget", interrupt)
            with pytest.raises(KeyboardInterrupt):
                run_stage(ws, "midtrain", work, config={}, key="one")
        (run,) = queries.runs(ws.tracker.db)
        assert (run["status"], run["error"], run["result"]) == ("done", None, {"made": 1})
        state = ws.run_directory(run["id"]) / "state"
        assert state.is_dir()
        assert resume(ws, run["id"]) == {"run": run["id"], "made": 1}
        assert not state.exists()
        assert run_stage(ws, "midtrain", work, config={}, key="one") == {"made": 1}


def test_an_interrupted_stage_begins_again_with_what_it_had_drawn(tmp_path: Path) -> None:
    seen: list[tuple[str, bool, bool, int]] = []

    def work(stage: Stage) -> dict[str, int]:
        drawn = stage.once("drawn.json", lambda: len(seen))
        seen.append((stage.label, stage.resumed, stage.ledger.timed, drawn))
        if not stage.resumed:
            raise KeyboardInterrupt
        return {"made": drawn}

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "eval", work, config={"label": "clean"}, key="one", seed=7)
        (run,) = queries.unfinished_runs(ws.tracker.db)
        assert (run["status"], run["error"], run["seed"]) == ("stopped", "interrupted", 7)
        assert run_stage(ws, "eval", work, config={"label": "clean"}, key="one", seed=7) == {"made": 0}
    assert seen == [("clean", False, True, 0), ("clean", True, True, 0)]


def test_of_an_interrupted_run_and_its_stage_the_run_alone_names_the_command_that_goes_on(
    tmp_path: Path,
) -> None:
    def stop(stage: Stage) -> dict[str, int]:
        raise KeyboardInterrupt

    def work(stage: Stage) -> dict[str, int]:
        assert (stage.label, stage.ledger.timed) == ("cycle", False)  # its seconds are those of its stages
        return run_stage(stage.workspace, "eval", stop, config={}, parent=stage.id, key="eval")

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt) as stopped:
            run_stage(ws, "cycle", work, config={}, key="one")
        (whole,) = (run["id"] for run in queries.runs(ws.tracker.db, kind="cycle"))
        assert stopped.value.__notes__ == [f"go on with `{ws.command('resume', whole)}`"]


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


def test_a_run_that_another_process_works_on_is_recorded_as_that_one_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was recorded as another attempt, by another process and other code, before the lock was tried."""

    def interrupt(stage: Stage) -> dict[str, int]:
        raise KeyboardInterrupt

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "midtrain", interrupt, config={}, key="one")
        (before,) = queries.runs(ws.tracker.db)
        monkeypatch.setattr("pipelines.runs.stage_runner.versions", lambda: {"recover-llm": "0.0.1"})
        with (ws.run_directory(before["id"]) / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(RecoverError, match="is being worked on by another process: wait for it"):
                run_stage(ws, "midtrain", interrupt, config={}, key="one")
        assert queries.runs(ws.tracker.db) == [before]
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "midtrain", interrupt, config={}, key="one")
        (again,) = queries.runs(ws.tracker.db)
        assert (before["attempts"], again["attempts"]) == (1, 2)


def test_a_run_that_is_given_up_before_it_is_locked_is_begun_anew_under_its_own_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(stage: Stage) -> dict[str, int]:
        raise KeyboardInterrupt

    def work(stage: Stage) -> dict[str, int]:
        assert worked_on(stage.directory)
        return {"made": 1}

    with Workspace.open(tmp_path) as ws:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "midtrain", interrupt, config={}, key="one")
        (before,) = queries.runs(ws.tracker.db)
        start = ws.tracker.start_run

        def start_late(*named: Any, **columns: Any) -> Run:
            ws.tracker.give_up_run(before["id"], "given up")
            return start(*named, **columns)

        monkeypatch.setattr(ws.tracker, "start_run", start_late)
        assert run_stage(ws, "midtrain", work, config={}, key="one") == {"made": 1}
        made, given_up = queries.runs(ws.tracker.db)
        assert made["status"] == "done" and (given_up["id"], given_up["status"]) == (before["id"], "stopped")


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for that one would never have ended."""

    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("pipelines.runs.stage_runner.fcntl.flock", none)
    with pytest.raises(RecoverError, match=r"run-1: its file system has no locks .*: put the home on"):
        with exclusive(tmp_path / "run-1"):
            raise AssertionError("worked without a lock")


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


@pytest.mark.parametrize(
    ("number", "place", "said"),
    [
        (errno.ENOSPC, "home/runs/plan.json", "plan.json: the disk is full: free some space and run"),
        (errno.ENOSPC, "elsewhere", "elsewhere: the disk is full: free some space and run it again"),
        (errno.EROFS, "home/runs/plan.json", "plan.json cannot be opened (Read-only file system): mount it"),
        (errno.EACCES, "home/runs/plan.json", "plan.json cannot be opened (Permission denied): change its"),
    ],
)
def test_a_place_that_cannot_be_written_in_mid_run_is_no_bad_input(
    tmp_path: Path, number: int, place: str, said: str
) -> None:
    def work(stage: Stage) -> dict[str, int]:
        raise OSError(number, os.strerror(number), str(tmp_path / place))

    with Workspace.open(tmp_path / "home") as ws:
        with pytest.raises(RecoverError, match=re.escape(said)) as failed:
            run_stage(ws, "cycle", work, config={}, key="one")
        assert failed.value.exit_code == 1
        (run,) = queries.unfinished_runs(ws.tracker.db)
        assert (run["status"], run["error"]) == ("failed", f"RecoverError: {failed.value}")


def test_an_input_that_cannot_be_read_in_mid_run_stays_what_it_is(tmp_path: Path) -> None:
    def work(stage: Stage) -> dict[str, int]:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "probes.jsonl"))

    with Workspace.open(tmp_path / "home") as ws, pytest.raises(PermissionError):
        run_stage(ws, "cycle", work, config={}, key="one")


@pytest.mark.parametrize(("mode", "private"), [(0o755, True), (0o775, False), (0o700, False)])
def test_in_a_folder_that_was_there_what_others_could_read_is_the_owners_alone(
    tmp_path: Path, mode: int, private: bool
) -> None:
    """One that a group may write to is shared on purpose; in one that is private nothing has to be hidden."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    with Workspace.open(home) as ws:
        run_stage(ws, "eval", lambda _: {}, config={}, key="one")
    modes = {path.name: path.stat().st_mode & 0o777 for path in home.iterdir() if path.is_dir()}
    assert modes.keys() == ({"runs", "checkpoints", "prompts", "probes"} if private else {"runs"})
    assert not private or set(modes.values()) == {0o700}


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


def evaluated(stage: Stage, label: str) -> None:
    config = {"label": label}
    run_stage(stage.workspace, "eval", lambda _: {}, config=config, parent=stage.id, key=label)


def work(stage: Stage) -> dict[str, Any]:
    """Evaluate as a cycle that is interrupted does: one more model once it is resumed."""
    evaluated(stage, "clean")
    evaluated(stage, "midtrained")
    if stage.resumed:
        evaluated(stage, "recovered")
    raise KeyboardInterrupt


def test_a_resumed_run_names_the_evaluations_that_another_device_has_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def goes_on(key: str) -> None:
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "cycle", work, config={}, key=key)

    with Workspace.open(tmp_path) as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        with monkeypatch.context() as on_gpu:
            on_gpu.setattr("pipelines.runs.stage_runner.device", lambda: "H200")
            goes_on("one")
        goes_on("one")
        [line] = said
        assert "clean, midtrained: scored by other code or on another device (device H200, now CPU" in line
        said.clear()
        goes_on("two")
        goes_on("two")
        assert said == []
        earlier = update(Run).where(Run.kind == "eval").values(versions=versions())  # named no device
        ws.tracker.db.write(lambda session: session.execute(earlier))
        goes_on("two")
        assert said == []


def test_what_a_server_elsewhere_has_answered_is_of_no_device_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def scored(stage: Stage) -> dict[str, Any]:
        for label, sampler in (("there", "http://gpu:8000,http://gpu:8001"), ("here", "server")):
            config = {"label": label, "settings": {"sampler": sampler}}
            run_stage(ws, "eval", lambda _: {}, config=config, parent=stage.id, key=label)
        raise KeyboardInterrupt

    with Workspace.open(tmp_path) as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        for name in ("H200", "H100"):
            monkeypatch.setattr("pipelines.runs.stage_runner.device", lambda name=name: name)
            with pytest.raises(KeyboardInterrupt):
                run_stage(ws, "cycle", scored, config={}, key="one")
    [line] = said
    assert line.startswith("  scores       here: scored by other code or on another device (device H200, now")


def test_a_resumed_run_names_the_evaluations_that_other_code_has_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
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
