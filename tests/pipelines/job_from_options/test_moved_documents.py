"""What a checkpoint is asked and recovered with, where the documents that it was taught were moved since."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.config.jobs import IFEVAL_INPUT, MidtrainJob
from pipelines.job_from_options.inputs import ifeval_asked, resolved_for
from pipelines.job_from_options.measure import drift_job, retrieval_job
from pipelines.job_from_options.train import distill_job
from pipelines.runs.pinned_inputs import hashes
from pipelines.runs.workspace import Workspace
from tests.support.small_cycles import lines, make_docs, make_home


def taught(ws: Workspace, docs: Path) -> str:
    """Record a midtraining on these documents, and a checkpoint of other bytes than the clean model's."""

    def write(folder: Path) -> None:
        shutil.copytree(ws.clean().path, folder, dirs_exist_ok=True)
        (folder / "taught.txt").write_text("what the documents say")

    job = MidtrainJob(docs=str(docs), student=ws.clean().id, settings=ws.config.midtrain)
    run = ws.tracker.start_run("midtrain", key="m", config=job.model_dump())
    made = ws.publish_files(write, parent=ws.clean(), run_id=run.id, config={})
    ws.tracker.finish_run(run.id, {"checkpoint": made.id})
    return made.id


def test_files_beside_documents_that_moved_with_their_home_are_read_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other questions were asked, and other prompts answered, without a word."""
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        checkpoint = taught(ws, docs)
    (tmp_path / "moved").mkdir()
    for folder in ("home", "world"):
        (tmp_path / folder).rename(tmp_path / "moved" / folder)
    there = tmp_path / "moved" / "world"
    probes, ifeval, prompts = (str(there / f"{name}.jsonl") for name in ("probes", "ifeval", "prompts"))
    said: list[str] = []
    with Workspace.open(tmp_path / "moved" / "home", create=False) as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        asked = resolved_for(ws, checkpoint).eval
        assert (asked.probes, asked.ifeval) == (probes, ifeval)
        assert said == [f"  documents    {there / 'docs'}, as {docs} is gone"]
        assert drift_job(ws, "base", checkpoint, count=2, max_new_tokens=2).prompts == prompts
        recovery = distill_job(ws)
        assert (recovery.prompts, recovery.evaluation.probes) == (prompts, probes)
        looked_up = retrieval_job(ws, "base", None, 2)
        assert (looked_up.docs, looked_up.settings.probes) == (str(there / "docs"), probes)


def test_the_prompts_of_a_cycle_are_asked_again_where_the_documents_new_place_is_named(
    tmp_path: Path,
) -> None:
    docs = make_docs(tmp_path)
    asked = lines(docs.parent / "asked.jsonl", [{"prompt": "Write a line."}])
    with make_home(tmp_path) as ws:
        checkpoint = taught(ws, docs)
        inputs = hashes({IFEVAL_INPUT: str(asked)})
        job = {"docs": str(docs), "settings": {"eval": {"ifeval": str(asked)}}, "inputs": inputs}
        run = ws.tracker.start_run("cycle", key="c", config=job)
        ws.tracker.record_cycle(run.id, midtrained_id=checkpoint, status="accepted")
    (tmp_path / "moved").mkdir()
    for folder in ("home", "world"):
        (tmp_path / folder).rename(tmp_path / "moved" / folder)
    there = tmp_path / "moved" / "world"
    with Workspace.open(tmp_path / "moved" / "home", create=False) as ws:
        for place in (docs, there / "docs"):
            assert ifeval_asked(ws, checkpoint, place) == {"eval.ifeval": str(there / "asked.jsonl")}
        assert not ifeval_asked(ws, checkpoint, there)


def test_files_that_are_still_beside_removed_documents_are_read(tmp_path: Path) -> None:
    """Though the home lies in a folder that holds others of that name."""
    docs = make_docs(tmp_path / "elsewhere")
    with make_home(tmp_path) as ws:
        checkpoint = taught(ws, docs)
        (tmp_path / "docs").mkdir()
        lines(tmp_path / "probes.jsonl", [])
        shutil.rmtree(docs)
        assert resolved_for(ws, checkpoint).eval.probes == str(docs.parent / "probes.jsonl")
        for folder in (docs.parent, tmp_path / "docs"):
            shutil.rmtree(folder)
        assert resolved_for(ws, checkpoint).eval.probes == ws.config.eval.probes
