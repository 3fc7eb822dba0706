"""Cycles upon cycles on several seeds are put together question by question."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import pytest

from benchmarks.outcomes import months, months_picture
from db.reads import queries
from pipelines.runs.workspace import Workspace
from tests.support.eval_items import items
from tests.support.small_cycles import make_docs, make_home, settle


def test_seeds_are_put_together_and_paired() -> None:
    answers: months.Answers = {
        (1, "ifeval"): {
            "clean": {4: items("ppff"), 7: items("ppff")},
            "midtrained": {4: items("ffff"), 7: items("pfff")},
            "recovered": {4: items("pppf"), 7: items("ppff")},
        }
    }
    [row] = months.table(answers)
    assert row["n"] == "2 × 4"
    assert [row[stage][:5] for stage in ("clean", "midtrained", "recovered")] == ["0.500", "0.125", "0.625"]
    assert row["recovered − clean"].startswith("+0.125 (-")
    assert row["recovered − midtrained"].startswith("+0.500 (")
    assert row["recovered, by seed"] == "0.750, 0.500"


def test_only_seeds_that_were_asked_are_compared() -> None:
    answers: months.Answers = {
        (1, "generated"): {
            "clean": {4: items("pp")},
            "midtrained": {4: items("pf")},
            "recovered": {4: items("pf"), 7: items("ff")},
        }
    }
    [row] = months.table(answers)
    assert row["recovered"].startswith("0.250")
    assert row["recovered − clean"].startswith("-0.500 (")


def test_what_was_known_then_is_of_the_seeds_that_are_asked_now() -> None:
    answers: months.Answers = {
        (1, "knowledge"): {"recovered": {4: items("pp"), 7: items("ff")}},
        (2, "knowledge:1"): {"recovered": {4: items("pf")}},
    }
    [row] = months.earlier_documents(answers)
    assert (row["then"][:5], row["now"][:5]) == ("1.000", "0.500")


@pytest.mark.slow
def test_the_second_month_begins_where_the_first_ended(tmp_path: Path) -> None:
    docs = make_docs(tmp_path)
    second = tmp_path / "second"
    shutil.copytree(docs, second)
    (second / "bo.md").write_text("Bo lives in Bonn. " * 5)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-3)
    home = (tmp_path / "home").rename(tmp_path / "seed-5")
    world = docs.parent
    for number in (1, 2):
        shutil.copy(world / "probes.jsonl", tmp_path / f"probes-{number}.jsonl")
    asked = argparse.Namespace(
        out=tmp_path,
        model=None,
        docs=[docs, second],
        prompts=world / "prompts.jsonl",
        ifeval=world / "ifeval.jsonl",
        generated=6,
        steps=2,
    )
    months.train(asked, 5)
    with Workspace.open(home) as ws:
        runs = len(queries.runs(ws.tracker.db, limit=100))
        first, then = (queries.cycle(ws.tracker.db, number) for number in (1, 2))
        [trained] = queries.runs(ws.tracker.db, kind="midtrain", limit=1)
        [recovered] = queries.runs(ws.tracker.db, kind="distill", limit=1)
    assert trained["config"]["student"] == first["checkpoints"]["recovered"]
    assert trained["seed"] == 5
    assert recovered["config"]["settings"]["steps"] == 2
    assert then["checkpoints"]["recovered"] != first["checkpoints"]["recovered"]
    months.train(asked, 5)
    with Workspace.open(home) as ws:
        assert len(queries.runs(ws.tracker.db, limit=100)) == runs
    answers = months.recorded(tmp_path)
    suites = ["generated", "ifeval", "knowledge", "retention"]
    assert [(row["month"], row["suite"]) for row in months.table(answers)] == [
        (month, suite) for month in (1, 2) for suite in suites if (month, suite) != (1, "generated")
    ]
    assert [row["documents of month"] for row in months.earlier_documents(answers)] == ["1"]
    months_picture.draw(answers, tmp_path / "months.png")
    assert (tmp_path / "months.png").stat().st_size > 1000
