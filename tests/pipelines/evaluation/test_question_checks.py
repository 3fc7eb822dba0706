"""Questions that a model cannot be asked are refused before it is asked the first one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from db.reads import queries
from pipelines.evaluate import evaluate
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from pipelines.writing.instruction_prompts import generate, rows
from recovery.errors import InputError
from tests.support import papers, tiny
from tests.support.engine_fakes import TinyEngine, serving

LIMIT = 300  # tokens: a byte each, and the template's


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    model = tiny.save(tmp_path / "model", max_position_embeddings=LIMIT)
    with Workspace.open(tmp_path / "home") as workspace:
        initialise(workspace, model=str(model), preset="microworld")
        yield workspace


def probes(folder: Path, *asked: Mapping[str, object]) -> dict[str, object]:
    """Write questions and return the settings that ask them."""
    path = folder / "probes.jsonl"
    rows = [{"id": str(number), "answer": "Ada", **one} for number, one in enumerate(asked)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"eval.probes": str(path), "eval.probe_max_new_tokens": 2}


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "Who wrote it? " * 30},
        {"prompt": "It was written by " * 30, "kind": "cloze"},
        {"messages": [{"role": "user", "content": "Who? " * 70}]},
    ],
)
def test_a_question_without_room_is_named_before_the_first_is_asked(
    ws: Workspace, tmp_path: Path, asked: Mapping[str, object]
) -> None:
    changes = probes(tmp_path, {"prompt": "Who?"}, asked)
    with pytest.raises(
        InputError, match=r"suite knowledge: the question '.*' has [345]\d\d tokens.*reads 300"
    ):
        evaluate(ws, eval_job(ws, "base", "knowledge", changes=changes), key=ws.new_key())
    assert queries.items(ws.tracker.db, 1) == []


def test_a_question_that_just_leaves_room_is_asked(ws: Workspace, tmp_path: Path) -> None:
    changes = probes(tmp_path, {"prompt": "?" * 200})
    found = evaluate(ws, eval_job(ws, "base", "knowledge", changes=changes), key=ws.new_key())
    assert found["scores"]["knowledge"]["n"] == 1


def test_passages_in_front_of_a_question_count(ws: Workspace, tmp_path: Path) -> None:
    closed = probes(tmp_path, {"prompt": "Who?", "passage": "Ada wrote it. " * 30})
    evaluate(ws, eval_job(ws, "base", "knowledge", changes=closed), key=ws.new_key())
    job = eval_job(ws, "base", "knowledge", changes={**closed, "eval.open_book": True})
    with pytest.raises(InputError, match="the question 'Ada wrote it"):
        evaluate(ws, job, key=ws.new_key())


def test_where_retrieved_passages_take_the_room_fewer_are_the_remedy(ws: Workspace, tmp_path: Path) -> None:
    job = eval_job(ws, "base", "knowledge", changes=probes(tmp_path, {"prompt": "Who?"}))
    found = tmp_path / "passages.jsonl"
    found.write_text(json.dumps({"id": "0", "passages": ["Ada wrote it. " * 30]}), encoding="utf-8")
    with pytest.raises(InputError, match="answers included: give fewer --passages or leave it out"):
        evaluate(ws, job.model_copy(update={"passages": str(found)}), key=ws.new_key())
    closed = eval_job(ws, "base", "knowledge", changes=probes(tmp_path, {"prompt": "Who wrote it? " * 30}))
    with pytest.raises(InputError, match="answers included: shorten it or leave it out"):
        evaluate(ws, closed.model_copy(update={"passages": str(found)}), key=ws.new_key())


def test_a_question_that_the_engine_does_not_read_is_refused_before_it_starts(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.engines.vllm_local.require_vllm", lambda: None)
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text() + "\nengine: {max_length: 200}\n")
    vars(ws).pop("config", None)
    changes = probes(tmp_path, {"prompt": "?" * 200})
    evaluate(ws, eval_job(ws, "base", "knowledge", changes=changes), key=ws.new_key())  # in this process
    job = eval_job(ws, "base", "knowledge", changes={**changes, "eval.sampler": "server"})
    with pytest.raises(
        InputError, match=r"has 2\d\d tokens, the engine that answers reads 200, answers incl"
    ):
        evaluate(ws, job, key=ws.new_key())


def test_a_question_that_a_running_server_does_not_read_is_refused_before_it_is_asked(
    ws: Workspace, tmp_path: Path
) -> None:
    with serving(TinyEngine(tiny.chat_model())) as server:
        server.length = 200
        changes = probes(tmp_path, {"prompt": "?" * 200}) | {"eval.sampler": server.url}
        with pytest.raises(InputError, match="the engine that answers reads 200"):
            evaluate(ws, eval_job(ws, "base", "knowledge", changes=changes), key=ws.new_key())
        assert server.served == []


def test_a_cycle_refuses_it_before_anything_is_recorded(ws: Workspace, tmp_path: Path) -> None:
    docs = papers.write(tmp_path / "docs", {"a.md": "Ada lives in Oslo.\n"})
    ifeval = tmp_path / "ifeval.jsonl"
    ifeval.write_text(json.dumps(rows(generate(1))[0]) + "\n", encoding="utf-8")
    changes = probes(tmp_path, {"prompt": "Who wrote it? " * 30}) | {"eval.ifeval": str(ifeval)}
    with pytest.raises(InputError, match="the question 'Who wrote it"):
        cycle_job(ws, docs, suites="ifeval,knowledge", changes=changes)
    assert queries.runs(ws.tracker.db) == []


def test_each_question_is_tried_with_what_its_calls_hold(tmp_path: Path) -> None:
    """One stood for all of the same roles and fields: the evaluation ended at another."""
    model = tiny.save(tmp_path / "model")
    nine = "{{ raise_exception('ids have nine letters') if c.id | length != 9 }}"
    template = (
        f"{{% for m in messages %}}{{% for c in m.tool_calls or [] %}}{nine}{{% endfor %}}{{% endfor %}}"
    )
    tiny.tokenizer(chat_template=template + tiny.TEMPLATE).save_pretrained(model)

    def calling(call: str) -> dict[str, object]:
        calls = {"role": "assistant", "content": "", "tool_calls": [{"id": call, "name": "look_up"}]}
        return {
            "messages": [{"role": "user", "content": f"Who? {call}"}, calls, {"role": "tool", "content": "A"}]
        }

    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(model), preset="microworld")
        good = probes(tmp_path, calling("abcdefghi"), calling("bcdefghij"))
        evaluate(ws, eval_job(ws, "base", "knowledge", changes=good), key=ws.new_key())
        bad = probes(tmp_path, calling("abcdefghi"), calling("call_1"))
        with pytest.raises(InputError, match=r"suite knowledge: .*Who\? call_1.*ids have nine letters"):
            evaluate(ws, eval_job(ws, "base", "knowledge", changes=bad), key=ws.new_key())


def test_tools_that_the_template_drops_are_refused(ws: Workspace, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    changes = probes(tmp_path, {"prompt": "Who?"}, {"prompt": "Look up who.", "tools": [tool]})
    with pytest.raises(InputError, match=r"suite knowledge: .*Look up who.*takes no tool schemas"):
        evaluate(ws, eval_job(ws, "base", "knowledge", changes=changes), key=ws.new_key())
    assert queries.items(ws.tracker.db, 1) == []
