"""The half of the questions that chooses among candidates, and the half that decides about the cycle."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.probes import load_probes
from evals.scores import Item
from pipelines.choose import in_selection
from pipelines.cli.cycles import require_accepted
from pipelines.runs.workspace import Workspace
from recovery.errors import GateError
from tests.support.small_cycles import ASKED, PROMPTS, lines, tried


def judged_on(words: str) -> int:
    """The number of questions in a sentence of the verdict."""
    return int(re.findall(r" of (\d+)", words)[0])


def put(docs: Path, suite: str, rows: list[dict[str, Any]]) -> None:
    """Put rows in the place of a suite's probes."""
    path = docs.parent / "probes.jsonl"
    lines(path, [*(probe.row() for probe in load_probes(path) if probe.suite != suite), *rows])


def facts(ws: Workspace, count: int, *, chooses: bool) -> list[str]:
    """Names of facts that are all in the half that chooses, or all in the one that decides."""
    names = (f"fact{n}" for n in range(1000))
    found = (one for one in names if in_selection(Item(one, "", "", True), ws.config.seed) == chooses)
    return [next(found) for _ in range(count)]


@pytest.mark.parametrize(("how", "limit"), [("auto", None), ("auto", 24), ("merge", 24)])
def test_every_question_either_chooses_or_decides(
    ws: Workspace, docs: Path, how: str, limit: int | None
) -> None:
    """Of a sample of the questions too, which is not half of a sample of its half."""
    found = tried(ws, docs, recover_with=how, changes={"eval.limit": limit})
    chosen, axes = found["tried"][-1], found["cycle"]["verdict"]["axes"]
    assert chosen["passed"] and found["cycle"]["status"] == "accepted"
    for name, words in zip(("behaviour", "knowledge", "retention"), chosen["words"], strict=False):
        assert words.startswith(name)
        assert 0 < judged_on(words) < axes[name]["n"] + judged_on(words) == (limit or PROMPTS)


@pytest.mark.parametrize(("how", "reuse"), [("auto", True), ("auto", False), ("merge", True)])
def test_a_model_is_asked_once_whether_as_a_candidate_or_as_the_result(
    ws: Workspace, docs: Path, how: str, reuse: bool
) -> None:
    """Where recorded scores are not reused, the result is asked again; the midtrained model is not."""
    chosen = tried(ws, docs, recover_with=how, changes={"eval.reuse": reuse})["chosen"]
    runs = {run["key"]: run["result"] for run in queries.runs(ws.tracker.db, kind="eval")}
    candidates = {key for key in runs if key.startswith("asked:")}
    assert candidates == ({"asked:merge:0.3"} if how == "merge" else set())
    assert chosen == ("merge:0.3" if how == "merge" else "none")
    scores = runs["eval:recovered"]["scores"]
    assert set(scores) == {"ifeval", "knowledge", "retention"}
    assert {queries.RECORDED_IN in score for score in scores.values()} == {reuse}


def test_candidates_are_judged_by_calibration_too(ws: Workspace, docs: Path) -> None:
    """Wrong options are answers to other questions, of either half."""
    asked = [{"id": f"q{n}", "prompt": f"Say {n}.", "answer": f"word{n}"} for n in range(PROMPTS)]
    put(docs, "retention", [row | {"suite": "retention"} for row in asked])
    changes = {"eval.behaviours": ["calibration"], "eval.behaviours_margin": 0.4}
    found = tried(ws, docs, recover_with="auto", changes=changes)
    assert [(one["name"], one["passed"]) for one in found["tried"]] == [("none", True)]
    (said,) = [words for words in found["tried"][0]["words"] if words.startswith("calibration: kept")]
    axis = found["cycle"]["verdict"]["axes"]["calibration"]
    assert (axis["outcome"], axis["n"] + judged_on(said)) == ("kept", PROMPTS)


