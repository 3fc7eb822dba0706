"""What a cycle refuses, or warns of, before its first stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from pipelines.cycle import cycle
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from pipelines.writing.commands import ProbeOptions, make_probes
from recovery.errors import InputError
from tests.support import tiny
from tests.support.small_cycles import lines, settle


@pytest.mark.parametrize(
    ("name", "setting"),
    [("probes.jsonl", "eval.probes"), ("ifeval.jsonl", "eval.ifeval"), ("prompts.jsonl", "distill.prompts")],
)
def test_questions_that_would_be_trained_on_are_refused(
    ws: Workspace, docs: Path, name: str, setting: str
) -> None:
    inside = docs / "asked" / name
    inside.parent.mkdir()
    (docs.parent / name).rename(inside)
    for build in (cycle_job, midtrain_job):
        with pytest.raises(InputError, match=f"{setting}: .*{name} lies in the folder of documents"):
            build(ws, docs, changes={setting: str(inside)})


@pytest.mark.parametrize("place", ["probes.jsonl", ".hidden/probes.jsonl", "../world/probes.jsonl"])
def test_questions_that_are_no_documents_may_lie_there(ws: Workspace, docs: Path, place: str) -> None:
    inside = docs / place
    inside.parent.mkdir(exist_ok=True)
    (docs.parent / "probes.jsonl").rename(inside)
    assert cycle_job(ws, docs, changes={"eval.probes": str(inside)}).settings.eval.probes == str(inside)


def test_probes_are_not_written_among_the_documents(ws: Workspace, docs: Path) -> None:
    refused = (("mine.jsonl", None, "mine"), ("probes.jsonl", "base", r"probes\.written"))
    for name, writer, said in refused:
        with pytest.raises(InputError, match=rf"--out: .*{said}\.jsonl lies in the folder of documents"):
            make_probes(ws, docs, docs / name, ProbeOptions(writer=writer))
    assert [path.name for path in docs.iterdir()] == ["ada.md"]


def test_prompts_that_the_template_rejects_are_refused(tmp_path: Path, docs: Path) -> None:
    odd = {"messages": [{"role": "user", "content": "One."}, {"role": "user", "content": "Two?"}]}
    lines(docs.parent / "prompts.jsonl", [*({"prompt": f"Say {number}."} for number in range(9)), odd])
    template = tiny.save(tmp_path / "strict") / "chat_template.jinja"
    rejecting = "{% if messages|length > 1 %}{{ raise_exception('one turn only') }}{% endif %}"
    template.write_text(rejecting + template.read_text())
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(template.parent), preset="microworld")
        settle(ws, margin=0.4, learning_rate=1e-12)
        with pytest.raises(InputError, match=r"prompts: 'One.*one turn only.*: change or drop such rows"):
            cycle_job(ws, docs)
        assert queries.runs(ws.tracker.db) == []


def test_prompts_of_which_none_leaves_room_are_refused(ws: Workspace, docs: Path) -> None:
    long = [{"prompt": f"Say {number} " + "and again " * 300} for number in range(3)]
    lines(docs.parent / "prompts.jsonl", long)
    with pytest.raises(InputError, match="all prompts leave no room for an answer: the limit is 2,048"):
        cycle_job(ws, docs)
    lines(docs.parent / "prompts.jsonl", [*long, {"prompt": "Say one word."}])
    cycle_job(ws, docs)


@pytest.mark.parametrize(("margin", "warned"), [(0.03, True), (0.4, False)])
def test_too_few_questions_are_said_before_the_first_stage(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, margin: float, warned: bool
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def stop(*_: Any) -> None:
        raise InputError("the first stage")

    monkeypatch.setattr("pipelines.cycle._evaluate", stop)
    asked = cycle_job(ws, docs, changes={"eval.margin": margin})
    with pytest.raises(InputError, match="the first stage"):
        cycle(ws, asked, key=ws.new_key())
    few = [line for line in said if "36 items" in line]
    assert [line.split()[1] for line in few] == (["behaviour:", "knowledge:"] if warned else [])
    assert json.dumps(few).count("725") == len(few)


def test_questions_beside_the_documents_are_named(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, docs)
    beside = [line for line in said if line.endswith("beside the documents")]
    assert [line.split()[0] for line in beside] == ["probes", "ifeval"]
    said.clear()
    cycle_job(ws, docs, changes={"eval.probes": str(docs.parent / "probes.jsonl")})
    assert [line.split()[0] for line in said if line.endswith("beside the documents")] == ["ifeval"]
