"""What a distillation outside a cycle refuses as it begins, and which prompts it reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines.config import overrides
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import distill_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.models.adapters import LoraSpec, add_lora
from tests.support import tiny
from tests.support.small_cycles import ASKED, ONLY_NEW, WITH_CHAT, lines


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a source of prompts is asked for its prompts: a model may have to write them first."""

    def written(*_: Any, **__: Any) -> str:
        raise AssertionError("prompts were asked for")

    for module in ("cycle", "train"):
        monkeypatch.setattr(f"pipelines.job_from_options.{module}.recovery_prompts", written)


def test_rows_that_no_teacher_serves_are_refused(ws: Workspace, docs: Path) -> None:
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Add.", "route": "maths"}, {"prompt": "Say."}])
    changes = {"distill.prompts": str(docs.parent / "prompts.jsonl"), "distill.method": "opd-multi"}
    with pytest.raises(InputError, match="no teacher for the route 'maths'"):
        distill_job(ws, student="base", changes={**changes, "distill.routes": {"code": "base"}})


@pytest.mark.usefixtures("unwritten")
def test_a_method_that_reads_pairs_alone_asks_for_no_prompts(ws: Workspace, docs: Path) -> None:
    pairs = lines(docs.parent / "pairs.jsonl", [{"prompt": "Say.", "response": "so"}])
    (docs.parent / "prompts.jsonl").unlink()
    ws.config = overrides.changed(ws.config, {"distill.prompts": "self"})
    changes = {"distill.method": "sft", "distill.pairs": str(pairs)}
    assert distill_job(ws, student="base", changes=changes).settings.pairs == str(pairs)
    assert cycle_job(ws, docs, changes={**changes, "midtrain.mix": ONLY_NEW}).prompts == "self"
    with pytest.raises(AssertionError, match="asked for"):
        distill_job(ws, student="base", changes={**changes, "distill.method": "sdft"})
    of_settings = {"distill.pairs": str(pairs), "distill.prompts": "self", "midtrain.mix": ONLY_NEW}
    with pytest.raises(AssertionError, match="asked for"):  # by the way `seqkd`, which auto tries too
        cycle_job(ws, docs, recover_with="auto", changes=of_settings)


def test_prompts_that_are_typed_where_pairs_alone_are_read_are_refused(ws: Workspace, docs: Path) -> None:
    """They were left unread without a word, a name with no file too."""
    pairs = lines(docs.parent / "pairs.jsonl", [{"prompt": "Say.", "response": "so"}])
    changes = {"distill.method": "sft", "distill.pairs": str(pairs), "midtrain.mix": ONLY_NEW}
    typed = {**changes, "distill.prompts": str(docs.parent / "prompts.jsonl")}
    for build in (
        lambda changes: distill_job(ws, student="base", changes=changes),
        lambda changes: cycle_job(ws, docs, changes=changes),
    ):
        with pytest.raises(InputError, match=r"--prompts has no effect .*pairs"):
            build(typed)
        assert build(changes)  # prompts.jsonl lies beside the documents
    for reading in ({"distill.method": "sdft"}, {"midtrain.mix": WITH_CHAT}):
        assert cycle_job(ws, docs, changes={**typed, **reading}).prompts == typed["distill.prompts"]


def test_a_guard_of_the_documents_wants_a_frozen_teacher(ws: Workspace, docs: Path) -> None:
    pairs = lines(docs.parent / "pairs.jsonl", [{"prompt": "Say.", "response": "so"}])
    changes = {"distill.method": "sft", "distill.pairs": str(pairs), "distill.overlap": "drop"}
    for build in (
        lambda: distill_job(ws, student="base", changes=changes),
        lambda: cycle_job(ws, docs, changes=changes),
    ):
        with pytest.raises(InputError, match="--overlap has no effect with method 'sft'"):
            build()
    kept = {**changes, "distill.overlap": "keep"}  # as every method does
    assert distill_job(ws, student="base", changes=kept).settings.overlap == "keep"


@pytest.mark.usefixtures("unwritten")
def test_merging_alone_asks_for_no_prompts_but_those_of_the_chat_share(ws: Workspace, docs: Path) -> None:
    (docs.parent / "prompts.jsonl").unlink()
    ws.config = overrides.changed(ws.config, {"distill.prompts": "self"})
    assert cycle_job(ws, docs, recover_with="merge", changes={"midtrain.mix": ONLY_NEW})
    with pytest.raises(AssertionError, match="asked for"):
        cycle_job(ws, docs, recover_with="merge", changes={"midtrain.mix": WITH_CHAT})


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ("sft", r"answers to learn from: set distill\.pairs"),
        ("sdft", r"answers to learn from: set distill\.pairs"),
        ("opsd", r"answer for the teacher: set distill\.context"),
        ("pid", r"hints for the teacher: set distill\.context"),
        ("rl", "answers to compare with: give other --prompts"),
    ],
)
def test_prompts_that_the_clean_model_would_write_are_refused_where_answers_are_read(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, method: str, wanted: str
) -> None:
    monkeypatch.setattr("pipelines.writing.self_prompts.write", lambda *_, **__: pytest.fail("written"))
    changes = {"distill.method": method, "distill.prompts": "self"}
    if method == "rl":
        changes["distill.reward"] = "exact"
    for build in (
        lambda: distill_job(ws, student="base", changes=changes),
        lambda: cycle_job(ws, docs, changes=changes),
    ):
        with pytest.raises(InputError, match=f"self: holds no {wanted}"):
            build()


