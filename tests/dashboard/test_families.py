"""The heat maps of families and of located parts: numbers, tooltips, and text that nobody else wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard.page_context import PageContext
from dashboard.pages import locate
from dashboard.report import report
from db.writes.tracker import Tracker
from evals.families.table import FAMILIES
from tests.support import databases
from tests.support.family_rows import axis, record_families, record_search
from tests.support.views import HOSTILE, Scan, context, look, scan


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Tracker]:
    with Tracker(tmp_path / "recover.db") as opened:
        yield opened


def titles(page: Scan) -> list[str]:
    return [given["title"] for _, given in page.elements if "title" in given]


def test_the_heat_map_has_families_by_models(tracker: Tracker) -> None:
    record_families(tracker, 2, HOSTILE)
    page = look(context(tracker), "/families")
    heads = ("clean", "midtrained 2", "recovered 2", "midtrained 1", "recovered 1")
    places = [page.text.index(word) for word in heads]
    assert places == sorted(places)  # the newest is in sight where the table is wider than the window
    assert len(page.all("td", "cell")) == 5 * 5  # tools were never asked
    json = next(title for title in titles(page) if title.startswith("json, recovered of cycle 2"))
    assert json == "json, recovered of cycle 2: 90.0 % of 100, 95 % interval 85.0 to 95.0 %"
    links = [given["href"] for given in page.all("a") if "suite=json" in given.get("href", "")]
    assert "/samples?n=2&suite=json&failing=recovered" in links


def test_the_verdict_of_each_family_stands_below_with_why_one_was_not_measured(tracker: Tracker) -> None:
    record_families(tracker, 1, HOSTILE)
    page = look(context(tracker), "/families?n=1")
    assert "not measured: <script>" in page.text  # as text: scan() lets no element of it through
    assert "−3.0 to +2.0" in page.text and "underpowered" in page.text
    assert all(f"recover prompts {name}" in page.text for name in FAMILIES)
    cycle = look(context(tracker), "/cycle?n=1")
    assert "Bounds hold for 5 families at once." in cycle.text and "<script>" in cycle.text
    assert "Families of behaviour" in scan(report(tracker.db, 1)).text


def test_a_claim_about_refusals_names_the_kind_that_decides(tracker: Tracker) -> None:
    record_families(tracker, 1, "no tools scores")
    pages = [look(context(tracker), url).text for url in ("/families?n=1", "/cycle?n=1")]
    written = scan(report(tracker.db, 1)).text
    assert all("refusals (harmful)" in text for text in (*pages, written))
    assert "8 prompts lost, 3 gained of 500, all harmful." in pages[1]
    assert "It would take 900 prompts in all to tell." in pages[1]
    assert "refusals: It would take 900 prompts in all to tell." in written
    assert "tools: no tools scores." in written


def test_a_cycle_without_families_says_how_to_ask(tracker: Tracker) -> None:
    record_families(tracker, 1, "")
    tracker.record_verdicts(1, {})
    databases.record_cycle(tracker, {"ifeval": {"clean": 0.9}})
    page = look(context(tracker), "/families?n=2")
    assert f"recover cycle --docs DIR --behaviours {','.join(FAMILIES)}" in page.text
    assert "This cycle has no verdict yet" in page.text  # it may be under way, and have named some


def test_tasks_that_decide_stand_beside_the_families(tracker: Tracker) -> None:
    scores = {suite: {"clean": 0.8, "midtrained": 0.3, "recovered": 0.7} for suite in ("ifeval", "my_task")}
    number = databases.record_cycle(tracker, scores)
    row = axis("underpowered", needed_n=900, suite="my_task")
    row.pop("families")
    tracker.record_verdicts(number, {"behaviour": axis("recovered", families=1), "my_task": row})
    more = "It would take 900 prompts to tell. A task has only its own: take a larger one, or a wider margin."
    page = look(context(tracker), "/families?n=1")
    assert len(page.all("td", "cell")) == 2 * 3
    assert "the task's score falls by less than the margin" in page.text
    assert any(title.startswith("my_task, recovered of cycle 1: 70.0 %") for title in titles(page))
    cycle, written = look(context(tracker), "/cycle?n=1"), scan(report(tracker.db, 1))
    assert more in cycle.text and more in written.text and "families at once" not in cycle.text
    assert "Families of behaviour, and tasks of lm-eval" in written.text
    assert "prompt 0" in look(context(tracker), "/samples?n=1&suite=my_task").text
    assert "my_task" in look(context(tracker), "/").text


@pytest.mark.parametrize("suite", ["json", "calibration"])
def test_the_samples_of_a_family_are_shown(tracker: Tracker, suite: str) -> None:
    record_families(tracker, 1, "")
    assert "prompt 0" in look(context(tracker), f"/samples?n=1&suite={suite}").text


def test_located_parts_are_drawn_by_axes(tracker: Tracker) -> None:
    record_search(tracker, HOSTILE)
    page = look(context(tracker), "/locate")
    assert len(page.all("td", "cell")) == 2 * 6  # two ends, three parts, one set
    assert "everything (the clean model)" in page.text and "did not move" in page.text
    head = next(title for title in titles(page) if "points against clean" in title and "behaviour" in title)
    assert head.endswith(
        "behaviour: 96.0 % of 100, 95 % interval 91.0 to 100.0 %; "
        "−1.2 points against clean, bounds −2.5 to +1.0"
    )
    assert "yes, offered" in page.text


def test_searches_are_chosen_by_run(tracker: Tracker) -> None:
    first, second = (record_search(tracker, name) for name in ("head", "layers 1-4"))
    page_context: PageContext = context(tracker)
    assert "put back layers 1-4" in look(page_context, "/locate").text
    assert "put back head" in look(page_context, f"/locate?run={first}").text
    assert second != first


def test_an_older_search_than_those_listed_is_shown_and_another_is_not_passed_off_as_it(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "RUNS", 1)
    first, _ = (record_search(tracker, name) for name in ("head", "layers 1-4"))
    page = look(context(tracker), f"/locate?run={first}")
    assert "put back head" in page.text and "nothing to show" not in page.text
    for other in ("nobody", tracker.start_run("eval").id):
        page = look(context(tracker), f"/locate?run={other}")
        assert f"Run {other} has nothing to show here" in page.text and "put back layers 1-4" in page.text