def test_each_axis_that_is_too_small_names_its_own_way_to_more_questions(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three gaps of one sentence count as one to three, as where the cycle says how many it asks."""
    asked = [{"id": f"q{n}", "prompt": f"Say {n}.", "answer": f"word{n}"} for n in range(PROMPTS)]
    put(docs, "knowledge", [row | {"fact": f"sentence{n // 3}"} for n, row in enumerate(asked)])
    said: list[str] = []

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ws.progress, "say", said.append)
    monkeypatch.setattr("pipelines.choose._made", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tried(ws, docs, recover_with="merge", changes={"eval.margin": 0.03, "eval.retention_margin": 0.1})
    for axis, remedy in (
        ("behaviour", "write more prompts (`recover prompts ifeval`) or raise eval.samples"),
        ("knowledge", "add documents, or questions of your own in qa.jsonl"),
        ("retention", "give more rows of suite retention in the probes file"),
    ):
        (line,) = [one for one in said if one.startswith(f"  choose       {axis}: with ")]
        kind = f"questions about {PROMPTS // 3} facts" if axis == "knowledge" else "independent questions"
        assert f" with {PROMPTS} {kind}, 50% of which are judged, " in line
        assert line.endswith(f": {remedy}")


@pytest.mark.parametrize("chooses", [True, False])
def test_two_changed_facts_may_both_be_in_one_half(ws: Workspace, docs: Path, chooses: bool) -> None:
    """The half without them judges by the rest; the other cannot show of so few that they were updated."""
    changed = {"answer": "Rome", "was": "Oslo"}
    names = facts(ws, 2, chooses=chooses)
    put(docs, "updates", [changed | {"id": name, "prompt": f"Where is {name}?"} for name in names])
    found = tried(ws, docs, suites="ifeval,updates", recover_with="merge")
    first = found["tried"][0]
    (said,) = [words for words in first["words"] if words.startswith("updates")]
    assert first["passed"] is ("not measured" in said) is not chooses
    assert (found["cycle"]["verdict"]["updates"] == "not measured") is chooses
    assert found["cycle"]["status"] == "rejected"  # updates were asked for
    assert found["cycle"]["scores"]["updates"]["n"] == 2


@pytest.mark.parametrize("chooses", [True, False])
def test_the_only_fact_is_in_one_half(ws: Workspace, docs: Path, chooses: bool) -> None:
    (name,) = facts(ws, 1, chooses=chooses)
    put(docs, "knowledge", [{"id": name, "prompt": "Where is Bo?", "answer": "Rome"}])
    found = tried(ws, docs, recover_with="merge")
    assert found["tried"][0]["passed"] is not chooses
    assert found["cycle"]["verdict"]["knowledge"] == ("not measured" if chooses else "underpowered")
    assert found["cycle"]["status"] == "rejected"


def test_where_no_question_decides_the_cycle_is_rejected_and_says_so(ws: Workspace, docs: Path) -> None:
    (name,) = facts(ws, 1, chooses=True)
    lines(docs.parent / "ifeval.jsonl", [{"key": name, "prompt": "Line 1.", **ASKED}])
    found = tried(ws, docs, suites="ifeval", recover_with="merge")["cycle"]
    assert (found["status"], found["verdict"]) == ("rejected", None)
    with pytest.raises(GateError, match="rejected: no axis was judged"):
        require_accepted(ws, [found])


def test_the_halves_share_no_fact_and_depend_on_the_seed() -> None:
    def item(key: str, **detail: str) -> Item:
        return Item(key, "", "", True, detail)

    for name in map(str, range(20)):
        halves = {in_selection(item(f"{name}-{one}", fact=name), 3) for one in range(9)}
        assert halves == {in_selection(item(name), 3)} == {in_selection(item(f"{name}#1", cluster=name), 3)}
    assert any(in_selection(item(str(n)), 3) != in_selection(item(str(n)), 4) for n in range(20))
