"""Ways to recover beside each other: which runs are compared, on which questions, under which names."""

from __future__ import annotations

from typing import Any

import pytest

from db.reads import overview
from db.writes.tracker import Tracker


def measured(**suites: dict[tuple[str, int], int]) -> Any:
    """Scores by suite and questions, of which each has a number."""
    return {
        suite: {asked: {"id": number} for asked, number in by_asked.items()}
        for suite, by_asked in suites.items()
    }


@pytest.mark.parametrize(
    ("compared", "questions"),
    [
        # Two methods answered five, one of them, three times, nine.
        ([("a", {("x", 5): 1}), ("b", {("x", 5): 2, ("y", 9): 3}), ("b", {("y", 9): 4})], ("x", 5)),
        ([("a", {("x", 5): 1}), ("b", {("y", 9): 2})], ("y", 9)),
        ([("a", {("y", 9): 1}), ("b", {("x", 5): 2})], ("y", 9)),
        ([("a", {("x", 5): 1}), ("b", {("y", 5): 2})], ("y", 5)),
        ([("a", {("y", 5): 1}), ("b", {("x", 5): 2})], ("x", 5)),
    ],
    ids=["most methods", "most questions", "most questions first", "newest", "newest again"],
)
def test_the_questions_that_most_methods_answered(
    compared: list[tuple[str, dict[tuple[str, int], int]]], questions: tuple[str, int]
) -> None:
    found = overview.common_questions((method, measured(ifeval=asked)) for method, asked in compared)
    assert found == {"ifeval": questions}


def test_a_suite_that_was_asked_otherwise_is_named() -> None:
    asked = measured(ifeval={("x", 5): 1, ("y", 9): 2}, knowledge={("z", 3): 3})
    assert overview.answers_to({"ifeval": ("y", 9), "knowledge": ("w", 3)}, asked) == {
        "scores": {"ifeval": {"id": 2}},
        "otherwise": ["knowledge"],
    }


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"weight": 0.5}, "merge 0.5"),
        ({"kind": "linear", "weight": 1}, "merge 1"),
        ({"kind": "ties", "weight": 1}, "ties"),
        ({"kind": "ties", "weight": 0.25}, "ties 0.25"),
        ({"kind": "ties"}, "ties"),
    ],
)
def test_a_mixture_of_weights_is_named_by_its_kind_and_weight(
    tracker: Tracker, config: dict[str, Any], method: str
) -> None:
    run = tracker.start_run("merge", config=config | {"student": "mid1", "other": "clean0"})
    tracker.finish_run(run.id, {"checkpoint": "rec1"})
    (row,) = overview.recoveries(tracker.db)
    assert (row["method"], row["student"], row["teacher"]) == (method, "mid1", "clean0")


def test_finished_recoveries_are_compared_and_no_mixtures_of_a_search(tracker: Tracker) -> None:
    search = tracker.start_run("locate").id
    chosen = tracker.start_run("choose").id
    runs = [
        tracker.start_run(kind, parent=above).id for kind, above in (("distill", None), ("merge", chosen))
    ]
    tried = tracker.start_run("merge", parent=search).id
    for run in (*runs, tried):
        tracker.finish_run(run, {"checkpoint": run})
    tracker.fail_run(tracker.start_run("distill").id, "no")
    tracker.start_run("distill")
    assert [row["id"] for row in overview.recoveries(tracker.db)] == runs[::-1]
    assert overview.recoveries_recorded(tracker.db) == 2
