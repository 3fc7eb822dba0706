"""Cycles that were interrupted, failed or resumed: what is said of them, and what `current` then names."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from db.errors import TrackerError
from db.reads import queries
from pipelines.cli.cycles import review_text
from pipelines.config.jobs import CycleJob, DemoJob, DistillJob, EvalJob
from pipelines.config.overrides import changed
from pipelines.config.settings import CONFIG_NAME
from pipelines.corpus.reading.superseded_list import beside
from pipelines.cycle import cycle
from pipelines.demo import demo
from pipelines.distill import distill
from pipelines.evaluate import evaluate
from pipelines.job_from_options.cycle import cycle_job
from pipelines.resume import resume
from pipelines.runs.kept_texts import learned
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from recovery.command_line import command
from recovery.errors import InputError, OutOfMemory
from tests.support.small_cycles import turned


def begin(ws: Workspace, docs: Path, student: str = "current") -> dict[str, Any]:
    changes = {"distill.merge": 0.0, "distill.rehearsal": 0.0}
    return cycle(ws, cycle_job(ws, docs, student=student, changes=changes), key=ws.new_key())


def interrupted(
    ws: Workspace,
    docs: Path,
    monkeypatch: pytest.MonkeyPatch,
    student: str = "current",
    at: str = "pipelines.cycle.distill",
) -> None:
    """Begin a cycle and interrupt it where it calls a function: after its midtraining."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            begin(ws, docs, student)


def approval(ws: Workspace) -> str:
    return command(ws.home, "review", "cycle:1", "--approve")


def other_model(ws: Workspace, parent: str = "base") -> str:
    chat = ws.load(ws.clean())
    with torch.no_grad():
        chat.model.get_parameter("model.norm.weight").mul_(1.001)
    return ws.publish(chat, parent=ws.checkpoint(parent), run_id=None, config={}).id


