"""Curves thinned by hand: where stretches begin and end, and what is kept of each."""

from __future__ import annotations

import math

import pytest

from db.reads import curves
from db.writes.tracker import Tracker
from tests.support.databases import record_metrics


def run_with(tracker: Tracker, values: dict[int, float]) -> str:
    run = tracker.start_run("distill").id
    for step, value in values.items():
        record_metrics(tracker, run, step, {"loss": value})
    return run


@pytest.mark.parametrize(
    ("points", "stretches"),
    [(3, [(1, 4, 4), (5, 8, 4), (9, 10, 2)]), (4, [(1, 3, 3), (4, 6, 3), (7, 9, 3), (10, 10, 1)])],
)
def test_each_of_ten_points_is_in_one_stretch(
    tracker: Tracker, points: int, stretches: list[tuple[int, int, int]]
) -> None:
    run = run_with(tracker, {step: float(step) for step in range(1, 11)})
    rows = curves.metric_series(tracker.db, run, "loss", points=points)
    assert [(row["step"], row["last_step"], row["n"]) for row in rows] == stretches
    assert [(row["low"], row["high"]) for row in rows] == [(first, last) for first, last, _ in stretches]
    assert [row["value"] for row in rows] == [(first + last) / 2 for first, last, _ in stretches]


def test_the_worst_of_a_stretch_is_named(tracker: Tracker) -> None:
    values = (1.0, -math.inf, math.inf, math.nan, 3.0, -math.inf, 2.0, math.inf)
    run = run_with(tracker, dict(enumerate(values)))
    rows = curves.metric_series(tracker.db, run, "loss", points=2)
    assert [(row["special"], row["low"], row["high"]) for row in rows] == [("nan", 1, 1), ("inf", 2, 3)]


def test_a_thumbnail_has_the_first_point_of_each_stretch(tracker: Tracker) -> None:
    run = run_with(tracker, {step: float(step) for step in range(1, 11)})
    whole = curves.metric_glance(tracker.db, run, "loss", points=3)
    assert whole == [{"step": step, "value": float(step)} for step in (1, 5, 9)]
    gap = run_with(tracker, {1: 1.0, 2: 2.0, 9: math.nan, 10: 4.0})  # nothing from 5 to 8
    assert curves.metric_glance(tracker.db, gap, "loss", points=3) == [
        {"step": 1, "value": 1.0},
        {"step": 9, "value": None},
    ]
    assert curves.metric_glance(tracker.db, gap, "other") == []


def test_last_values_and_means_of_several_runs(tracker: Tracker) -> None:
    one, other, none = (run_with(tracker, values) for values in ({1: 2.0, 3: 4.0}, {2: math.nan, 5: 6.0}, {}))
    record_metrics(tracker, one, 9, {"kl": 7.0})
    runs = [one, other, none]
    assert curves.last_values(tracker.db, runs, "loss") == {one: 4.0, other: 6.0}
    assert curves.metric_means(tracker.db, runs, ["loss"]) == {one: {"loss": 3.0}, other: {"loss": 6.0}}


def test_a_resumed_run_reads_the_steps_before_its_own(tracker: Tracker) -> None:
    run = run_with(tracker, {step: float(step) for step in range(4)})
    assert list(curves.metrics_by_step(tracker.db, run, ["loss"], before=2)) == [0, 1]
