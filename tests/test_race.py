"""The race's bookkeeping: results are kept line by line, and the table says what the rows say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks import race, race_report


def row(
    method: str, seed: int, behaviour: float, knowledge: float = 0.5, seconds: float = 10.0
) -> dict[str, Any]:
    scores = {"ifeval": behaviour, "knowledge": knowledge, "retention": 0.9, "n": 100}
    start = {"ifeval": 0.1, "knowledge": 0.4, "retention": 0.5, "n": 100}
    cost = {
        "tokens_sampled": 100,
        "tokens_scored": 0,
        "tokens_trained": 200,
        "flops": 1e9,
        "seconds": seconds,
    }
    stages = {"clean": scores, "midtrained": start, "recovered": scores}
    return {"seed": seed, "case": "hard", "method": method, "tuned": 1.0, **stages, "cost": cost}


class Counted:
    """Stands where a world does; counts how often it is asked."""

    seed = 3

    def __init__(self) -> None:
        self.asked = 0

    def row(self, case: str, method: str, tuned: float) -> dict[str, Any]:
        self.asked += 1
        return row(method, self.seed, 0.5) | {"case": case, "tuned": tuned}


def test_a_result_is_made_once_and_a_half_written_one_again(tmp_path: Path) -> None:
    path, world = tmp_path / "rows.jsonl", Counted()
    race.Rows(path).or_make(world, "hard", "opd", 1.0)  # type: ignore[arg-type]
    with path.open("a") as file:
        file.write('{"seed": 3, "case": "ha')  # killed here
    again = race.Rows(path)
    again.or_make(world, "hard", "opd", 1.0)  # type: ignore[arg-type]
    again.or_make(world, "mild", "opd", 1.0)  # type: ignore[arg-type]
    assert world.asked == 2
    assert [json.loads(line)["case"] for line in path.read_text().splitlines()] == ["hard", "mild"]


def test_the_halves_are_all_types_and_share_none() -> None:
    one, other = race.halves(0)
    assert not one & other and abs(len(one) - len(other)) <= 1
    assert race.halves(0) == (one, other) != race.halves(1)
    assert all(len(race.tries(method)) == 3 for method in race.METHODS if method not in race.MIDTRAINED)


def test_intervals_are_student_s() -> None:
    mean, half = race_report.interval([0.5, 0.6, 0.7])
    assert (mean, half) == (pytest.approx(0.6), pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3))
    assert race_report.interval([0.5])[1] == math.inf


def test_it_says_where_distillation_is_not_the_best_choice() -> None:
    seeds = range(5)
    rows = [row("opd", s, 0.9 + s / 1000) for s in seeds]
    rows += [row("merge", s, 0.9 + (4 - s) / 1000, seconds=1.0) for s in seeds]
    rows += [row("seqkd", s, 0.5 + s / 1000) for s in seeds]
    (line,) = race_report.findings(rows, "hard")
    assert line.startswith("`merge` is not distinguishable in behaviour") and "at 0.10 of its seconds" in line
    (none,) = race_report.findings([one for one in rows if one["method"] != "merge"], "hard")
    assert none.startswith("No other method")
    shown = race_report.table(rows, "hard").splitlines()
    assert [line.split("|")[1].strip() for line in shown[2:]] == [
        "*clean*",
        "*midtrained*",
        "opd",
        "merge",
        "seqkd",
    ]


def test_the_page_keeps_what_stands_around_the_table(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n\nBefore.\n")
    rows = [row("opd", s, 0.9) for s in range(2)]
    race_report.write_page(rows, page)
    page.write_text(page.read_text() + "\nAfter.\n")
    race_report.write_page(rows, page)
    text = page.read_text()
    assert text.count(race_report.BEGIN) == 1 and "Before." in text and text.rstrip().endswith("After.")
    assert (tmp_path / "race.png").stat().st_size > 1000
