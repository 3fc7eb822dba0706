"""What the pages of cycles say beside their numbers: whose the form is, what is left out, a time's zone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dashboard import app, number_format, page_frame
from dashboard.page_context import PageContext
from dashboard.pages import cycle, cycles, samples
from dashboard.report import report
from db.reads import queries
from pipelines.cli.cycle_text import axis_line, cycle_text
from tests.support import databases, views
from tests.support.commands import Recover

SCORES = {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}, "knowledge": {"recovered": 0.7}}


def form_element(context: PageContext, url: str) -> str:
    found = re.search(r"<(review-[^ >]+)><form", page_frame.render(context, url))
    assert found
    return found[1]


def test_the_form_of_each_cycle_is_an_element_of_its_own(context: PageContext) -> None:
    """A browser merges the next page by position and element: what was typed would go on to another cycle."""
    databases.record_cycle(context.tracker, SCORES)
    first = form_element(context, "/cycle")
    context.tracker.add_review(1, "needs-work", "", "ann")
    assert form_element(context, "/cycle") == form_element(context, "/cycle?n=1") == first
    databases.record_cycle(context.tracker, SCORES)
    assert form_element(context, "/cycle") != first


def test_the_table_of_cycles_says_which_documents_each_learned_and_when(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="one", config={"docs": "/srv/wiki/project/february"})
    context.tracker.record_cycle(run.id)
    shown = page_frame.render(context, "/")
    assert '<div class="soft small clip" title="/srv/wiki/project/february">…/project/february</div>' in shown
    assert number_format.moment(queries.cycle(context.db, 1)["started_at"]) in shown


def test_a_cycle_is_found_by_its_documents_and_its_name(context: PageContext) -> None:
    for key, folder in (
        ("named:Winter notes", "/srv/wiki/project/february"),
        ("k", "/srv/sk-abcdefgh12345678"),
    ):
        run = context.tracker.start_run("cycle", key=key, config={"docs": folder})
        context.tracker.record_cycle(run.id)

    def found(search: str) -> list[str]:
        page = page_frame.render(context, f"/?search={quote(search)}").partition("<table")[2]
        return re.findall(r'href="/cycle\?n=(\d)" class="strong"', page)

    for words in ("february", "…/project/February", "winter notes"):
        assert found(words) == ["1"], words
    assert found("/srv/") == ["2", "1"] and found("named:") == found("sk-abcdefgh") == []
    for url in ("/", "/cycle?n=1"):
        assert "Winter notes" in views.look(context, url).text
    assert [queries.cycle(context.db, number)["name"] for number in (1, 2)] == ["Winter notes", None]


def test_an_approval_before_any_verdict_is_warned_of(context: PageContext) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    assert "There is no verdict yet" in views.look(context, "/cycle").text
    context.tracker.record_verdicts(number, {"behaviour": {"outcome": "recovered"}})
    assert "There is no verdict yet" not in views.look(context, "/cycle").text


def test_a_verdict_moves_no_field_of_a_half_written_review(context: PageContext) -> None:
    """A browser merges the next page by position: what was typed would go where an element was added."""
    number = databases.record_cycle(context.tracker, SCORES)
    before = elements_of_form(context)
    context.tracker.record_verdicts(number, {"behaviour": {"outcome": "recovered"}})
    assert elements_of_form(context) == before


def elements_of_form(context: PageContext) -> list[str]:
    found = re.search(r"<form.*?</form>", page_frame.render(context, "/cycle"), re.DOTALL)
    assert found
    return re.findall(r"<(\w+)", found[0])


def test_a_second_look_at_behaviour_is_told_apart_from_the_first(context: PageContext) -> None:
    further = {"ifeval:further": {"clean": 0.22, "recovered": 0.24}}
    number = databases.record_cycle(context.tracker, SCORES | further)
    axis = {
        "outcome": "recovered",
        "difference": 0.004,
        "lower_bound": -0.01,
        "margin": 0.03,
        "upper_bound": 0.02,
    }
    parts = {
        suite: {"n": n, "gained": gained, "lost": lost, "difference": (gained - lost) / n}
        for suite, n, gained, lost in (("ifeval", 541, 26, 30), ("ifeval:further", 1000, 70, 60))
    }
    counts = {"gained": 96, "lost": 90, "n": 1541, "suite": "ifeval"}
    looks = {"alpha": 0.025, "looks": 2, "look": 2, "own_lower_bound": -0.02, "parts": parts}
    context.tracker.record_verdicts(number, {"behaviour": axis | counts | looks})
    said = "Second of two looks, at 97.5 %: -0.7 on 541 of ifeval, +1.0 on 1,000 of ifeval:further."
    for page in (views.look(context, "/cycle").text, views.Scan(report(context.db, number)).text):
        assert said in page and "further" in page
    assert "with further prompts at worst −1.0 points" in views.look(context, "/cycle").text
    verdict = queries.cycle(context.db, number)["verdict"]
    assert axis_line("behaviour", verdict).endswith(f"margin 3), {said[0].lower()}{said[1:-1]}")
    assert "further prompts" in views.look(context, f"/samples?n={number}&suite=ifeval:further").text
    assert "instruction type" in views.look(context, f"/behaviour?n={number}&suite=ifeval:further").text


def test_a_margin_has_the_digits_that_tell_it_from_the_bound(context: PageContext) -> None:
    """A bound of −3.24 passes a margin of 3.25, and would not pass one of 3.2."""
    number = databases.record_cycle(context.tracker, SCORES)
    axis = {"outcome": "recovered", "difference": -0.01, "lower_bound": -0.0324, "upper_bound": 0.01}
    counts = {"margin": 0.0325, "gained": 1, "lost": 2, "n": 1541}
    context.tracker.record_verdicts(
        number, {"behaviour": axis | counts, "json": axis | counts | {"families": 1}}
    )
    page = views.look(context, "/cycle").text
    assert page.count("at worst −3.24, where −3.25 is allowed") == 2
    assert "at worst −3.24 points, where −3.25 is allowed" in views.look(context, "/").text
    for text in (views.Scan(report(context.db, number)).text, views.look(context, "/families").text):
        assert "−3.24" in text and "−3.25" in text
    assert "lower bound -3.24 points, margin 3.25" in cycle_text(queries.cycle(context.db, number))
    assert "1 gained of 1,541" in page


@pytest.mark.parametrize("margin", [0.03, 0.07, 0.1, -0.7])
def test_a_margin_of_whole_points_has_one_digit(margin: float) -> None:
    assert number_format.limit(margin) == number_format.points(-margin)


def test_a_reviewers_name_is_one_line_of_a_terminal(context: PageContext) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    context.tracker.add_review(number, "reject", "it\nis slow", "ann\nknowledge  kept")
    lines = cycle_text(queries.cycle(context.db, number)).splitlines()
    assert "review     reject, by ann knowledge kept: it is slow" in lines


def test_cycles_without_scores_take_no_path_from_those_that_have_some(
    context: PageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        databases.record_cycle(context.tracker, SCORES | {"knowledge": SCORES["ifeval"]})
    for _ in range(cycles.NEWEST):
        run = context.tracker.start_run("cycle").id
        context.tracker.record_cycle(run)
        context.tracker.stop_run(run, "interrupted")
    picture = tmp_path / "plane.svg"
    monkeypatch.setattr(app, "MOST_PATHS", 5)
    app.picture_of(context.tracker, picture)
    page = str(page_frame.render(context, "/")).split('class="cycles"')[0]
    for drawn in (page, picture.read_text(encoding="utf-8")):
        assert drawn.count('class="path') == 2
    assert "paths:" not in page
    assert "paths: 1 of 2 cycles" in page_frame.render(context, "/?pick=1.4")


@pytest.mark.parametrize(("path", "what"), [("/behaviour", "score"), ("/samples", "answers")])
def test_further_prompts_that_were_not_asked_are_not_promised(
    context: PageContext, path: str, what: str
) -> None:
    databases.record_cycle(context.tracker, SCORES)
    said = (
        f"Cycle 1 has no {what} of further prompts: "
        "they are asked only where behaviour is underpowered on IFEval's own."
    )
    assert said in views.look(context, f"{path}?n=1&suite=ifeval:further").text
    context.tracker.record_cycle(context.tracker.start_run("cycle").id)
    assert f"Cycle 2 has no json {what} yet." in views.look(context, f"{path}?n=2&suite=json").text


@pytest.mark.parametrize(("path", "what"), [("/behaviour", "score"), ("/samples", "answers")])
def test_nothing_is_promised_of_a_cycle_that_does_not_go_on(
    context: PageContext, path: str, what: str
) -> None:
    databases.record_cycle(context.tracker, SCORES)
    run = context.tracker.start_run("cycle")
    context.tracker.record_cycle(run.id)
    coming = "The verdict comes when the recovered model has been measured."
    assert coming in views.look(context, "/cycle?n=2").text
    assert "There is none yet." in views.Scan(report(context.db, 2)).text
    context.tracker.give_up_run(run.id, "given up (interrupted)")
    for number in (1, 2):
        page = views.look(context, f"{path}?n={number}&suite=json").text
        assert f"Cycle {number} has no json {what}." in page and "first measurement" not in page
    assert "VerdictThere is none." in views.look(context, "/cycle?n=2").text
    assert "VerdictThere is none." in views.Scan(report(context.db, 2)).text


def test_a_list_of_all_cycles_says_when_it_is_not(
    context: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        databases.record_cycle(context.tracker, SCORES)
    assert "All cycles 3" in views.look(context, "/").text
    monkeypatch.setattr(cycles, "MOST", 2)
    fewer = views.context(context.tracker)  # without what the first has cached
    assert "The newest 2 of 3 cycles: 2" in views.look(fewer, "/").text


def test_of_many_earlier_documents_the_newest_and_the_least_known_are_named(
    context: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        databases.record_cycle(context.tracker, SCORES)
    earlier = {f"knowledge:{number}": {"recovered": share} for number, share in enumerate((0.2, 0.6, 0.5), 1)}
    number = databases.record_cycle(context.tracker, SCORES | earlier)
    context.tracker.record_verdicts(number, {"behaviour": {"outcome": "recovered"}})
    page = views.look(context, "/cycle").text
    assert "the newest" not in page and "cycle 1's documents: 20.0 %, 100.0 % when it ended" in page
    monkeypatch.setattr(cycle, "MOST_EARLIER", 2)
    page = views.look(context, "/cycle").text
    assert "earlier documents, the newest 2 of 3 sets" in page
    assert "Least it knows of cycle 1's documents: 20.0 %" in page


def test_a_time_names_its_zone(context: PageContext) -> None:
    assert number_format.moment("2026-11-20T08:21:07.123Z") == "2026-11-20 08:21 UTC"
    databases.record_cycle(context.tracker, SCORES)
    assert "UTC UTC" not in views.look(context, "/cycle").text


def test_a_score_in_the_table_of_cycles_has_its_interval(context: PageContext) -> None:
    databases.record_cycle(context.tracker, SCORES)
    titles = [given.get("title") for given in views.look(context, "/").all("td", "n")]
    assert "95 % interval 65.0 to 75.0 %" in titles


def test_what_was_noted_of_a_score_is_said_once_on_every_page(context: PageContext) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    run = context.tracker.start_run("eval", parent=queries.cycle(context.db, number)["run"], key="noted")
    for checkpoint in ("clean0", f"rec{number}"):
        row = databases.score("ifeval", 1.0, True, True) | {"details": {"notes": ["25 prompts left out"]}}
        databases.record_score(context.tracker, run.id, checkpoint, row)
    found = queries.cycle(context.db, number)
    assert found["scores"]["ifeval"]["notes"] == ["25 prompts left out"]
    assert "notes" not in found["scores"]["knowledge"]
    assert "note       ifeval: 25 prompts left out" in cycle_text(found).splitlines()
    for page in (views.look(context, f"/cycle?n={number}").text, report(context.db, number)):
        assert page.count("ifeval: 25 prompts left out") == 1


@pytest.mark.parametrize(("url", "review"), [("/", "/cycle?n=1"), ("/cycle", "#review")])
def test_a_verdict_comes_first_and_then_what_to_do_until_it_is_reviewed(
    context: PageContext, url: str, review: str
) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    assert "Next:" not in views.look(context, url).text
    context.tracker.record_verdicts(number, {"behaviour": {"outcome": "recovered"}})
    page = views.look(context, url)
    places = [page.text.index(words) for words in ("recovered", "Instruction following", "Next: read")]
    assert places == sorted(places)
    links = [given["href"] for given in page.all("a")]
    assert f"{samples.PATH}?n=1&flip=lost" in links and review in links
    is_there = review.removeprefix("#") in [given.get("id") for given in page.all("section")]
    assert is_there == (url == "/cycle")  # where it leads: to the form on the same page
    context.tracker.add_review(number, "approve", "", "ann")
    assert "Next:" not in views.look(context, url).text


@pytest.mark.parametrize(
    ("lost", "said", "onward"),
    [
        (0, "0 prompts lost, 3 gained of 60", "Next: review the cycle."),
        (1, "1 prompt lost, 3 gained of 60", "Next: read the answers that were lost"),
    ],
)
def test_lost_answers_are_counted_and_offered_where_there_are_any(
    context: PageContext, lost: int, said: str, onward: str
) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    axis = {"outcome": "recovered", "difference": 0.04, "lower_bound": 0.01, "margin": 0.03}
    counts = {"gained": 3, "lost": lost, "n": 60, "suite": "ifeval"}
    context.tracker.record_verdicts(number, {"behaviour": axis | counts})
    page = views.look(context, "/cycle").text
    assert said in page and onward in page


@pytest.mark.parametrize("word", ["underpowered", "lost"])
def test_where_too_few_questions_were_asked_pages_and_command_say_to_ask_more(
    context: PageContext, tmp_path: Path, recover: Recover, word: str
) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    bounds = {"difference": -0.01, "lower_bound": -0.05, "upper_bound": 0.01, "margin": 0.03, "lost": 1}
    axis = bounds | {"outcome": "underpowered", "needed_n": 1200}
    passed = bounds | {"outcome": "kept"}
    context.tracker.record_verdicts(
        number, {"behaviour": axis, "knowledge": axis | {"outcome": word}, "retention": passed}
    )
    context.tracker.record_cycle(queries.cycle(context.db, number)["run"], status="rejected")
    few = word == "underpowered"
    both = "(about 1,200 on behaviour, 1,200 on knowledge; docs/evaluation.md"
    for url in ("/", "/cycle"):
        page = views.look(context, url)
        assert (f"Next: ask new questions, without training {both}" in page.text) == few
        assert ("read the answers that were lost" in page.text) != few
    listed = views.look(context, "/").all("span", "chip unsure")
    assert len(listed) == (4 if few else 1)  # headline and table, two axes
    written = views.Scan(report(context.db, number))
    for shown in (page, written):
        assert ("rejected: too few questions" in shown.text) == few
        assert shown.all("span", "chip")[0]["class"] == ("chip unsure" if few else "chip bad")
    said = recover("--home", tmp_path, "verdict", 1)
    why = (
        f"too few questions: ask new questions, without training {both}" if few else "behaviour underpowered"
    )
    assert said.code == 3 and f"Error: cycle 1 is rejected: {why}" in said.err
    assert said.out.startswith("cycle 1: rejected" + (": too few questions\n" if few else "\n"))
    assert ("rejected: too few questions" in recover("--home", tmp_path, "ls").out) == few


@pytest.mark.parametrize("status", ["rejected", "accepted"])
@pytest.mark.parametrize("axis", ["retention", "knowledge"])
def test_where_a_loss_to_the_clean_model_is_in_the_way_the_command_that_recovers_longer_is_named(
    context: PageContext, axis: str, status: str
) -> None:
    number = databases.record_cycle(context.tracker, SCORES)
    lost = {"outcome": "lost", "difference": -0.2, "lower_bound": -0.3, "upper_bound": -0.11, "margin": 0.1}
    kept = {name: lost | {"outcome": "kept"} for name in ("knowledge", "retention")}
    verdicts = kept | {"behaviour": lost | {"outcome": "recovered"}, axis: lost}
    context.tracker.record_verdicts(number, verdicts)
    context.tracker.record_cycle(queries.cycle(context.db, number)["run"], status=status)
    said = (
        "review the cycle. recover distill --student cycle:1 recovers longer, "
        "with the options that the cycle was given and another --seed."
    )
    for url in ("/", "/cycle"):
        assert (said in views.look(context, url).text) == ((axis, status) == ("retention", "rejected"))


def test_no_answers_are_offered_to_be_read_where_none_were_asked_for(context: PageContext) -> None:
    number = databases.record_cycle(context.tracker, {"knowledge": {"clean": 0.1, "recovered": 0.7}})
    context.tracker.record_verdicts(number, {"knowledge": {"outcome": "kept"}})
    page = views.look(context, "/").text
    assert "Next: review the cycle." in page and "Instruction following was not measured;" in page


def test_scores_that_are_not_split_by_kind_draw_no_empty_table(context: PageContext) -> None:
    databases.record_cycle(context.tracker, SCORES)
    page = views.look(context, "/behaviour")
    assert "The scores of ifeval are not split by instruction type." in page.text and not page.all("table")


def test_show_all_samples_stays_with_the_suite(context: PageContext) -> None:
    databases.record_cycle(context.tracker, SCORES)
    page = views.look(context, "/samples?n=1&suite=knowledge&search=nowhere")
    assert "No sample matches" in page.text
    assert f"{samples.PATH}?n=1&suite=knowledge" in [given["href"] for given in page.all("a")]


def test_a_kind_of_question_beside_the_headline_has_no_samples_to_open(context: PageContext) -> None:
    number = databases.record_cycle(context.tracker, {"ifeval": {"clean": 1.0}})
    asked = context.tracker.start_run("eval", parent=queries.cycle(context.db, number)["run"], key="know")
    for metric, kind in (("lenient", "direct"), ("cloze", "cloze")):
        found = databases.score("knowledge", 0.5, True, False, n=2, metric=metric)
        found["details"] = {"by_kind": {kind: {"passed": 1, "n": 2}}}
        databases.record_score(context.tracker, asked.id, f"rec{number}", found)
    page = views.look(context, "/behaviour?suite=knowledge")
    assert page.text.count("50 %") == 2
    links = [given["href"] for given in page.all("a") if given["href"].startswith(samples.PATH + "?")]
    assert links == [f"{samples.PATH}?n=1&suite=knowledge&kind=direct&failing=recovered"]


def test_several_answers_to_a_prompt_are_not_counted_as_prompts(
    context: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = databases.items

    def sampled(*passed: bool) -> list[dict[str, Any]]:
        return [item | {"key": f"p0#{i}", "prompt": "p0"} for i, item in enumerate(once(*passed))]

    monkeypatch.setattr(databases, "items", sampled)
    number = databases.record_cycle(context.tracker, SCORES)
    axis = {"outcome": "underpowered", "difference": -0.01, "lower_bound": -0.05, "margin": 0.03}
    counts = {"gained": 1, "lost": 2, "n": 60, "needed_n": 900, "suite": "ifeval"}
    context.tracker.record_verdicts(number, {"behaviour": axis | counts})
    page = views.look(context, "/cycle").text
    assert "behaviour (IFEval) · 100 answers (50 prompts)" in page
    assert "2 answers lost, 1 gained of 60 answers (30 prompts)" in page and "900 prompts to tell" in page
    written = views.Scan(report(context.db, number)).text
    assert "100 answers (50 prompts)" in written and "60 answers (30 prompts)" in written
