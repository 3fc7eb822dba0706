"""Clean weights put back part by part: the broken part is found, and a set where one part is not enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from db.reads import queries
from evals.probes import load_probes
from evals.scores import Item, chat
from evals.statistics import items_to_pass
from evals.verdict import ALPHA
from pipelines.cli.diagnose import locate_text
from pipelines.config.jobs import EvalJob
from pipelines.evaluate import evaluate
from pipelines.evaluation.model_answers import ModelAnswers
from pipelines.job_from_options.measure import locate_job
from pipelines.locate import _Search, in_words, locate
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.inspection.weight_parts import Part
from tests.support import tiny
from tests.support.small_cycles import lines, make_docs, settle

COMMA = ord(",")


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    from pipelines.machine.init_home import initialise

    make_docs(tmp_path)
    with Workspace.open(tmp_path / "home") as workspace:
        model = tiny.save(tmp_path / "model", tie_word_embeddings=False)
        initialise(workspace, model=str(model), preset="microworld")
        settle(workspace, margin=0.4, learning_rate=1e-4)
        yield workspace


def broken(ws: Workspace) -> str:
    """Return a checkpoint whose head begins every answer with a comma, and whose norms moved a little."""
    clean = ws.clean()
    model = ws.load(clean)
    ids = torch.tensor([model.prompt_ids(chat("Line 1."))])
    with torch.no_grad():
        state_D = model.model.model(ids).last_hidden_state[0, -1]
        model.model.lm_head.weight[COMMA] = 100 * state_D
        model.model.model.norm.weight.mul_(1.001)
    run = ws.tracker.start_run("init", key="broken", config={})
    return ws.publish(model, parent=clean, run_id=run.id, config={}).id


def changes(tmp_path: Path) -> dict[str, Any]:
    world = tmp_path / "world"
    return {"eval.ifeval": str(world / "ifeval.jsonl"), "eval.probes": str(world / "probes.jsonl")}


def test_a_file_of_questions_leaves_the_other_suites_in_the_search(ws: Workspace, tmp_path: Path) -> None:
    asked = changes(tmp_path)
    every = set(locate_job(ws, "base", 2, changes=asked).suites)
    named = locate_job(ws, "base", 2, changes={"eval.ifeval": asked["eval.ifeval"]})
    assert "retention" in every and "retention" in named.suites and "behaviour" in named.required


def test_too_few_questions_are_said_before_any_is_asked(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = locate_job(ws, broken(ws), 2, changes={**changes(tmp_path), "eval.margin": 0.03})
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.locate.evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        locate(ws, job, key="once")
    (line,) = (line for line in said if line.startswith("  locate       behaviour: with 36 independent"))
    assert f"{items_to_pass(0.03, ALPHA / 2)} questions give" in line  # two parts have moved


def test_the_part_that_forgot_is_found(ws: Workspace, tmp_path: Path) -> None:
    checkpoint = broken(ws)
    job = locate_job(ws, checkpoint, 2, changes={**changes(tmp_path), "seed": 3})
    found = locate(ws, job, key="once")
    assert {run["config"]["seed"] for run in queries.runs(ws.tracker.db, kind="eval")} == {3}
    rows = {row["parts"][0]: row for row in found["parts"]}
    assert {name for name, row in rows.items() if row["axes"]} == {"head", "norms"}  # no other part moved
    assert rows["head"]["passed"] and not rows["norms"]["passed"]
    assert rows["head"]["axes"]["behaviour"]["difference"] == 0
    assert rows["norms"]["axes"]["behaviour"]["difference"] < -0.9
    assert found["offered"]["parts"] == ["head"] and found["sets"] == []
    assert found["alpha"] == pytest.approx(0.05 / 2)
    assert found["words"].startswith("put back head: behaviour at most")
    assert "norms" in locate_text(found) and found["words"] in locate_text(found)
    assert re.search(r"[+-]\d+\.\d \[[+-]\d+\.\d, [+-]\d+\.\d\]", locate_text(found))  # in points


@pytest.mark.parametrize(("required", "passed"), [(("ifeval",), True), (("ifeval", "tools"), False)])
def test_a_family_that_must_hold_and_was_not_asked_stands_in_the_way(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, required: tuple[str, ...], passed: bool
) -> None:
    """As of a model whose chat template takes no tools: a cycle of it is rejected too."""
    same = [Item(f"k{n}", f"p{n}", "r", True) for n in range(200)]
    monkeypatch.setattr("pipelines.locate._evaluated", lambda *_: {"score_ids": {}, "scores": {}})
    monkeypatch.setattr(
        "pipelines.locate.items_by_suite", lambda *_: {"ifeval": {"recovered": same}, "tools": {}}
    )
    monkeypatch.setattr(_Search, "_mixed", lambda *_: "mixture")
    job: Any = SimpleNamespace(settings=ws.config.eval, required=required)
    ends: Any = {"ifeval": {"clean": same, "midtrained": same}, "tools": {}}
    none: Any = None
    row = _Search(ws, job, none, ends, 0.05).row((Part("head", frozenset(), 1, 0.1),))
    assert row["passed"] is passed


def test_every_axis_that_may_refuse_a_mixture_is_shown() -> None:
    """Changed facts, families and tasks were not: all that was shown had come back, and it was not enough."""
    back = {"difference": 0.0, "lower_bound": -0.01, "upper_bound": 0.01, "outcome": "recovered"}
    lost = {"difference": -0.2, "lower_bound": -0.25, "upper_bound": -0.15, "outcome": "lost"}
    unasked = dict.fromkeys(back) | {"outcome": "not measured"}
    axes = {"behaviour": back, "updates": lost, "tools": unasked, "gsm8k": lost}
    head = {"parts": ["head"], "moved": 0.1, "axes": axes, "passed": False}
    norms = {"parts": ["norms"], "moved": 0.0, "axes": {}, "passed": False}
    names, first, second, said, *_ = locate_text(
        {"parts": [head, norms], "sets": [], "words": "none"}
    ).splitlines()
    columns = ["behaviour", "knowledge", "retention", "updates", "tools", "gsm8k"]
    assert names.split() == ["put", "back", "moved", *columns, "enough"]
    missed = "-20.0 [-25.0, -15.0]"
    shown = ["head", "0.100", "+0.0 [-1.0, +1.0]", "-", "-", missed, "not measured", missed, "no"]
    assert re.split(r"\s{2,}", first) == shown
    assert second.split() == ["norms", "0.000", *"-" * 6, "no"]
    assert said.startswith("behaviour, knowledge, retention, updates, tools, gsm8k: points of difference")


def test_a_resumed_search_repeats_no_evaluation(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = locate_job(ws, broken(ws), 2, changes=changes(tmp_path))
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return evaluate(*args, **kwargs)

    monkeypatch.setattr("pipelines.locate.evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        locate(ws, job, key="once")
    done = len(queries.runs(ws.tracker.db, kind="eval", status="done"))
    monkeypatch.setattr("pipelines.locate.evaluate", evaluate)
    assert locate(ws, job, key="once")["offered"]["parts"] == ["head"]
    runs = queries.runs(ws.tracker.db, kind="eval")
    assert done == 3 and len(runs) == 4  # clean, checkpoint, norms, head: each once
    assert {run["status"] for run in runs} == {"done"}


@pytest.mark.parametrize("reuse", [True, False])
def test_recorded_scores_of_both_ends_are_read_unless_asked_anew(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reuse: bool
) -> None:
    checkpoint = broken(ws)
    job = locate_job(ws, checkpoint, 2, changes={**changes(tmp_path), "eval.reuse": reuse})
    ends = {job.clean, checkpoint}
    for end in sorted(ends):
        evaluate(ws, EvalJob(checkpoint=end, suites=job.suites, settings=job.settings), key=end)
    asked: set[str] = set()
    write = ModelAnswers._write

    def noted(answers: ModelAnswers, *args: Any, **kwargs: Any) -> list[list[int]]:
        asked.add(answers.job.checkpoint)
        return write(answers, *args, **kwargs)

    monkeypatch.setattr(ModelAnswers, "_write", noted)
    found = locate(ws, job, key="once")
    mixtures = {row["checkpoint"] for row in found["parts"] if row["checkpoint"]}
    assert asked == (mixtures if reuse else mixtures | ends)
    assert found["offered"]["parts"] == ["head"]


def test_the_clean_model_itself_is_refused(ws: Workspace, tmp_path: Path) -> None:
    job = locate_job(ws, "base", 2, changes=changes(tmp_path))
    with pytest.raises(InputError, match="nothing to put back"):
        locate(ws, job, key="once")


def test_behaviour_must_be_among_the_suites(ws: Workspace, tmp_path: Path) -> None:
    job = locate_job(ws, "base", 2, "knowledge", changes=changes(tmp_path))
    with pytest.raises(InputError, match="needs ifeval"):
        locate(ws, job, key="once")


def test_changed_facts_are_required_only_where_they_were_named(ws: Workspace, tmp_path: Path) -> None:
    """As of a cycle: the few facts that changed would mostly stay underpowered."""
    path = tmp_path / "world" / "probes.jsonl"
    moved = {"id": "moved", "prompt": "Where is 3?", "answer": "Rome", "was": "Oslo"}
    lines(path, [*(probe.row() for probe in load_probes(path)), moved])
    job = locate_job(ws, "base", 2, changes=changes(tmp_path))
    assert "updates" in job.suites
    assert job.required == ("behaviour", "knowledge", "retention")
    named = locate_job(ws, "base", 2, "ifeval,updates", changes=changes(tmp_path))
    assert named.required == ("behaviour", "updates")


def test_a_part_is_enough_where_few_changed_facts_show_nothing(ws: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "world" / "probes.jsonl"
    moved = {"id": "moved", "prompt": "Where is 3?", "answer": "Rome", "was": "Oslo"}
    lines(path, [*(probe.row() for probe in load_probes(path)), moved])
    found = locate(ws, locate_job(ws, broken(ws), 2, changes=changes(tmp_path)), key="once")
    head = next(row for row in found["parts"] if row["parts"] == ["head"])
    assert head["axes"]["updates"]["outcome"] == "underpowered"
    assert head["passed"]


# ---- sets


def tried(parts: tuple[Part, ...], needed: set[str]) -> dict[str, Any]:
    """A mixture that is enough once it holds what is needed; each needed part brings back 0.3."""
    names = {part.name for part in parts}
    behaviour = {
        "difference": -0.6 + 0.3 * len(names & needed),
        "lower_bound": -0.7,
        "upper_bound": 0.0,
        "n": 40,
    }
    return {
        "parts": [part.name for part in parts],
        "axes": {"behaviour": behaviour},
        "passed": needed <= names,
    }


def grown(monkeypatch: pytest.MonkeyPatch, needed: set[str]) -> list[dict[str, Any]]:
    monkeypatch.setattr(_Search, "row", lambda self, parts: tried(parts, needed))
    moved = [Part(name, frozenset({name}), 10, 0.1) for name in "abcd"]
    search: Any = object.__new__(_Search)
    return list(search.growing(moved, [search.row((part,)) for part in moved]))


def test_sets_grow_by_what_helped_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row["parts"] for row in grown(monkeypatch, {"b", "d"})] == [["b", "d"]]
    assert grown(monkeypatch, {"d"})[0]["parts"][0] == "d"


def test_the_clean_model_is_never_offered_as_a_set(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = grown(monkeypatch, set("abcd"))
    assert [len(row["parts"]) for row in rows] == [2, 3]
    words = in_words({"parts": [], "sets": rows, "offered": None})
    assert words.startswith("no part and no set of parts was shown to be enough; a, b, c came nearest")
