"""The commands on an engine: same results from wherever it writes, a run that stops clearly and goes on."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from db.reads import queries
from pipelines.config import settings
from pipelines.config.overrides import changed
from pipelines.engines import engine_places
from pipelines.runs.workspace import Workspace
from recovery.command_line import command
from recovery.engines import vllm_server
from recovery.errors import InputError
from recovery.extras import to_install
from recovery.models import quantization
from recovery.models.loading import ModelSpec, load
from recovery.storage.checkpoints import Checkpoint
from tests.support import tiny
from tests.support.commands import Recover, make_small, make_world, run_quietly
from tests.support.engine_fakes import FakeServer, TinyEngine, serving

WEIGHTS_OF_NOBODY = 9  # what a server starts with is not the student's: only a sync can make it so


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a tiny model was taught."""
    root = tmp_path_factory.mktemp("engines")
    docs = make_world(root / "world")
    home = root / "home"
    run_quietly("-q", "--home", home, "init", "--model", tiny.save(root / "model"), "--preset", "microworld")
    make_small(home / "recover.yaml")
    run_quietly("-q", "--home", home, "midtrain", "--docs", docs)
    return home


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(TinyEngine(tiny.chat_model(seed=WEIGHTS_OF_NOBODY))) as found:
        yield found


def test_an_engine_gives_the_evaluation_the_results_of_this_process(
    recover: Recover, home: Path, server: FakeServer
) -> None:
    asked = {name: home.parent / "world" / f"{name}.jsonl" for name in ("ifeval", "probes")}
    files = [word for name, path in asked.items() for word in (f"--{name}", path)]
    here = recover("-q", "--json", "--home", home, "eval", "base", *files).json
    there = recover("-q", "--json", "--home", home, "eval", "base", *files, "--sampler", server.url).json
    assert there["scores"] == here["scores"]
    assert server.served  # it was the server that answered


def test_distillation_follows_the_student_and_reports_how_near_the_engine_was(
    recover: Recover, home: Path, server: FakeServer
) -> None:
    done = recover("-q", "--json", "--home", home, "distill", "--sampler", server.url)
    assert done.code == 0, done.err
    rows = recover(
        "--json",
        "--home",
        home,
        "query",
        "SELECT name, value FROM metrics WHERE name IN ('canary_gap', 'sampler_gap') ORDER BY step",
    ).json
    assert {row["name"] for row in rows} == {"canary_gap", "sampler_gap"}
    assert all(row["value"] < 1e-3 for row in rows if row["name"] == "canary_gap")


