"""The race's bookkeeping: results are kept line by line, and the table says what the rows say."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ledger import Ledger
from benchmarks.outcomes.race import heats, report
from benchmarks.outcomes.race import world as race_world
from pipelines.runs.progress import Progress
from recovery.errors import Unstable


def row(
    method: str, seed: int, behaviour: float, knowledge: float = 0.5, flops: float = 1e9
) -> dict[str, Any]:
    scores = {"ifeval": behaviour, "knowledge": knowledge, "retention": 0.9, "n": 100}
    start = {"ifeval": 0.1, "knowledge": 0.4, "retention": 0.5, "n": 100}
    cost = {
        "tokens_sampled": 100,
        "tokens_scored": 0,
        "tokens_trained": 200,
        "flops": flops,
        "seconds": 10.0,
    }
    stages = {"clean": scores, "midtrained": start, "recovered": scores}
    return {"seed": seed, "case": "hard", "method": method, "tuned": 1.0, **stages, "cost": cost}


class Counted:
    """Stands where a world does; counts how often it is asked."""

    asked: list[tuple[Any, ...]] = []  # by all of them together

    def __init__(self, seed: int = 3, pause: float = 0.0) -> None:
        self.seed, self.pause = seed, pause

    def __enter__(self) -> Counted:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def row(self, case: str, method: str, tuned: float) -> dict[str, Any]:
        time.sleep(self.pause)
        self.asked.append((self.seed, case, method, tuned))
        return row(method, self.seed, 0.5 + tuned / 10) | {"case": case, "tuned": tuned}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the worlds were asked for, while every world is a counted one."""
    monkeypatch.setattr(Counted, "asked", [])
    monkeypatch.setattr(heats, "Race", lambda work, seed, *_: Counted(seed, pause=0.01))
    return Counted.asked


def test_a_result_is_made_once_and_a_half_written_one_again(
    tmp_path: Path, asked: list[tuple[Any, ...]]
) -> None:
    path, world = tmp_path / "rows.jsonl", Counted()
    heats.or_make(Ledger(path, heats.NAMED_BY), world, "hard", "opd", 1.0)  # type: ignore[arg-type]
    with path.open("a") as file:
        file.write('{"seed": 3, "case": "ha')  # killed here
    again = Ledger(path, heats.NAMED_BY)
    heats.or_make(again, world, "hard", "opd", 1.0)  # type: ignore[arg-type]
    heats.or_make(again, world, "mild", "opd", 1.0)  # type: ignore[arg-type]
    assert len(asked) == 2
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["hard", "mild"]


def test_several_at_once_share_the_worlds_and_find_the_same(
    tmp_path: Path, asked: list[tuple[Any, ...]]
) -> None:
    found: list[list[dict[str, Any]]] = []

    def take_part() -> None:
        found.append(heats.run(tmp_path, range(4), heats.CASES, ("none", "merge", "opd"), race_world.Scale()))

    others = [threading.Thread(target=take_part) for _ in range(3)]  # a claim holds between threads as well
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(asked) == len(set(asked)) == (1 + 3 + 3) + 4 * 3 * 3
    assert found[0] == found[1] == found[2]
    assert [one["seed"] for one in found[0]] == [seed for seed in range(4) for _ in range(9)]
    best = {"none": 1.0, "merge": max(heats.tries("merge")), "opd": max(heats.tries("opd"))}
    assert all(one["tuned"] == best[one["method"]] for one in found[0])  # more was better, by Counted
    take_part()
    assert len(asked) == 43  # nothing is left to run


class Stopping(race_world.Race):
    """A world in which every recovery is stopped by an alarm."""

    def __init__(self) -> None:
        self.seed, self.clean = 3, "clean"

    def _midtrained(self, case: str, way: str = "none", tuned: float = 1.0) -> str:
        return "midtrained"

    def _recovered(self, case: str, method: str, base: str, tuned: float) -> str:
        raise Unstable("step 9: length collapse")

    def _cost(self, keys: Any) -> dict[str, Any]:
        return row("", 0, 0.0)["cost"] | {"seconds": float(len(keys))}

    def _scores(self, case: str, checkpoint: str) -> dict[str, Any]:
        return row("", 0, 0.9 if checkpoint == "clean" else 0.2)["recovered"]


def test_what_an_alarm_stops_is_a_result_and_is_said() -> None:
    stopped = Stopping().row("hard", "sdft", 1.0)
    assert stopped["recovered"] == stopped["midtrained"] != stopped["clean"]
    assert stopped["stopped"] == "step 9: length collapse"
    assert stopped["cost"]["seconds"] == 2.0  # its own run and the answers that it reads
    table = report.table([stopped, stopped | {"seed": 4, "stopped": None}])
    assert "| sdft (stopped by an alarm in 1 of 2) | 1 | 0.200" in table


