"""Rows of which none is short enough are refused as the job is built, with the errors of the distillation."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from pipelines.config import overrides
from pipelines.config.fitted import Machine
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import distill_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.attacks.load import free_port
from tests.support import tiny
from tests.support.small_cycles import ASKED, PROMPTS, lines

SERVER = f"http://127.0.0.1:{free_port()}"


def refuse(ws: Workspace, docs: Path, changes: dict[str, Any], said: str) -> None:
    """Build a cycle, and a distillation of its own, that are refused."""
    ws.config = overrides.changed(ws.config, {"distill.prompts": str(docs.parent / "prompts.jsonl")})
    for build in (
        partial(cycle_job, ws, docs, changes=changes),
        partial(distill_job, ws, student="base", changes=changes),
    ):
        with pytest.raises(InputError, match=said):
            build()
    assert queries.runs(ws.tracker.db) == []


def test_prompts_that_are_all_longer_than_a_row_may_be_are_refused(ws: Workspace, docs: Path) -> None:
    short = {"distill.longest_row": 20}
    refuse(ws, docs, short, r"all prompts exceed distill\.longest_row, 20, .* 4 tokens")
    assert cycle_job(ws, docs, recover_with="auto", changes=short)  # other ways need no such row
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Say one word. " * 9}, {"prompt": "Say one word."}])
    assert cycle_job(ws, docs, changes={"distill.longest_row": 60})


def test_prompts_that_the_memory_cannot_hold_are_refused(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the longest row that the distillation will fit to the machine."""
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Say " * 150}])
    assert cycle_job(ws, docs)
    monkeypatch.setattr("pipelines.machine.fitting.this_machine", lambda model: Machine(1.0))
    refuse(ws, docs, {}, "all prompts exceed distill.longest_row, 512, with an answer of 4 tokens")


def test_pairs_that_are_all_longer_than_a_row_may_be_are_refused(ws: Workspace, docs: Path) -> None:
    rows = [{"prompt": "Say.", "response": "word " * count} for count in (20, 2)]
    pairs = {"distill.method": "sft", "distill.longest_row": 60}
    short = lines(docs.parent / "short.jsonl", rows)
    assert cycle_job(ws, docs, changes=pairs | {"distill.pairs": str(short)})
    long = lines(docs.parent / "long.jsonl", rows[:1])
    changes = pairs | {"distill.pairs": str(long)}
    refuse(ws, docs, changes, "all pairs are longer than what is read, 60 tokens")


@pytest.fixture
def served(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A home whose engines read 40 tokens: a prompt of four short words, and an answer."""
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text() + "\nengine: {max_length: 40}\n")
    vars(ws).pop("config", None)
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", None))
    return ws


def test_prompts_that_the_engine_of_the_student_does_not_read_are_refused(
    served: Workspace, docs: Path
) -> None:
    sampled = {"distill.sampler": SERVER}
    assert cycle_job(served, docs, changes=sampled)
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Say one word, and another one."}])
    assert cycle_job(served, docs)  # in this process
    refuse(served, docs, sampled, "all prompts leave no room for an answer: the limit is 40 tokens")


def test_a_probe_that_the_engine_of_the_student_does_not_read_is_refused(
    served: Workspace, docs: Path
) -> None:
    asked = [{"prompt": f"Say one word, and another: {n}", **ASKED} for n in range(PROMPTS)]
    probe = lines(docs.parent / "probe.jsonl", asked)
    stop = {"distill.stop": {"every": 1, "margin": 0.4, "probe": str(probe)}, "distill.steps": 2}
    assert cycle_job(served, docs, changes=stop)
    said = "all rows of distill.stop.probe leave no room for an answer: the limit is 40 tokens"
    refuse(served, docs, stop | {"distill.sampler": SERVER}, said)


def test_prompts_that_a_shorter_teacher_does_not_read_are_refused(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    short = tiny.save(tmp_path / "short", seed=3, max_position_embeddings=34)
    asked = {"distill.prompts": str(docs.parent / "prompts.jsonl")}
    said = "all prompts leave no room for an answer of 4 tokens: the teacher reads 34"
    with pytest.raises(InputError, match=said):
        distill_job(ws, str(short), "base", changes=asked)
    assert distill_job(ws, str(short), "base", changes=asked | {"distill.max_new_tokens": 2})
