"""Keys in model text, documents, settings and errors are hidden on all pages, in all exports and commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dashboard import page_frame, report
from db.export import TABLES
from db.redact import redact, redact_text
from db.writes.tracker import Tracker
from evals.families import suite
from evals.families.table import FAMILIES
from pipelines.writing import instruction_prompts
from tests.support import views
from tests.support.commands import Recover
from tests.support.dashboards import fill

KEYS = ("hf_abcdefghijklmnopqrstuv", "Zq9-longSecret_7", "x9y8z7w6v5u4")
SPELLED = ["Use", " hf", "_abcdefgh", "ijklmnop", "qrstuv", "."]
COMMANDS = (
    ("ls", "cycles"),
    ("ls", "runs"),
    ("ls", "checkpoints"),
    ("show", "cycle:1"),
    ("show", "broken"),
    ("flips",),
    ("compare", "clean0", "midtrained1"),
    ("query", "SELECT prompt, response, detail FROM items"),
    ("query", "SELECT * FROM documents"),
    ("query", "SELECT config, error FROM runs"),
    ("query", "SELECT * FROM traces"),
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Cycles, a failed run and a rollout whose every text holds keys."""
    with Tracker(tmp_path / "recover.db") as tracker:
        fill(tracker, 2, lambda: f"use {KEYS[0]} with OPENAI_KEY={KEYS[1]} at https://ann:{KEYS[2]}@host/x")
        config = {"settings": {"hub": {"token": KEYS[1]}, "url": f"https://host/x?sig={KEYS[1]}"}}
        run = tracker.start_run("distill", key="broken", config=config)
        with tracker.live(run.id) as live:
            live.traces(1, [rollout()])
        tracker.fail_run(run.id, f"EngineLost: Authorization: Bearer {KEYS[1]}")
    return tmp_path


def rollout() -> dict[str, Any]:
    count = len(SPELLED)
    tops = [[[piece, -0.1], ["a", -3.0]] for piece in SPELLED]
    tokens = {
        "finished": True,
        "ids": [*range(count)],
        "pieces": SPELLED,
        "student": [-0.1] * count,
        "teacher": [-0.2] * count,
        "divergence": [0.1, 0.2, 2.5, 0.1, 0.1, 0.1],
        "student_top": tops,
        "teacher_top": tops,
    }
    return {"prompt": f"Use {KEYS[0]}", "estimator": "exact", "mean": 0.5, "n": count, "tokens": tokens}


def assert_hidden(where: object, said: str) -> None:
    found = [key for key in (*KEYS, *SPELLED[2:5]) if key in said]
    assert said.strip() and found == [], (where, found)


def test_no_page_shows_a_key(home: Path) -> None:
    with Tracker(home / "recover.db") as tracker:
        for path in page_frame.BY_PATH:
            assert_hidden(path, page_frame.render(views.context(tracker), f"{path}?n=1"))
        assert "(hidden)" in page_frame.render(views.context(tracker), "/tokens")
        assert_hidden("report", report.report(tracker.db, 1))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_command_prints_a_key(home: Path, recover: Recover, words: tuple[str, ...]) -> None:
    if words == ("show", "broken"):
        with Tracker(home / "recover.db") as tracker:
            words = ("show", tracker.start_run("distill", key="broken").id)
    for as_json in ((), ("--json",)):
        said = recover("--home", home, *as_json, *words)
        assert_hidden(words, said.out + said.err)


def test_the_tokens_of_traces_are_shown_but_for_the_key_that_they_spell(home: Path, recover: Recover) -> None:
    row = recover("--home", home, "--json", "query", "SELECT tokens FROM traces").json[0]
    assert json.loads(row["tokens"])["pieces"] == ["Use", *["(hidden)"] * 4, "."]


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_no_export_holds_a_key(home: Path, recover: Recover, kind: str) -> None:
    for table in TABLES:
        said = recover("--home", home, "export", table, "--format", kind)
        assert said.code == 0
        assert_hidden(table, said.out + "-")


def test_generated_prompts_are_printed_as_they_are() -> None:
    rows = instruction_prompts.rows(instruction_prompts.generate(300, 0, []), 0)
    for family in FAMILIES.values():
        rows += [suite.row(one) for one in suite.recovery(family, 30, 0, [])]
    assert redact(rows) == rows
    assert [text for row in rows if (text := json.dumps(row)) != redact_text(text)] == []