def test_a_resumed_cycle_leaves_current_where_it_was_moved_to(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    interrupted(ws, docs, monkeypatch)
    later = other_model(ws)  # as a later cycle's acceptance does
    ws.tracker.set_alias("current", later)
    found = resume(ws)
    assert (found["cycle"], found["status"]) == (1, "accepted")
    assert queries.resolve(ws.tracker.db, "current") == later
    assert len([line for line in said if f"stays {later}" in line]) == 1
    assert any(f"`{approval(ws)}` makes" in line for line in said)
    ws.tracker.add_review(1, "approve", "", "ada")
    assert queries.resolve(ws.tracker.db, "current") == queries.resolve(ws.tracker.db, "cycle:1")


def test_evaluations_of_one_cycle_are_answered_by_the_engine_that_it_began_with(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.cycle._work", interrupt)
    monkeypatch.setattr("recovery.engines.vllm_local.require_vllm", lambda: None)
    job, began_with = cycle_job(ws, docs), ws.config
    on_server = changed(job.settings, {"eval.sampler": "server"})
    with pytest.raises(KeyboardInterrupt):
        cycle(ws, job.model_copy(update={"settings": on_server}), key="one")
    for name, value in {"max_length": 512, "arguments": {"block-size": 32}}.items():
        ws.config = changed(began_with, {f"engine.{name}": value})
        with pytest.raises(InputError, match=rf"^engine\.{name}: changed since the run began"):
            resume(ws)
    ws.config = changed(began_with, {"engine.gpu_memory": 0.2})  # which changes no answer
    with pytest.raises(KeyboardInterrupt):
        resume(ws)


@pytest.mark.parametrize(
    ("engines", "refusal"),
    [
        ({"eval.sampler": "vllm"}, "several processes: sampler vllm runs inside one process"),
        ({"distill.sampler": "vllm"}, "several processes: sampler vllm runs inside one process"),
        ({"distill.sampler": "http://a:1", "distill.ahead": 1}, "ahead: works in one training process only"),
    ],
)
@pytest.mark.parametrize("recover_with", [None, "auto"])
def test_a_cycle_is_not_resumed_in_more_processes_than_its_engines_allow(
    ws: Workspace,
    docs: Path,
    monkeypatch: pytest.MonkeyPatch,
    engines: dict[str, Any],
    refusal: str,
    recover_with: str | None,
) -> None:
    """It was refused after its midtraining. A choice that is made needs the engine of evaluations alone."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.cycle._work", interrupt)
    job = cycle_job(ws, docs, recover_with=recover_with)
    job = job.model_copy(update={"settings": changed(job.settings, engines)})
    with pytest.raises(KeyboardInterrupt):
        cycle(ws, job, key="one")
    (run,) = queries.runs(ws.tracker.db)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match=refusal):
        resume(ws)
    ws.tracker.finish_run(ws.tracker.start_run("choose", parent=run["id"], key="choose").id)
    goes_on = recover_with == "auto" and "eval.sampler" not in engines
    with pytest.raises(KeyboardInterrupt if goes_on else InputError):
        resume(ws)


def test_a_cycle_is_resumed_without_the_engine_of_a_distillation_that_is_done(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise InputError("vLLM is not installed")

    monkeypatch.setattr("recovery.engines.vllm_local.require_vllm", missing)
    job = cycle_job(ws, docs)
    settings = changed(job.settings, {"distill.sampler": "server"}).distill
    stage = DistillJob.of(job, job.student, settings)
    of_cycle = ws.tracker.start_run("cycle").id
    run = ws.tracker.start_run("distill", parent=of_cycle, key="distill").id
    for key in ("distill", "another"):
        with pytest.raises(InputError, match="vLLM is not installed"):
            distill(ws, stage, parent=of_cycle, key=key)
    ws.tracker.finish_run(run, {"checkpoint": "recovered"})
    assert distill(ws, stage, parent=of_cycle, key="distill") == {"checkpoint": "recovered"}


def test_a_resumed_cycle_names_the_accepted_one_that_its_model_lacks(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    interrupted(ws, docs, monkeypatch)
    later = other_model(ws)
    run = ws.tracker.start_run("cycle", key="later").id
    ws.tracker.record_cycle(run, midtrained_id=later, recovered_id=later, status="accepted")
    ws.tracker.finish_run(run)
    ws.tracker.set_alias("current", later)
    monkeypatch.setattr(ws.progress, "say", said.append)
    assert resume(ws)["status"] == "accepted"
    lacks = "without cycle 2 (accepted or approved)"
    assert f"  starts from  base, the clean model, {lacks}" in said
    both = f"makes this cycle's model current, {lacks}: a new cycle of these documents keeps both"
    assert [line for line in said if f"stays {later}" in line and line.endswith(both)]
    number = ws.tracker.add_review(1, "approve", "", "ada")
    assert review_text(ws, {"review": number, "cycle": 1, "decision": "approve"}).endswith(f", {lacks}")


def test_an_approval_of_a_cycle_behind_current_says_that_it_stays(ws: Workspace, docs: Path) -> None:
    assert begin(ws, docs)["status"] == "accepted"
    later = other_model(ws, "cycle:1")
    ws.tracker.set_alias("current", later)
    ws.tracker.add_review(1, "reject", "by mistake", "ada")
    number = ws.tracker.add_review(1, "approve", "", "ada")
    said = review_text(ws, {"review": number, "cycle": 1, "decision": "approve"})
    assert said.endswith(f"`current` stays {later}, which descends from this cycle's model")


@pytest.mark.parametrize("moved_and_back", [False, True])
def test_a_resumed_cycle_of_any_student_becomes_current_where_that_is_as_it_was(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, moved_and_back: bool
) -> None:
    before = other_model(ws)
    ws.tracker.set_alias("current", before)
    interrupted(ws, docs, monkeypatch, "base")
    if moved_and_back:
        ws.tracker.set_alias("current", ws.clean().id)
        ws.tracker.set_alias("current", before)
    assert resume(ws)["status"] == "accepted"
    assert queries.resolve(ws.tracker.db, "current") == queries.resolve(ws.tracker.db, "cycle:1") != before


def test_a_failure_that_cannot_be_recorded_hides_no_error(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise TrackerError("database cannot be reached")

    def fail(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(ws.tracker, "record_cycle", away)
        raise OutOfMemory("step 3: the memory is full")

    monkeypatch.setattr("pipelines.cycle.midtrain", fail)
    with pytest.raises(OutOfMemory, match="step 3: the memory is full"):
        begin(ws, docs)
    assert "could not be recorded: database cannot be reached" in caplog.text


@pytest.mark.parametrize("at", ["pipelines.midtrain.training_run.run_training", "pipelines.cycle.distill"])
def test_documents_may_change_once_their_texts_are_kept(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    interrupted(ws, docs, monkeypatch, at=at)
    (docs / "later.md").write_text("Zanzibar was written about after the cycle had begun.\n")
    beside(docs).write_text("*.md\n")
    assert resume(ws)["status"] == "accepted"
    texts = learned(ws, queries.resolve(ws.tracker.db, "cycle:1")).texts
    assert texts and not any("Zanzibar" in text for text in texts)


@pytest.mark.parametrize("at", ["pipelines.cycle.midtrain", "pipelines.cycle.distill"])
def test_probes_may_be_overwritten_once_they_are_kept(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Those of the next month are written while a cycle of hours runs."""
    begun = (docs.parent / "probes.jsonl").read_text()
    interrupted(ws, docs, monkeypatch, at=at)
    (docs.parent / "probes.jsonl").write_text(begun.splitlines()[0].replace("?", ", then?") + "\n")
    assert resume(ws)["status"] == "accepted"
    asked = [len(queries.items(ws.tracker.db, score["id"])) for score in queries.scores(ws.tracker.db)]
    assert len(asked) == 9 and min(asked) > 1


def test_documents_that_change_before_they_are_read_are_refused(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(ws, docs, monkeypatch, at="pipelines.midtrain.superseded.keep")
    (docs / "later.md").write_text("Zanzibar was written about after the cycle had begun.\n")
    with pytest.raises(InputError, match=r"documents .*changed since the run began"):
        resume(ws)


def test_of_two_cycles_side_by_side_the_later_one_does_not_replace_the_first_unasked(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    other = other_model(ws)

    def moved(*words: Any, **named: Any) -> dict[str, Any]:
        ws.tracker.set_alias("current", other)  # as the acceptance of a cycle beside it does
        return distill(*words, **named)

    monkeypatch.setattr("pipelines.cycle.distill", moved)
    assert begin(ws, docs)["status"] == "accepted"
    assert queries.resolve(ws.tracker.db, "current") == other != queries.resolve(ws.tracker.db, "cycle:1")
    assert any(f"stays {other}" in line and f"`{approval(ws)}`" in line for line in said)


def test_a_cycle_that_is_rejected_while_its_model_is_measured_leaves_current_alone(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    before = queries.resolve(ws.tracker.db, "current")

    def reviewed(ws: Workspace, job: EvalJob, **named: Any) -> dict[str, Any]:
        if job.label == "recovered":
            ws.tracker.add_review(1, "reject", "it rambles", "ada")
        return evaluate(ws, job, **named)

    monkeypatch.setattr("pipelines.cycle.evaluate", reviewed)
    assert begin(ws, docs)["status"] == "accepted"
    assert queries.resolve(ws.tracker.db, "current") == before
    assert any(f"stays {before}: a review has rejected this cycle" in line for line in said)


@pytest.mark.slow
def test_a_resumed_demo_goes_on_with_the_job_that_its_cycle_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = []

    def interrupt(ws: Workspace, job: CycleJob, stage: Stage) -> None:
        jobs.append(job)
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.cycle._work", interrupt)
    with Workspace.open(tmp_path) as ws:
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                demo(ws, DemoJob(cycles=1), key="demo")
            settings = tmp_path / CONFIG_NAME
            settings.write_text(re.sub(r"max_new_tokens: \d+", "max_new_tokens: 7", settings.read_text()))
            ws.__dict__.pop("config")
        assert ws.config.distill.max_new_tokens == 7
    assert jobs[0] == jobs[1] and jobs[0].settings.distill.max_new_tokens != 7


def test_a_demo_whose_home_was_moved_goes_on_with_the_documents_that_it_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def interrupt(ws: Workspace, job: CycleJob, stage: Stage) -> None:
        read.append(job.docs)
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.cycle._work", interrupt)
    home = tmp_path / "home"
    for place in (home, tmp_path / "moved"):
        home = home.rename(place) if home.exists() else home
        with Workspace.open(home) as ws, pytest.raises(KeyboardInterrupt):
            demo(ws, DemoJob(cycles=1), key="demo")
        assert Path(read[-1]).is_relative_to(home) and Path(read[-1]).is_dir()


@pytest.mark.slow
def test_the_same_command_again_names_the_cycle_that_was_interrupted(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turned(ws, docs)
    [interrupted] = queries.unfinished_runs(ws.tracker.db)
    with (ws.run_directory(interrupted["id"]) / "lock").open("w") as lock, monkeypatch.context() as patched:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if another process worked on it now
        with pytest.raises(InputError, match="another process works on what is unfinished"):
            resume(ws)
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turned(ws, docs)
    second = queries.unfinished_runs(ws.tracker.db)[0]
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, cycle_job(ws, docs), key=second["key"])
    assert said and not any("unfinished" in line for line in said)
    said.clear()
    turned(ws, docs)
    onward = command(ws.home, "resume", second["id"])
    assert any(f"`{onward}` goes on with it" in line for line in said)
    assert cycle(ws, cycle_job(ws, docs), key=second["key"])["cycle"] == 2
    assert cycle(ws, cycle_job(ws, docs), key=interrupted["key"])["cycle"] == 1
    said.clear()
    turned(ws, docs)
    assert said and not any("unfinished" in line for line in said)


def test_a_run_that_ended_on_its_input_is_not_passed_over_without_a_word(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(ws, docs, monkeypatch)
    [cut_off] = queries.unfinished_runs(ws.tracker.db)
    refused = ws.tracker.start_run("cycle", key="refused").id
    ws.tracker.fail_run(refused, "InputError: prompts.jsonl: changed since the run began")
    both = rf"changed since the run began\): `.* resume {refused}` tries .* resume {cut_off['id']}` goes on"
    with pytest.raises(InputError, match=both):
        resume(ws)
    assert resume(ws, cut_off["id"])["status"] == "accepted"


def test_a_cycle_that_breaks_is_recorded_as_failed(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an error that is none of this project's, such as a GPU out of memory."""

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    job = cycle_job(ws, docs)
    monkeypatch.setattr("pipelines.cycle.midtrain", out_of_memory)
    with pytest.raises(MemoryError):
        cycle(ws, job, key="one")
    assert queries.cycle(ws.tracker.db, 1)["status"] == "failed"