def test_a_claim_ends_with_whoever_held_it(tmp_path: Path) -> None:
    with heats.claimed(tmp_path, wait=False) as mine, heats.claimed(tmp_path, wait=False) as other:
        assert mine and not other
    with heats.claimed(tmp_path, wait=True) as mine:
        assert mine


def test_the_halves_are_all_types_and_share_none() -> None:
    one, other = race_world.halves(0)
    assert not one & other and abs(len(one) - len(other)) <= 1
    assert race_world.halves(0) == (one, other) != race_world.halves(1)
    assert all(len(heats.tries(method)) == 3 for method in heats.METHODS if method != "none")


def test_intervals_are_student_s() -> None:
    mean, half = report.interval([0.5, 0.6, 0.7])
    assert (mean, half) == pytest.approx((0.6, 4.303 * 0.1 / math.sqrt(3)), rel=1e-3)
    assert report.interval([0.5])[1] == math.inf


def test_it_says_where_distillation_is_not_the_best_choice() -> None:
    seeds = range(5)
    rows = [row("opd", s, 0.9 + s / 1000) for s in seeds]
    rows += [row("merge", s, 0.9 + (4 - s) / 1000, flops=1e8) for s in seeds]
    rows += [row("seqkd", s, 0.5 + s / 1000) for s in seeds]
    best, cheap, line = report.findings(rows)
    assert best.startswith("Best by worth: `opd`, 1.402 ± 0.002, at 1.0e+09 FLOPs")
    assert cheap.startswith("Best by cost") and "`merge`, 1.402 ± 0.002, at 1.0e+08 FLOPs" in cheap
    assert line.startswith("`merge` is not distinguishable (+0.000 ± 0.004) in behaviour")
    assert "at 0.10 of its FLOPs" in line
    assert "not the best choice here, but `merge`:" in report.headline(rows)
    without = [one for one in rows if one["method"] != "merge"]
    assert report.findings(without)[-1].startswith("No other method")
    assert report.headline(without).startswith("**No other method here")
    for knowledge, beats in ((0.35, False), (0.45, True)):  # behaviour gains 0.088; of 0.5 known before
        adapters = [row("lora", s, 0.99, knowledge, flops=1e10) for s in seeds]
        assert ("but `lora`:" in report.headline([*without, *adapters])) == beats
    shown = report.table(rows).splitlines()
    assert [line.split("|")[1].strip() for line in shown[2:]] == [
        "*clean*",
        "*midtrained*",
        "opd",
        "merge",
        "seqkd",
    ]


def test_the_page_keeps_what_stands_around_a_table_and_the_cases_not_run(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nBefore.\n")
    hard = [row("opd", s, 0.9) for s in range(2)]
    report.write_page(hard, page)
    page.write_text(page.read_text() + "\nAfter.\n")
    report.write_page([row("opd", s, 0.7) | {"case": "types"} for s in range(3)], page)
    report.write_page([row("opd", s, 0.8) for s in range(4)], page)
    text = page.read_text()
    assert text.index("Before.") < text.index("Means over 4 worlds") < text.index("After.")
    assert text.count("<!-- race hard -->") == 1 and "Means over 3 worlds" in text and "over 2" not in text
    assert all((tmp_path / f"race-{case}.png").stat().st_size > 1000 for case in ("hard", "types"))


@pytest.mark.slow
def test_answers_read_from_a_file_are_paid_for(tmp_path: Path) -> None:
    """The shipped model on a small world: self-answered SFT costs the answering and the training."""
    scale = race_world.Scale.small()
    with race_world.Race(tmp_path, 3, scale, Progress(quiet=True)) as world:
        found = world.row("hard", "self-sft", 1.0)
        from db.reads import queries

        runs = queries.runs(world.ws.tracker.db)
        answering = next(run["cost"] for run in runs if run["kind"] == "answers")
        training = next(run["cost"] for run in runs if run["kind"] == "distill")
        assert answering["tokens_sampled"] > 8 and answering["flops"] > 1e6 * answering["tokens_sampled"]
        for name in race_world.COSTS:
            assert found["cost"][name] == pytest.approx(answering[name] + training[name])
        again = world.row("hard", "self-sft", 1.0)
        assert again == found and len(queries.runs(world.ws.tracker.db)) == len(runs)
        assert world.row("hard", "none", 1.0)["cost"] == dict.fromkeys(race_world.COSTS, 0)
