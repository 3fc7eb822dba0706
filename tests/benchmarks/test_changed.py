"""The benchmark on changed facts: its prompts, its lines, its tables, and that it resumes."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.outcomes import changed
from evals.probes import load_probes
from evals.scores import Item
from pipelines.config import overrides, settings
from pipelines.config.fitted import fit_to_corpus
from pipelines.config.jobs import MidtrainJob
from pipelines.microworld.changes import state


def items(answers: str, passed: str = "++") -> dict[str, list[Item]]:
    """Four changed facts, answered n(ew), o(ld) or x (neither), and the questions of the other suites."""
    said = {"n": "new", "o": "old", "x": "neither"}
    updates = [
        Item(f"{at}/direct", "", "", one == "n", {"fact": f"{at}", "answered": said[one]})
        for at, one in enumerate(answers)
    ]
    others = [Item(f"{at}", "", "", one == "+", {"fact": f"{at}"}) for at, one in enumerate(passed)]
    return {"updates": updates} | dict.fromkeys(changed.SUITES[1:], others)


def lines(seed: int, way: str, answers: str, passed: str = "++", stage: str = "recovered") -> dict[str, Any]:
    named = {"seed": seed, "way": way, "cycle": 1, "stage": stage, "small": False, "left_out": 3}
    odds = [float(one == "o") for one in answers]
    return named | changed.line(items(answers, passed)) | {"old_odds": odds}


def test_the_table_pools_the_questions_of_all_seeds_in_the_order_of_the_ways() -> None:
    stored = [
        lines(1, "whole", "oo"),
        lines(1, "preset", "nnox"),
        lines(2, "preset", "nnnn", "+-"),
        lines(1, "preset", "xxxx", stage="midtrained"),
    ]
    rows = changed.table(stored)
    assert [(row["stage"], row["way"], row["seeds"], row["questions"]) for row in rows] == [
        ("midtrained", "`preset`", 1, 4),
        ("recovered", "`preset`", 2, 8),
        ("recovered", "`whole`", 1, 2),
    ]
    both = rows[1]
    assert [both[name][:5] for name in ("new", "old", "neither", "knowledge")] == [
        "0.750",
        "0.125",
        "0.125",
        "0.750",
    ]
    assert both["odds of old"] == "0.125"
    low, high = (float(bound) for bound in both["new"][7:-1].split(" to "))
    assert low < 0.75 < high and both["prompts left out"] == 6


def test_it_counts_what_recovery_pulls_back() -> None:
    stored = [
        lines(1, "preset", "nnox", stage="midtrained"),
        lines(1, "preset", "noon"),
        lines(2, "preset", "nnnn"),  # its midtrained model was not measured
        lines(1, "whole", "oooo", stage="midtrained"),
    ]
    counted = {(row["stage"], row["way"]): row["pulled back"] for row in changed.table(stored)}
    assert counted == {
        ("midtrained", "`preset`"): None,
        ("midtrained", "`whole`"): None,
        ("recovered", "`preset`"): "1 of 2",
    }


def test_the_difference_is_paired_by_question_and_seed() -> None:
    stored = [lines(1, "text", "nooo"), lines(1, "preset", "nnno"), lines(2, "preset", "oooo")]
    rows = changed.differences(stored, "preset", "text")
    found = {row[""]: row["difference"] for row in rows}
    assert {row["seeds"] for row in rows} == {1}
    assert found["answered `new`"].startswith("+0.500") and found["answered `old`"].startswith("-0.500")
    assert found["knowledge"].startswith("+0.000")
    assert changed.differences(stored[1:], "preset", "text") == []
    with pytest.raises(SystemExit, match="other questions"):
        changed.differences([lines(1, "text", "n"), lines(1, "preset", "nn")], "preset", "text")


def test_the_added_prompts_ask_every_changed_fact(tmp_path: Path) -> None:
    world = changed.World(tmp_path, 6, small=True)
    try:
        asked = [json.loads(line) for line in world.asked(1).read_text().splitlines()]
        folder = world.folder(1)
    finally:
        world.ws.tracker.close()
    added = {row["prompt"] for row in asked if row["kind"] == "changed"}
    newest = state(6, 1, changed.SHARE).newest
    assert len(added) == 3 * len(newest) == 108
    direct = [p for p in load_probes(folder / "probes.jsonl", "updates") if p.kind == "direct"]
    assert {probe.prompt for probe in direct} <= added


def test_ways_that_midtrain_alike_share_a_midtrained_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: dict[str, Any] = {}

    def midtrain(ws: Any, job: MidtrainJob, *, key: str) -> dict[str, str]:
        assert trained.setdefault(key, job.settings) == job.settings
        return {"checkpoint": key}

    monkeypatch.setattr(changed, "midtrain", midtrain)
    world = changed.World(tmp_path, 6, small=True)
    try:
        found = {name: world.midtrained(way, 1, "base") for name, way in changed.WAYS.items()}
    finally:
        world.ws.tracker.close()
    assert found["preset"] == found["text"] == found["asked-guard"] == found["half"]
    assert len({found[name] for name in ("preset", "whole", "documents", "shorter", "longer-half")}) == 5
    assert len(trained) == 5 and found["shorter"] == found["shorter-half"]
    preset = trained[found["preset"]]
    documents = trained[found["documents"]]
    assert preset.mix.questions == 0.3 and documents.mix.questions == 0
    assert documents == preset.model_copy(update={"mix": documents.mix})  # nothing else


def test_documents_alone_take_as_many_steps_as_the_preset_in_every_cycle() -> None:
    config = settings.parse(settings.preset_text("microworld"), "preset")
    alone = overrides.changed(config, changed.DOCUMENTS).midtrain
    for tokens, share in ((70_000, lambda mix: mix.at_first.new), (77_000, lambda mix: mix.new)):
        one, other = (fit_to_corpus(mine, tokens, share(mine.mix)) for mine in (config.midtrain, alone))
        assert one.steps == other.steps


def test_each_cycle_goes_on_from_the_one_before_and_nothing_is_measured_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    students: list[str] = []

    class Fake:
        def __init__(self, home: Path, seed: int, small: bool) -> None:
            self.seed = seed
            self.ws = nullcontext()

        def midtrained(self, way: changed.Way, cycle: int, student: str) -> str:
            students.append(student)
            return f"m{cycle}"

        def recovered(self, way: changed.Way, cycle: int, midtrained: str) -> dict[str, Any]:
            return {"checkpoint": f"r{cycle}", "overlap": {"prompts": {"touch_new": 3}}}

        def items(self, checkpoint: str) -> dict[str, list[Item]]:
            return items("nn" if checkpoint.startswith("r") else "oo")

        def old_odds(self, checkpoint: str, updates: list[Item]) -> list[float]:
            return [0.25 for _ in updates]

    monkeypatch.setattr(changed, "World", Fake)
    found = changed.run(tmp_path, 1, ["preset"], cycles=2)
    assert students == ["base", "r1"]
    assert {tuple(row["old_odds"]) for row in found} == {(0.25, 0.25)}
    assert [(row["cycle"], row["stage"], row["answered"], row["left_out"]) for row in found] == [
        (1, "midtrained", ["old", "old"], None),
        (1, "recovered", ["new", "new"], 3),
        (2, "midtrained", ["old", "old"], None),
        (2, "recovered", ["new", "new"], 3),
    ]
    monkeypatch.setattr(changed, "World", None)
    assert changed.run(tmp_path, 1, ["preset"], cycles=2) == found == changed.stored(tmp_path)
    assert "Seeds 1." in changed.page(found)
