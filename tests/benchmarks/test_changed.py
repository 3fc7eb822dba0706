"""The benchmark on changed facts: its prompts, its rows, its table, and that it resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.outcomes import changed
from evals import knowledge
from pipelines.microworld.changes import state

SCORES: dict[str, Any] = {
    "updates": {"n": 8, "answered": {"new": 5, "old": 2, "neither": 1}, "score": 5 / 8},
    "knowledge": {"score": 0.9},
    "retention": {"score": 0.8},
}


def test_a_row_holds_the_three_shares_of_the_answers() -> None:
    row = changed._row(SCORES, {"touch_new": 7})
    assert (row["new"], row["old"], row["neither"]) == (0.625, 0.25, 0.125)
    assert (row["n"], row["knowledge"], row["retention"], row["left_out"]) == (8, 0.9, 0.8, 7)
    assert changed._row(SCORES, {})["left_out"] is None


def test_the_table_is_the_mean_over_the_seeds_in_the_order_of_the_ways() -> None:
    lines = [
        {"seed": seed, "way": way, **changed._row(SCORES, {}), "new": new}
        for seed, way, new in ((1, "guard", 0.5), (2, "guard", 1.0), (1, "midtrained", 0.8))
    ]
    rows = changed.table(lines)
    assert [(row["way"], row["seeds"], row["questions"], row["new"]) for row in rows] == [
        ("`midtrained`", 1, 8, 0.8),
        ("`guard`", 2, 16, 0.75),
    ]


def test_the_added_prompts_ask_every_changed_fact(tmp_path: Path) -> None:
    world = changed.World(tmp_path, 6, small=True)
    try:
        asked = [json.loads(line) for line in world._asked().read_text().splitlines()]
    finally:
        world.ws.tracker.close()
    added = {row["prompt"] for row in asked if row["kind"] == "changed"}
    newest = state(6, 1, changed.SHARE).newest
    assert len(added) == 3 * len(newest) == 108
    direct = [
        p for p in knowledge.load_probes(world.folder / "probes.jsonl", "updates") if p.kind == "direct"
    ]
    assert {probe.prompt for probe in direct} <= added


def test_what_is_stored_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        def __init__(self, home: Path, seed: int, small: bool) -> None:
            self.ws = self
            self.tracker = self

        def close(self) -> None: ...

        def midtrained(self) -> str:
            return "m"

        def recovered(self, name: str) -> dict[str, Any]:
            return {"checkpoint": name, "overlap": {"prompts": {"touch_new": 3}}}

        def scores(self, checkpoint: str) -> dict[str, Any]:
            return SCORES

    monkeypatch.setattr(changed, "World", Fake)
    lines = changed.run(tmp_path, 1, ["guard"])
    assert [(line["way"], line["left_out"]) for line in lines] == [("midtrained", None), ("guard", 3)]
    monkeypatch.setattr(changed, "World", None)
    assert changed.run(tmp_path, 1, ["guard"]) == lines == changed.stored(tmp_path)
