"""The Curves page: any metric of any runs, over steps, tokens or time; what rang is marked."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import axes
from dashboard.figures.markers import series
from dashboard.figures.metric_curves import Curve, figure, smoothed
from dashboard.figures.scales import Scale
from dashboard.figures.scores_over_cycles import stages_over_cycles
from dashboard.page_context import PageContext
from dashboard.pages.curves import elapsed, tokens_until
from dashboard.run_names import alarms
from db.writes.tracker import Tracker
from tests.support import databases, views

Home = tuple[PageContext, dict[str, str]]


def test_several_runs_lie_in_one_frame_and_can_be_taken_away(home: Home) -> None:
    context, runs = home
    both = f"{runs['opd']},{runs['sft']}"
    page = views.look(context, f"/curves?runs={both}&metric=reverse_kl&smooth=more")
    assert len(page.all("path", "thick c-s1")) >= 1 and len(page.all("path", "thick c-s2")) == 1
    removing = [given["href"] for given in page.all("a") if f"runs={runs['sft']}" in given.get("href", "")]
    assert removing and "metric=reverse_kl" in removing[0]


@pytest.mark.parametrize("axis", ["steps", "tokens", "time"])
@pytest.mark.parametrize("log", ["", "&log=1"])
def test_every_axis_draws_a_line(home: Home, axis: str, log: str) -> None:
    page = views.look(home[0], f"/curves?runs={home[1]['opd']}&axis={axis}{log}")
    assert page.all("path", "thick c-s1") and axis in page.text


def test_the_axis_of_a_few_steps_names_whole_steps_only() -> None:
    rows = [{"step": step, "value": 0.5, "low": 0.5, "high": 0.5, "n": 1, "special": ""} for step in (1, 2)]
    drawn = str(figure([Curve("run", rows, [1.0, 2.0])], "loss", "steps"))
    bottom = re.findall(r'y="(?:336|336.0)" text-anchor="middle">([^<]*)<', drawn)
    assert bottom == ["1", "2"]


@pytest.mark.parametrize(
    ("axis", "end", "words"),
    [
        ("steps", 20_000.0, ["0", "5 k", "10 k", "15 k", "20 k"]),
        ("tokens", 2_000_000.0, ["0", "0.5 M", "1 M", "1.5 M", "2 M"]),
        ("steps", 8000.0, ["0", "2000", "4000", "6000", "8000"]),
        ("time", 40.0, ["0 s", "10 s", "20 s", "30 s", "40 s"]),
        ("time", 240.0, ["0 min", "1 min", "2 min", "3 min", "4 min"]),
        ("time", 7200.0, ["0 h", "0.5 h", "1 h", "1.5 h", "2 h"]),
    ],
)
def test_the_ticks_of_an_axis_are_round_and_in_one_unit(axis: str, end: float, words: list[str]) -> None:
    rows = [{"step": step, "value": 0.5, "low": 0.5, "high": 0.5, "n": 1, "special": ""} for step in (0, 1)]
    drawn = str(figure([Curve("run", rows, [0.0, end])], "loss", axis))
    assert re.findall(r'y="(?:336|336.0)" text-anchor="middle">([^<]*)<', drawn) == words


@pytest.mark.parametrize(
    ("values", "marked"),
    [([0.5], 1), ([0.5, 0.4], 0), ([0.5, None, 0.4, 0.3, None, 0.2], 2), ([None], 0), ([], 0)],
)
def test_a_point_that_no_line_reaches_is_marked(values: list[float | None], marked: int) -> None:
    rows = [
        {"step": step, "value": value, "low": value, "high": value, "n": 1, "special": ""}
        for step, value in enumerate(values)
    ]
    places = [float(step) for step in range(len(values))]
    drawn = str(figure([Curve("run", rows, places)], "loss", "steps"))
    assert drawn.count("m-4 0") == marked  # the circles of the first series


def test_a_lone_cycle_among_many_is_marked() -> None:
    cycles: list[dict[str, Any]] = [
        {"cycle": number, "scores": {"ifeval": {"clean": 0.5}} if number == 7 else {"ifeval": {}}}
        for number in range(1, 100)
    ]
    assert str(stages_over_cycles(cycles)).count("c-clean fill") == 1


def test_an_alarm_and_a_value_that_is_none_are_marked(home: Home) -> None:
    context, runs = home
    rang = views.look(context, f"/curves?runs={runs['broken']}")
    assert rang.all("line", "alarm") and "length collapse" in rang.text
    assert "nan near step 21" in views.look(context, f"/curves?runs={runs['opd']}&metric=loss").text


def test_every_curve_of_a_run_is_shown_small(home: Home) -> None:
    page = views.look(home[0], f"/curves?runs={home[1]['opd']}")
    assert len(page.all("a", "thumb")) == len(views.METRICS)


@pytest.mark.parametrize(
    "url", ["/curves?runs=,,x", "/curves?metric=<b>&axis=9", "/curves?runs=" + "a," * 400]
)
def test_an_address_that_fits_nothing_shows_the_newest_run(home: Home, url: str) -> None:
    assert views.look(home[0], url).all("select")


def test_runs_of_the_address_that_are_not_recorded_are_named(home: Home) -> None:
    context, runs = home
    other = "Not recorded: distill-0, midtrain-1. Another run is shown."
    assert other in views.look(context, "/curves?runs=distill-0,midtrain-1,distill-0").text
    page = views.look(context, f"/curves?runs=distill-0,{runs['opd']}")
    assert "Not recorded: distill-0." in page.text and "Another run" not in page.text
    assert "All of distill opd" in page.text
    for url in ("/curves", f"/curves?runs={runs['opd']},{runs['opd']}"):
        assert "Not recorded" not in views.look(context, url).text


def test_a_run_without_a_point_is_not_what_the_page_opens_on(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        first = tracker.start_run("midtrain")
        tracker.start_run("distill")
        assert "has not stored a point" in views.look(views.context(tracker), "/curves").text
        databases.record_metrics(tracker, first.id, 1, {"lr": 0.1})
        databases.record_metrics(tracker, first.id, 2, {"lr": 0.2})
        page = views.look(views.context(tracker), "/curves")
        assert page.all("path", "thick c-s1") and "All of midtrain" in page.text


def test_the_runs_of_a_pilot_are_told_apart_by_their_rates(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        pilot = tracker.start_run("pilot")
        runs = [tracker.start_run("midtrain", parent=pilot.id, key=f"midtrain:{rate}") for rate in (1, 2)]
        for run in runs:
            databases.record_metrics(tracker, run.id, 1, {"answer_probability": 0.1})
        page = views.look(views.context(tracker), f"/curves?runs={runs[0].id},{runs[1].id}")
    assert "midtrain, rate 1 remove" in page.text and "midtrain, rate 2 remove" in page.text
    assert "Probability of the answers about the documents" in page.text


def test_metrics_go_by_words_and_units(home: Home) -> None:
    page = views.look(home[0], f"/curves?runs={home[1]['opd']}&metric=reverse_kl")
    assert "Reverse KL from the teacher, nats a token" in page.text and "reverse_kl" not in page.text


def test_without_runs_the_page_says_what_to_type(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        assert "recover demo" in views.look(views.context(tracker), "/curves").text


def test_smoothing_keeps_a_constant_and_skips_gaps() -> None:
    assert smoothed([2.0, None, 2.0, 2.0], 0.9) == [
        pytest.approx(2.0),
        None,
        pytest.approx(2.0),
        pytest.approx(2.0),
    ]
    assert smoothed([1.0, 0.0], 0.5)[1] == pytest.approx(1 / 3)  # weights 1/4 and 1/2


def test_a_band_reaches_the_foot_of_a_log_axis_where_its_low_is_not_positive() -> None:
    x, y = Scale.around([1.0, 2.0], 0, 100), Scale.around([0.1, 10.0], 100, 0, log=True)
    drawn = axes.band([(1.0, 0.1, 10.0), (2.0, -1.0, 10.0)], x, y, series(0))
    assert drawn is not None and f"L{x(2.0)} {y(y.low)}" in drawn


def test_tokens_are_those_trained_until_then() -> None:
    counted = [{"last_step": 1, "value": 10.0, "n": 1}, {"last_step": 3, "value": 20.0, "n": 2}]
    assert tokens_until([1, 2, 3, 9], counted) == [10.0, 10.0, 50.0, 50.0]
    assert tokens_until([4], []) == [4.0]


def test_a_step_is_read_from_the_alarm_that_ended_a_run() -> None:
    assert alarms({"error": "Unstable: step 12: entropy collapse: x"}) == [(12, "entropy collapse: x")]
    assert alarms({"error": "OSError: disk full", "result": None}) == []


@pytest.mark.parametrize(
    "why",
    [
        "after 6 steps the divergence from the teacher hardly falls (0.4 nats a token in 3 steps, 0.39 in 3)",
        "step 6: behaviour is back on 30 probe prompts, twice in a row",
        "new knowledge fell to 50% of what it was before the recovery",
    ],
)
def test_a_recovery_that_ended_early_says_why_and_is_no_alarm(context: PageContext, why: str) -> None:
    run = context.tracker.start_run("distill", config={"settings": {"method": "opd"}})
    databases.record_metrics(context.tracker, run.id, 6, {"loss": 0.4})
    context.tracker.finish_run(run.id, {"checkpoint": "x", "stopped": why})
    page = views.look(context, f"/curves?runs={run.id}")
    assert f"distill opd ended early: {why}." in page.text
    assert not page.all("line", "alarm") and "alarm" not in page.text


@given(st.floats(1e-9, 1e12), st.floats(1e-9, 1e12) | st.just(0.0), st.booleans())
def test_ticks_are_few_round_and_inside(low: float, more: float, log: bool) -> None:
    scale = Scale.around([low, low + more], 0, 100, log=log)
    ticks = scale.ticks()
    assert len(ticks) <= 30 and all(math.isfinite(scale(tick)) for tick in ticks)
    assert all(-1 <= scale(tick) <= 101 for tick in ticks)


def test_a_clock_set_back_does_not_fold_the_time_axis() -> None:
    assert elapsed([100.0, 110.0, 40.0, 45.0]) == [0.0, 10.0, 10.0, 15.0]
    assert elapsed([7.0]) == [0.0] and elapsed([]) == []