def test_answers_may_be_written_a_step_ahead(
    recover: Recover, home: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = ("--sampler", server.url, "--ahead", "1", "--steps", "3")
    refused = recover("--home", home, "distill", *ahead)
    assert refused.code == 2 and "raise save_every" in refused.error
    seldom = (home / "recover.yaml").read_text().replace("save_every: 1", "save_every: 0")
    monkeypatch.setattr(settings, "read", lambda path: settings.parse(seldom, str(path)))
    done = recover("--json", "--home", home, "distill", *ahead)
    assert done.code == 0, done.err
    assert "one step old: importance weights, multiplied along each answer, up to 2" in done.err
    rows = recover(
        "--json",
        "--home",
        home,
        "query",
        "SELECT step, value FROM metrics WHERE name = 'importance_weight' ORDER BY step",
    ).json
    assert [row["step"] for row in rows] == [1, 2, 3]
    refused = recover("--home", home, "distill", "--ahead", "1")
    assert refused.code == 2 and "give --sampler" in refused.error


def test_a_teacher_elsewhere_scores_for_the_methods_that_can_use_it(recover: Recover, home: Path) -> None:
    asked = ("--json", "--home", home, "distill", "--method", "opd-topk", "--set", "minibatches=1")
    here = recover(*asked)
    with serving(TinyEngine(load(ModelSpec(str(home.parent / "model"), device="cpu")))) as server:
        there = recover(*asked, "--teacher-engine", server.url)
    assert here.code == there.code == 0, there.err
    assert any("prompt_logprobs" in body for body in server.served)
    unchecked = "preflight    the teacher on"
    assert f"{unchecked} {server.url} was not checked" in there.err and unchecked not in here.err
    refused = recover("--home", home, "distill", "--method", "opd", "--teacher-engine", "http://127.0.0.1:9")
    assert refused.code == 2 and "opd-topk or opd-sampled" in refused.error


def test_a_server_that_an_evaluation_sent_weights_does_not_teach(recover: Recover, home: Path) -> None:
    """It serves them under the name of the checkpoint that it was started with."""
    asked = ("--ifeval", home.parent / "world" / "ifeval.jsonl")
    with serving(TinyEngine(load(ModelSpec(str(home.parent / "model"), device="cpu")))) as server:
        done = recover("-q", "--home", home, "eval", "base", *asked, "--sampler", server.url)
        assert done.code == 0, done.err
        words = ("distill", "--method", "opd-topk", "--teacher-engine", server.url)
        said = recover("-q", "--home", home, *words)
    assert said.code == 2 and "was sent other weights since it was started" in said.err


def test_a_server_of_another_checkpoint_of_the_home_does_not_teach(
    recover: Recover, home: Path, server: FakeServer
) -> None:
    with Workspace.open(home) as ws:
        clean = ws.clean().id
        server.name = next(row["id"] for row in queries.checkpoints(ws.tracker.db) if row["id"] != clean)
    said = recover("--home", home, "distill", "--method", "opd-topk", "--teacher-engine", server.url)
    assert said.code == 2 and f"serves the checkpoint {server.name}, but the teacher is {clean}" in said.err
    assert f"`{command(home, 'serve', clean)}`" in said.err


def test_an_engine_that_forgets_stops_the_run_which_then_goes_on(
    recover: Recover, home: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = server.engine
    load = engine.load
    given: list[dict[str, Any]] = []

    def forgets_later(tensors: dict[str, Any]) -> None:
        given.append(tensors)
        engine.fault = "forgets" if len(given) > 2 else ""  # after preflight and the first step
        load(tensors)

    monkeypatch.setattr(engine, "load", forgets_later)
    engine.forever = True
    stopped = recover("-q", "--home", home, "distill", "--seed", "5", "--sampler", server.url)
    assert stopped.code == 1
    last = stopped.err.splitlines()[-1]
    assert "lost twice" in last and "recover resume" in last
    monkeypatch.setattr(engine, "load", load)
    engine.fault = ""
    done = recover("-q", "--json", "--home", home, "resume")
    assert done.code == 0, done.err


def test_vllm_that_is_not_installed_is_one_line_and_bad_input(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    without = lambda name, *rest: None if name == "vllm" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    for words in (("eval", "--sampler", "vllm"), ("eval", "--sampler", "server"), ("serve", "base")):
        said = recover("-q", "--home", home, *words)
        assert said.code == 2 and f"vLLM is not installed; {to_install('vllm')}" in said.error


def test_a_checkpoint_to_serve_is_named_and_whole(recover: Recover, home: Path) -> None:
    said = recover("-q", "--home", home, "serve")
    assert said.code == 2 and "Missing argument 'CHECKPOINT'" in said.error
    adapter = Checkpoint("new", home, "adapter", "old", "", base="old")
    merge = command(home, "merge", "--student", "new", "--with", "old", "--weight", "0")
    way = f"new is an adapter: `{merge}` writes a whole checkpoint"
    with Workspace.open(home) as ws, pytest.raises(InputError, match=re.escape(way)):
        engine_places.require_whole(ws, adapter)


def test_preflight_refuses_what_an_engine_does_not_sample(
    recover: Recover, home: Path, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization, "quantised_as", lambda _: "mxfp4")
    said = recover("-q", "--home", home, "preflight", "--student", "base", "--sampler", server.url)
    assert said.code == 2 and "distill.sampler: vLLM holds" in said.error and "in MXFP4" in said.error
    assert not server.served


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_a_served_checkpoint_has_the_dtype_of_a_trainer_here(
    home: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, dtype: str
) -> None:
    """vLLM's own `auto` is the checkpoint's dtype: on a CPU the canary took that for other weights."""
    made: dict[str, Any] = {}

    def server(*_: Any, **options: Any) -> SimpleNamespace:
        made.update(options)
        return SimpleNamespace(start=lambda on_wait: None, stop=lambda: None)

    monkeypatch.setattr(vllm_server, "Server", server)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with Workspace.open(home) as ws:
        vars(ws)["config"] = changed(ws.config, {"model.dtype": "auto"})
        with engine_places.serve(ws, "base", host="127.0.0.1", port=0, rank=0):
            assert made["dtype"] == dtype


def test_a_served_checkpoint_chats_as_it_was_trained_and_judged(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen3's template thinks unless it is told not to, so clients met a model that no score was of."""
    made: list[Any] = []

    def server(directory: Path, settings: Any, **_: Any) -> SimpleNamespace:
        made.append(settings.arguments.get("default-chat-template-kwargs"))
        return SimpleNamespace(start=lambda on_wait: None, stop=lambda: None)

    monkeypatch.setattr(vllm_server, "Server", server)
    thinks_not = {"model.template_args": {"enable_thinking": False, "today": "2026-01-31"}}
    own = {"engine.arguments": {"default-chat-template-kwargs": "{}"}}
    with Workspace.open(home) as ws:
        began = ws.config
        for changes in (thinks_not, {}, thinks_not | own):
            vars(ws)["config"] = changed(began, changes)
            with engine_places.serve(ws, "base", host="127.0.0.1", port=0, rank=0):
                pass
    assert made == ['{"enable_thinking": false}', None, "{}"]


def test_a_place_that_is_none_is_refused_before_anything_is_recorded(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for late in ("pipelines.distillation.dry_run.preflight_report", "pipelines.retrieval.retrieval"):
        monkeypatch.setattr(late, None)
    for words in (("eval",), ("distill",), ("preflight",), ("retrieval",)):
        said = recover("-q", "--home", home, *words, "--sampler", "vlm")
        assert said.code == 2 and "give inprocess, vllm, server or a server's URL" in said.error


def test_preflight_looks_at_the_engine_that_will_write(
    recover: Recover, home: Path, server: FakeServer
) -> None:
    found = recover("-q", "--json", "--home", home, "preflight", "--sampler", server.url)
    checks = {check["name"]: check["ok"] for check in found.json}
    assert checks["sampler log-probs"] and server.served
    server.engine.fault = "forgets"
    server.engine.forever = True
    said = recover("-q", "--home", home, "preflight", "--student", "base", "--sampler", server.url)
    assert said.code == 1 and "does not hold the trainer's weights" in said.err