@pytest.mark.usefixtures("unwritten")
def test_a_folder_without_documents_is_refused_first(ws: Workspace, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty"):
        distill_job(ws, student="base", docs=tmp_path / "empty", changes={"distill.prompts": "self"})


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    """A model whose tokenizer has one token more than the home's."""
    model = tiny.save(tmp_path / "stranger", seed=1)
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(model)
    return str(model)


def test_a_teacher_of_another_vocabulary_is_refused(ws: Workspace, docs: Path, stranger: str) -> None:
    asked = {"distill.prompts": str(docs.parent / "prompts.jsonl")}
    anchored = {"distill.method": "rl", "distill.reward": "ifeval", "distill.dials": {"anchor_beta": 0.1}}
    rewarded = lines(docs.parent / "rewarded.jsonl", [{"prompt": "Say one word.", **ASKED}])
    for changes in (asked, anchored | {"distill.prompts": str(rewarded)}):
        with pytest.raises(InputError, match=r"the teacher .*: 1 different token, first 'zzz'"):
            distill_job(ws, stranger, "base", changes=changes)
    unchecked = {**asked, "distill.preflight": False}
    assert not distill_job(ws, stranger, "base", changes=unchecked).settings.preflight


@pytest.mark.usefixtures("unwritten")
def test_teachers_that_no_prompts_can_serve_are_refused_before_prompts_are_written(
    ws: Workspace, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"distill.prompts": "self"}
    with pytest.raises(InputError, match=r"the teacher .*: 1 different token, first 'zzz'"):
        distill_job(ws, stranger, "base", changes=asked)
    with pytest.raises(InputError, match=r"teacher=previous: .* was never midtrained"):
        distill_job(ws, student="base", changes={**asked, "distill.dials": {"teacher": "previous"}})
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", 5))
    engine = {"distill.method": "opd-topk", "distill.teacher_engine": "http://127.0.0.1:1"}
    with pytest.raises(InputError, match="the length of the teacher 5 leaves no room for a prompt"):
        distill_job(ws, student="base", changes={**asked, **engine})
    with pytest.raises(AssertionError, match="asked for"):
        distill_job(ws, student="base", changes=asked)


def test_a_route_that_a_row_takes_leads_to_a_teacher_of_the_same_vocabulary(
    ws: Workspace, docs: Path, stranger: str
) -> None:
    prompts = docs.parent / "prompts.jsonl"
    routes = {"distill.method": "opd-multi", "distill.routes": {"code": stranger}}
    builds = (
        lambda: distill_job(ws, student="base", changes={**routes, "distill.prompts": str(prompts)}),
        lambda: cycle_job(ws, docs, changes=routes),
    )
    for build in builds:
        build()  # no row takes that route
    lines(prompts, [{"prompt": "Add.", "route": "code"}, {"prompt": "Say."}])
    for build in builds:
        with pytest.raises(InputError, match=r"the teacher .*: 1 different token"):
            build()


def test_an_adapter_as_teacher_on_an_engine_is_refused(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", None))
    chat = add_lora(ws.load(ws.clean()), LoraSpec(rank=2))
    adapter = ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id
    asked = {"distill.method": "opd-topk", "distill.prompts": str(docs.parent / "prompts.jsonl")}
    engine = {**asked, "distill.teacher_engine": "http://127.0.0.1:1"}
    previous = {**engine, "distill.dials": {"teacher": "previous"}}
    for build in (
        lambda: distill_job(ws, adapter, "base", changes=engine),
        lambda: cycle_job(ws, docs, student=adapter, changes=previous),
    ):
        with pytest.raises(InputError, match=f"the teacher {adapter} is an adapter: merge it first"):
            build()
    distill_job(ws, adapter, "base", changes=asked)
    cycle_job(ws, docs, student=adapter, changes=engine)  # the clean model teaches


def test_a_server_that_teaches_is_not_sent_all_weights(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would take the teacher's place, under its name: the student was scored with itself."""
    described = "recovery.engines.vllm_http.ServerEngine._described"
    monkeypatch.setattr(described, lambda engine, url: ("clean", None))
    teacher = "http://127.0.0.1:1,http://127.0.0.1:2"
    asked: dict[str, Any] = {"distill.method": "opd-topk", "distill.teacher_engine": teacher}
    asked["distill.prompts"] = str(docs.parent / "prompts.jsonl")
    sampled = {**asked, "distill.sampler": "http://localhost:2/v1/"}
    answered = {**asked, "eval.sampler": "http://LOCALHOST:1/"}
    whole = {"distill.lora": None, "midtrain.lora": None}
    for build in (
        lambda changes: distill_job(ws, student="base", changes=changes),
        lambda changes: cycle_job(ws, docs, changes=changes),
    ):
        with pytest.raises(InputError, match=r"distill\.sampler: localhost:2 is distill\.teacher_engine too"):
            build({**sampled, **whole})
        build({**sampled, **whole, "distill.sampler": "http://localhost:3"})
        build({**sampled, **whole, "distill.lora": {"rank": 2}})
    cycle_job(ws, docs, changes={**sampled, "midtrain.lora": {"rank": 2}, "distill.lora": "auto"})
    with pytest.raises(InputError, match=r"eval\.sampler: localhost:1 is distill\.teacher_engine too"):
        cycle_job(ws, docs, changes=answered)
    cycle_job(ws, docs, recover_with="merge", changes={"eval.sampler": answered["eval.sampler"]})
    distill_job(ws, student="base", changes=answered)  # evaluates nothing


def test_a_student_that_was_never_midtrained_has_no_previous_teacher_outside_a_cycle(
    ws: Workspace, docs: Path
) -> None:
    changes = {
        "distill.dials": {"teacher": "previous"},
        "distill.prompts": str(docs.parent / "prompts.jsonl"),
    }
    cycle_job(ws, docs, changes=changes)
    with pytest.raises(InputError, match=r"teacher=previous: .* was never midtrained"):
        distill_job(ws, student="base", changes=changes)
