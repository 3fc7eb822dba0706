"""The bench on keeping knowledge: what differs between its ways, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import Ledger, read
from benchmarks.outcomes import keep
from pipelines.config import settings
from pipelines.microworld import people, world
from pipelines.runs.workspace import Workspace


def test_touching_prompts_ask_about_the_new_people_beside_the_worlds_own(tmp_path: Path) -> None:
    world.write_world(tmp_path, cycle=2, seed=6)
    path = Path(keep._touching(tmp_path, 2, 6))
    written = path.read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    touching = [row["prompt"] for row in rows if row["kind"] == "touching"]
    names = [who.name for who in people.new_people(6, 2)]
    assert len(touching) == keep.TOUCHING and all(any(name in text for name in names) for text in touching)
    assert len(rows) == keep.TOUCHING + len((tmp_path / "prompts.jsonl").read_text().splitlines())
    keep._touching(tmp_path, 2, 6)
    assert path.read_text() == written


def test_small_is_the_preset_with_two_steps(tmp_path: Path) -> None:
    keep._prepare(tmp_path, small=True)
    with Workspace.open(tmp_path) as ws:
        found = ws.config
    assert (found.midtrain.steps, found.midtrain.epochs, found.distill.steps) == (2, None, 2)
    assert found.midtrain.mix == settings.parse(settings.preset_text("microworld"), "preset").midtrain.mix


def test_a_ways_row_is_the_mean_over_cycles_and_the_rest_after_the_last() -> None:
    same = {"way": "preset", "seed": 0, "reverse": None, "ifeval_clean": 0.9, "touching": 2}
    row = {**same, "general": 0.9, "general_clean": 1.0}
    cycles = [
        {**row, "cycle": 1, "direct": 0.8, "heldout": 0.6, "ifeval": 0.8, "kept": None},
        {**row, "cycle": 2, "direct": 1.0, "heldout": 0.8, "ifeval": 0.9, "kept": 0.7},
    ]
    (found,) = keep.summary(cycles)
    assert found["direct"] == pytest.approx(0.9) and found["heldout"] == pytest.approx(0.7)
    assert (found["kept"], found["general_share"]) == (0.7, 0.9)
    assert (found["least_kept"], found["least_general"]) == (0.7, 0.9)
    assert found["worst_ifeval"] == pytest.approx(-10) and found["touching"] == 4


def test_the_last_cycle_costs_a_multiple_of_the_third() -> None:
    cycles = [line("preset", 0, number, seconds=20.0 * number, bytes=1000) for number in range(1, 7)]
    (found,) = keep.summary(cycles)
    assert (found["seconds"], found["bytes"]) == (2.0, 1.0)
    (short,) = keep.summary(cycles[:2])
    assert short["seconds"] is None and short["bytes"] is None
    (old,) = keep.summary([line("preset", 0, number) for number in range(1, 7)])
    assert old["seconds"] is None


def test_where_the_guard_does_not_look_no_count_is_shown() -> None:
    (row,) = keep.table([line("no-guard", 0, 1)])
    assert row["prompts touching"] == ""


def line(way: str, seed: int, cycle: int, **changes: float | None) -> dict[str, Any]:
    """What a cycle leaves."""
    scores = {"direct": 0.9, "heldout": 0.8, "reverse": 0.1, "kept": None if cycle == 1 else 0.95}
    others = {"general": 0.99, "general_clean": 1.0, "ifeval": 0.95, "ifeval_clean": 0.97, "touching": 0}
    named = {"way": way, "seed": seed, "cycle": cycle, "checkpoint": f"{way}-{seed}-{cycle}", "small": False}
    return named | scores | others | changes


def fill(out: Path, *lines: dict[str, Any]) -> None:
    for one in lines:
        Ledger(out / f"{one['way']}-{one['seed']}" / keep.LINES, ("cycle",)).add(one)


def test_what_several_processes_left_becomes_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, line("guard", 3, 1, touching=7), line("guard", 3, 2, direct=0.7, touching=5))
    fill(tmp_path, line("preset", 1, 1), line("preset", 0, 1, direct=1.0), line("preset", 0, 2, direct=1.0))
    with (tmp_path / "preset-1" / keep.LINES).open("a") as file:
        file.write('{"way": "preset", "seed": 1, "cyc')  # another process is just writing it
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- keep -->\nold\n<!-- end keep -->\nafter\n")
    monkeypatch.setattr(keep, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["keep", str(tmp_path), "--write-docs"])
    keep.main()
    rows = [
        [cell.strip() for cell in text.split("|")[1:-1]]
        for text in page.read_text().splitlines()
        if text.startswith("|")
    ]
    preset, guard = (dict(zip(rows[0], row, strict=True)) for row in rows[2:])
    assert (preset["way"], preset["seeds"], preset["cycles"]) == ("`preset`", "0, 1", "1, 2")
    assert (preset["direct"], preset["first cycle's kept"]) == ("0.95 (0.90 to 1.00)", "0.95")
    assert (guard["direct"], guard["prompts touching"]) == ("0.80", "12")
    assert guard["worst IFEval − clean, points"] == "-2.00"
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "preset" in capsys.readouterr().out and not list(tmp_path.glob("*/recover.db"))


def test_two_steps_are_never_taken_for_a_result(tmp_path: Path) -> None:
    assert "mean nothing" in keep.page([line("preset", 0, 1) | {"small": True}])
    assert "mean nothing" not in keep.page([line("preset", 0, 1)])


def test_a_way_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    done = [line("preset", 0, 1), line("preset", 0, 2)]
    fill(tmp_path, *done)
    assert list(keep.run(tmp_path, "preset", 0, 2)) == done
    assert list(keep.run(tmp_path, "preset", 0, 1)) == done[:1]
    assert not (tmp_path / "preset-0" / "recover.db").exists()


def test_a_way_goes_on_from_the_last_cycle_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, line("preset", 0, 1))
    asked = []

    def cycle(ws: Workspace, way: keep.Variant, student: str, number: int, seed: int) -> dict[str, Any]:
        asked.append((student, number))
        return {"cycle": number, "checkpoint": "next"}

    monkeypatch.setattr(keep, "_cycle", cycle)
    assert [row["cycle"] for row in keep.run(tmp_path, "preset", 0, 2, small=True)] == [1, 2]
    assert asked == [("preset-0-1", 2)]
    assert [row["cycle"] for row in read(tmp_path / "preset-0" / keep.LINES)] == [1, 2]


def test_writing_the_page_needs_a_cycle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["keep", str(tmp_path), "--write-docs"])
    with pytest.raises(SystemExit, match="no cycle was finished"):
        keep.main()


def test_the_page_has_the_marks() -> None:
    text = keep.PAGE.read_text()
    assert text.index("<!-- keep -->") < text.index("<!-- end keep -->")
