"""Every page as a function of rows and an address, without a browser."""

from __future__ import annotations

import gc
import re
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

from dashboard import page_frame
from dashboard.figures.plane import cycles_plane
from dashboard.figures.scales import spread
from dashboard.figures.scores_over_cycles import stages_over_cycles
from dashboard.page_context import PageContext
from dashboard.pages import PAGES, behaviour
from dashboard.report import report
from db.errors import NotFound
from db.reads import changes, queries
from db.writes.tracker import Tracker
from recovery.command_line import command
from tests.support.dashboards import KINDS, SECRET, fill
from tests.support.databases import (
    BACKENDS,
    migrated,
    new_database,
    record_cycle,
    record_metrics,
    record_score,
    score,
)
from tests.support.views import look


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with three cycles, which each test copies: to write it takes longer than most pages."""
    path = tmp_path_factory.mktemp("filled") / "recover.db"
    with Tracker(path) as tracker:
        fill(tracker)
    return path


@pytest.fixture
def context(filled: Path, tmp_path: Path) -> Iterator[PageContext]:
    with Tracker(shutil.copy(filled, tmp_path)) as tracker:
        yield PageContext(tracker, token="t", reviewer="ann")


@pytest.fixture
def nothing(tmp_path: Path) -> Iterator[PageContext]:
    with Tracker(migrated(tmp_path / "recover.db")) as tracker:
        yield PageContext(tracker, token="t")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
def test_an_empty_home_says_what_to_type(nothing: PageContext, page: object) -> None:
    drawn = page_frame.render(nothing, page.PATH)  # type: ignore[attr-defined]
    assert "could not be drawn" not in drawn and "recover " in drawn


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
def test_what_to_type_names_a_home_that_is_not_found_by_itself(nothing: PageContext, page: object) -> None:
    named = replace(nothing, typed=partial(command, Path("/a home"), database="other.db"))
    drawn = unescape(page_frame.render(named, page.PATH))  # type: ignore[attr-defined]
    assert "recover --home '/a home' --db other.db " in drawn


def test_how_to_go_on_names_the_home_of_the_project(nothing: PageContext) -> None:
    other = nothing.tracker.new_project("notes", "host:/notes/.recover")
    named = replace(nothing, typed=partial(command, Path("/a home"), database="other.db"))
    for tracker, project, home, there in (
        (nothing.tracker, "default", "'/a home' --db other.db", ""),
        (other, "notes", "/notes/.recover", "  # on host"),
    ):
        run = tracker.start_run("cycle").id
        tracker.record_cycle(run)
        tracker.stop_run(run, "interrupted")
        for url in ("/", "/cycle"):
            drawn = unescape(page_frame.render(named, f"{url}?project={project}"))
            assert f"<code>recover --home {home} resume {run}{there}</code>" in drawn


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
@pytest.mark.parametrize(
    "query", ["", "?n=2", "?n=999999999", "?n=-1&page=0&sort=x&after=%00&kind=%27&pick=9.9.x"]
)
def test_no_address_breaks_a_page(context: PageContext, page: object, query: str) -> None:
    drawn = page_frame.render(context, page.PATH + query)  # type: ignore[attr-defined]
    assert "could not be drawn" not in drawn and drawn.count("<main") == 1


def test_the_cycles_are_sorted_filtered_searched_and_picked(context: PageContext) -> None:
    def shown(query: str) -> list[str]:
        table = page_frame.render(context, f"/{query}").split('class="cycles"')[1]
        return re.findall(r'href="/cycle\?n=(\d)" class="strong"', table)

    assert shown("") == ["3", "2", "1"] and shown("?sort=cycle&order=up") == ["1", "2", "3"]
    assert shown("?status=accepted") == ["1"] and shown("?search=recovered2") == ["2"]
    context.tracker.add_review(3, "needs-work", "more prompts", "Bea")
    assert shown("?review=needs-work") == ["3"] and shown("?review=none") == ["2", "1"]
    assert shown("?search=BEA") == ["3"] and shown("?search=more+prompts") == ["3"]
    runs = {str(row["cycle"]): row["run"] for row in queries.cycles(context.tracker.db)}
    assert shown(f"?search={runs['2'][:-1]}") == ["2"] and shown("?search=recovered") == ["3", "2", "1"]
    assert "No cycle matches" in page_frame.render(
        context, f"/?search={runs['2'][1:]}"
    )  # not from its middle
    page = page_frame.render(context, "/?pick=1.3")
    assert page.count("Do not show cycle") == 2 and "/compare?a=cycle%3A1" in page
    assert "No cycle matches" in page_frame.render(context, "/?search=zzz")


def test_hashes_among_the_settings_are_shown_by_their_beginning(context: PageContext) -> None:
    for number in (1, 2):
        run = context.tracker.start_run("cycle", config={"inputs": {"documents": str(number) * 64}})
        cycle = context.tracker.record_cycle(run.id)
    page = page_frame.render(context, f"/cycle?n={cycle}")
    assert f">{'2' * 12}<" in page and f">{'1' * 12}<" in page and "1" * 13 not in page


def test_a_cycle_is_told_in_words_with_what_changed_and_no_secret(context: PageContext) -> None:
    page = page_frame.render(context, "/cycle?n=2")
    assert "It would take 1,200 prompts to tell" in page and "underpowered" in page
    assert page.count("The documents: learned (+50.0 points against clean, +25.0 to +75.0).") == 1
    assert "settings.lr" in page and "settings.hub.token" in page and SECRET not in page
    assert "50 read, 150 tokens" in page
    assert "broken.bin" in page_frame.render(context, "/cycle?n=2&documents=skipped")
    assert "cycle 9 is not recorded" in page_frame.render(context, "/cycle?n=9").replace("Cycle", "cycle")


@pytest.mark.parametrize("backend", BACKENDS)
def test_thousands_of_tokens_of_documents_are_counted_on_each_kind_of_database(
    backend: str, tmp_path: Path
) -> None:
    with new_database(backend, tmp_path) as where, Tracker(where) as tracker:
        fill(tracker, cycles=1)
        rows = [{"path": "thick.md", "status": "read", "tokens": 2**33}]
        [midtrain] = queries.runs(tracker.db, kind="midtrain")
        tracker.record_documents(midtrain["id"], rows)
        page = page_frame.render(PageContext(tracker, token="t"), "/cycle?n=1")
        assert "51 read, 8.59 G tokens" in page


def test_a_long_list_of_documents_comes_in_pages_and_only_when_asked_for(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="many")
    number = context.tracker.record_cycle(run.id)
    stage = context.tracker.start_run("midtrain", parent=run.id, key="midtrain")
    rows = [{"path": f"{i:04}.md", "status": "read", "tokens": 10} for i in range(450)]
    context.tracker.record_documents(
        stage.id, [*rows, {"path": "x.bin", "status": "skipped", "reason": "odd"}]
    )
    page = page_frame.render(context, f"/cycle?n={number}")
    assert "450 read, 4.5 k tokens; 1 skipped" in page and ".md" not in page
    url = f"/cycle?n={number}&documents=all"
    seen = []
    while url:
        page = page_frame.render(context, url)
        seen.append(re.findall(r">(\d{4}\.md|x\.bin)<", page))
        onward = re.search(r'href="([^"]*docafter=[^"]*)">More', page)
        url = onward[1].replace("&amp;", "&") if onward else ""
    assert [len(names) for names in seen] == [200, 200, 51]
    assert [name for names in seen for name in names] == [*[row["path"] for row in rows], "x.bin"]
    only = page_frame.render(context, f"/cycle?n={number}&documents=skipped")
    assert "x.bin" in only and "odd" in only and "0001.md" not in only


def test_documents_with_long_paths_come_to_an_end(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="deep")
    number = context.tracker.record_cycle(run.id)
    stage = context.tracker.start_run("midtrain", parent=run.id, key="midtrain")
    deep = "folder/" * 60
    rows = [{"path": f"{deep}{i:04}.md", "status": "read", "tokens": 10} for i in range(250)]
    context.tracker.record_documents(stage.id, rows)
    first = page_frame.render(context, f"/cycle?n={number}&documents=all")
    onward = re.search(r'href="([^"]*docafter=[^"]*)">More', first)
    assert onward
    last = page_frame.render(context, onward[1].replace("&amp;", "&"))
    assert "0249.md" in last and "0199.md" not in last and ">More" not in last


def test_an_open_book_score_does_not_take_the_place_of_the_answers_from_memory(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="open")
    number = context.tracker.record_cycle(run.id, clean_id="clean0")
    for metric, passed in (("lenient", 30), ("open_book", 98)):
        details = {"by_kind": {"direct": {"passed": passed, "n": 100}}}
        found = score("knowledge", passed / 100, n=100) | {"metric": metric, "details": details}
        asked = context.tracker.start_run("eval", parent=run.id, key=metric)
        record_score(context.tracker, asked.id, "clean0", found)
    types = behaviour._types(context, number, number, "knowledge")
    assert types[number, "clean"]["direct"] == {"passed": 30, "n": 100}


def test_a_running_stage_shows_how_far_it_is_and_then_that_it_stalls(
    context: PageContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = context.tracker.start_run("cycle", key="live")
    number = context.tracker.record_cycle(run.id)
    stage = context.tracker.start_run("midtrain", parent=run.id, key="midtrain")
    with context.tracker.live(stage.id) as live:
        live.progress(30, 120, eta_seconds=95.0, message="loss 0.5")
        assert live.flush()
    before = context.version()
    page = page_frame.render(context, f"/cycle?n={number}")
    assert "step 30 of 120, 1 min 35 s left" in page and "recover resume" not in page and "running" in page
    monkeypatch.setattr(changes, "STALLED_SECONDS", -1.0)
    assert context.version() != before
    page = page_frame.render(context, f"/cycle?n={number}")
    assert (
        "No sign of life" in page
        and f"<code>recover resume {run.id}</code>" in page
        and "1 min 35 s left" not in page
    )
    assert "stalled" in page_frame.render(context, "/")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"steps": 60, "more_steps": 120}, "step 30 of at most 180, at most 2 h 30 min left"),
        ({"steps": 180, "more_steps": 0}, "step 30 of 180, 2 h 30 min left"),
        ({"steps": 180, "more_steps": 120}, "step 30 of 180, 2 h 30 min left"),  # without a teacher's signal
        ({"steps": "auto"}, "step 30 of 180, 2 h 30 min left"),
    ],
)
@pytest.mark.parametrize("chosen", [False, True])
def test_steps_that_are_taken_only_while_they_help_are_those_at_most(
    nothing: PageContext, settings: dict[str, object], said: str, chosen: bool
) -> None:
    run = nothing.tracker.start_run("cycle")
    nothing.tracker.record_cycle(run.id)
    parent = nothing.tracker.start_run("choose", parent=run.id, key="choose") if chosen else run
    config = {"settings": settings}
    stage = nothing.tracker.start_run("distill", parent=parent.id, key="distill", config=config)
    with nothing.tracker.live(stage.id) as live:
        live.progress(30, 180, eta_seconds=9000.0)
        assert live.flush()
    assert f">{said}<" in page_frame.render(nothing, "/cycle")


def test_a_failed_cycle_names_its_run_and_its_reason(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="broken")
    number = context.tracker.record_cycle(run.id, status="failed")
    context.tracker.fail_run(run.id, f"NonFiniteLoss: step 2: <b>lower</b> the rate {SECRET}")
    context.tracker.start_run("cycle", key="newer")
    for url in ("/", f"/cycle?n={number}"):
        page = page_frame.render(context, url)
        assert f"<code>recover resume {run.id}</code> goes on with it." in page
        assert "NonFiniteLoss: step 2: &lt;b&gt;lower&lt;/b&gt; the rate" in page and SECRET not in page


def test_a_cycle_that_was_given_up_says_so_and_not_how_to_resume_it(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="abandoned")
    number = context.tracker.record_cycle(run.id)
    context.tracker.give_up_run(run.id, "given up (interrupted)")
    for url in ("/", f"/cycle?n={number}"):
        page = page_frame.render(context, url)
        assert "given up" in page and "nothing resumes it" in page and "recover resume" not in page


def test_an_interrupted_cycle_is_stopped_and_names_its_run(context: PageContext) -> None:
    run = context.tracker.start_run("cycle", key="interrupted")
    number = context.tracker.record_cycle(run.id)
    assert "It is under way" in page_frame.render(context, "/")
    context.tracker.stop_run(run.id, "interrupted")
    for url in ("/", f"/cycle?n={number}"):
        page = page_frame.render(context, url)
        assert f"<code>recover resume {run.id}</code> goes on with it." in page
        assert "stopped" in page and "It is under way" not in page
    assert "</span> cycle was stopped.</p>" in page
    stage = context.tracker.start_run("midtrain", parent=run.id, key="midtrain")
    context.tracker.stop_run(stage.id, "interrupted")
    page = page_frame.render(context, f"/cycle?n={number}")
    assert "</span> midtrain was stopped.</p>" in page and f"<code>recover resume {run.id}</code>" in page
    table = page_frame.render(context, "/?status=stopped").split('class="cycles"')[1]
    assert re.findall(r'href="/cycle\?n=(\d)" class="strong"', table) == [str(number)]


def test_the_heat_map_counts_and_its_cells_open_the_failing_samples(context: PageContext) -> None:
    page = page_frame.render(context, "/behaviour?n=2")
    row = page.split("english_capital</span>")[1].split("</tr>")[0]
    assert re.findall(r"<span>(\d+) %</span>", row) == ["100", "0", "100"]  # of PASSES: items 0 and 3
    link = re.findall(r'href="(/samples[^"]*midtrained)"', page)[0].replace("&amp;", "&")
    samples = page_frame.render(context, link)
    assert samples.count("card sample") == 2 and samples.count("✕ fail") >= 2
    many = page_frame.render(context, "/behaviour?n=3&view=cycles")
    assert all(f"cycle {number}</a>" in many for number in (1, 2, 3))


def test_instruction_types_are_written_as_ifeval_names_them(context: PageContext) -> None:
    """What is copied from a page finds the type in an address, a prompt file and lm-eval's results."""
    for url, times in (("/behaviour?n=2", 1), (f"/samples?n=2&kind={KINDS[0]}", 7)):  # the list, six answers
        text = look(context, url).text
        assert text.count("change_case:english_capital") == times and "english capital" not in text
    assert "Failinganyclean fails" in text


@pytest.mark.parametrize(
    ("flip", "keys"),
    [
        ("lost", ["p4"]),
        ("gained", ["p5"]),
        ("forgotten", ["p0", "p1", "p3", "p4"]),
        ("learned", []),
        ("back", ["p0", "p1", "p3", "p5"]),
        ("undone", []),
        ("", ["p0", "p1", "p2", "p3", "p4", "p5"]),
    ],
)
def test_samples_by_flip(context: PageContext, flip: str, keys: list[str]) -> None:
    page = page_frame.render(context, f"/samples?n=1&flip={flip}")
    assert re.findall(r'class="said inline mono small soft">(p\d)<', page) == keys
    assert f"({len(keys)})</option>" in page.split("selected>")[3]


@pytest.mark.parametrize("path", ["/samples", "/behaviour", "/compare"])
def test_while_a_cycle_has_only_begun_the_last_measured_one_is_shown(context: PageContext, path: str) -> None:
    context.tracker.record_cycle(context.tracker.start_run("cycle").id)
    drawn = page_frame.render(context, path)
    assert "no ifeval" not in drawn and "no recovered model" not in drawn
    assert re.search(r"(cycle |cycle:)3\b", drawn) and "has no" in page_frame.render(context, "/samples?n=4")


def test_samples_of_a_task_stay_while_a_new_cycle_has_only_begun(nothing: PageContext) -> None:
    record_cycle(nothing.tracker, {"ifeval": {"clean": 0.5}, "arc_easy": {"clean": 0.5}})
    nothing.tracker.record_cycle(nothing.tracker.start_run("cycle").id)
    drawn = page_frame.render(nothing, "/samples?suite=arc_easy")
    assert "Samples of cycle 1" in drawn and re.search(r'value="arc_easy" selected', drawn)
    assert "arc_easy" not in page_frame.render(nothing, "/samples?n=2")


def test_scores_have_a_unit_and_say_whose_they_are(nothing: PageContext) -> None:
    scores = {
        "ifeval": {"clean": 1.0, "midtrained": 0.975, "recovered": 1.0},
        "knowledge": {"clean": 0.1, "midtrained": 0.35, "recovered": 0.325},
        "updates": {"clean": 0.1, "midtrained": 0.3},
    }
    number = record_cycle(nothing.tracker, scores)
    run = queries.cycle(nothing.db, number)["run"]
    made = nothing.tracker.start_run("merge", parent=run, key="more")
    nothing.tracker.finish_run(made.id, cost={"peak_bytes": 1_100_000_000})
    nothing.tracker.record_verdicts(
        number,
        {"behaviour": {"outcome": "recovered", "difference": 0.0, "lower_bound": -0.01, "margin": 0.03}},
    )
    table = page_frame.render(nothing, "/").split('class="cycles"')[1]
    assert "32.5 %" in table and '<div class="soft small">10.0 → 35.0 → 32.5<' in table  # never cut
    assert "Δ behaviour, points" in table and "loss recovered" in table
    page = page_frame.render(nothing, f"/cycle?n={number}")
    assert ">behaviour (IFEval)<" in page and ">knowledge<" in page
    assert "the new documents: clean 10.0, midtrained 35.0, recovered 32.5 %" in page
    assert "<dt>memory at most</dt><dd>1.1 GB</dd>" in page
    card = page.split("<h2>Verdict</h2>")[1].split("</section>")[0]
    assert re.findall(r"<h3>(\w+)</h3>", card) == ["behaviour", "knowledge", "retention", "updates"]
    assert "No retention question was asked." in card and "There is no updates score of: recovered." in card


def test_no_ninth_cycle_is_offered_to_be_drawn(nothing: PageContext) -> None:
    """The newest of nine was dropped without a word."""
    for _ in range(9):
        record_cycle(nothing.tracker, {"ifeval": {"clean": 0.5}})
    eight = ".".join(map(str, range(1, 9)))
    page = page_frame.render(nothing, f"/?pick={eight}")
    assert page.count("Do not show cycle") == 8 and "Show cycle 9" not in page
    assert "8 at most are drawn as paths" in page


def test_samples_are_searched_and_paged_and_show_the_words_that_differ(context: PageContext) -> None:
    page = page_frame.render(context, "/samples?n=1")
    answer = re.findall(r"some words number (\d+)", page)[0]
    found = page_frame.render(context, f"/samples?n=1&search=words+number+{answer}")
    assert 1 <= found.count("card sample") < 6
    assert "<ins>" in page and "<del>" in page
    assert "<del>words</del> of the clean answer that the recovered one lacks" in page
    assert page_frame.render(context, "/samples?n=1&after=p3").count("card sample") == 2


def test_figures_cope_with_none_one_and_five_hundred_cycles() -> None:
    def row(number: int) -> dict[str, object]:
        suite = {
            "clean": 0.9,
            "midtrained": 0.1,
            "recovered": 0.8,
            "n": 10,
            "intervals": {"recovered": [0.7, 0.9]},
        }
        return {"cycle": number, "scores": {"ifeval": suite, "knowledge": suite}, "verdict": None}

    assert "<svg" not in cycles_plane([]) and "<svg" not in stages_over_cycles([])
    many = [row(number) for number in range(1, 501)]
    assert cycles_plane(many, [500]).count("<path") < 30 and len(stages_over_cycles(many)) < 100_000
    assert "cycle 500" in cycles_plane(many, [500])
    one = stages_over_cycles([row(1)])
    assert one.count("c-clean fill") == 2
    height, foot = re.search(r"0 0 640 (\d+)", one), re.search(r'y="(\d+)"[^>]*>cycle<', one)
    assert height and foot and int(height[1]) - int(foot[1]) >= 10  # the legend stands below


def test_labels_keep_apart_and_in_order() -> None:
    places = spread([10.0, 10.0, 11.0, 300.0], 16, 0, 300)
    assert places == sorted(places) and all(b - a >= 16 for a, b in pairwise(places))
    assert places[-1] == 300
    # Three scores that hardly differ, and one below: the first three are named in their own order.
    assert spread([21.0, 24.0, 20.0, 90.0], 22, 14, 404) == [21.0, 43.0, 65.0, 90.0]


@pytest.mark.parametrize("outcome", ["not measured", "a word of tomorrow"])
def test_an_axis_without_numbers_is_shown_by_its_word_in_a_neutral_colour(
    context: PageContext, outcome: str
) -> None:
    axes = {axis: {"outcome": outcome} for axis in ("behaviour", "knowledge", "retention", "updated")}
    context.tracker.record_verdicts(2, axes)
    plain = f'<span class="chip plain">{outcome}</span>'
    for page in (*[page_frame.render(context, page.PATH + "?n=2") for page in PAGES], report(context.db, 2)):
        assert "could not be drawn" not in page
    assert plain in page_frame.render(context, "/cycle?n=2") and plain in report(context.db, 2)
    assert "nothing to compare" in page_frame.render(context, "/cycle?n=2")


def test_changed_facts_are_shown_with_their_verdict_and_stale_rates(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        number = record_cycle(tracker, {"ifeval": {"recovered": 0.9}})
        asked = tracker.start_run("eval", parent=queries.cycle(tracker.db, number)["run"], key="updates")
        details = {"stale_rate": 0.03, "stale_interval": [0.0, 0.1], "answered": {"new": 60, "old": 2}}
        found = score("updates", 60 / 66, True, n=66) | {"details": details}
        record_score(tracker, asked.id, f"rec{number}", found)
        axes = {"difference": 58 / 66, "lower_bound": 0.75, "margin": -0.7, "gained": 60, "lost": 2, "n": 66}
        words = {"outcome": "updated", "reference": "old answers"}
        tracker.record_verdicts(number, {"updates": axes | words})
        context = PageContext(tracker, token="t", reviewer="ann")
        drawn = page_frame.render(context, f"/cycle?n={number}")
        assert "Old answers to changed facts: recovered 3.0 % (0.0–10.0)." in drawn
        assert "against old answers" in drawn and "+70.0 must be shown" in drawn
        assert "2 old answers, 60 new ones of 66" in drawn
        assert "changed facts" in drawn and "chip good" in drawn
        written = report(tracker.db, number)
        assert "updated" in written and "lead over old ones" in written


def test_readers_who_want_the_same_at_once_wait_for_one_answer(context: PageContext) -> None:
    made: list[int] = []

    def slow() -> int:
        made.append(1)
        time.sleep(0.2)
        return len(made)

    answers: list[int] = []
    readers = [
        threading.Thread(target=lambda: answers.append(context.cached("slow", slow))) for _ in range(8)
    ]
    for reader in readers:
        reader.start()
    assert context.cached("other", lambda: "quick") == "quick"  # and hold up no one else
    for reader in readers:
        reader.join()
    assert answers == [1] * 8 and made == [1]


# Reviews ----------------------------------------------------------------------------------------------------


def review(context: PageContext, **fields: str) -> str:
    given = {
        "cycle": "2",
        "decision": "approve",
        "note": "looks good",
        "reviewer": "ann",
        "click": "",
        **fields,
    }
    return page_frame.submit_form(context, "/cycle?n=2", "review", given)


def test_an_approval_is_recorded_moves_current_and_is_seen(context: PageContext) -> None:
    assert "approved; current is its model now, without cycle 1 (accepted or approved)" in review(context)
    assert queries.resolve(context.db, "current") == "recovered2"
    assert "looks good" in page_frame.render(context, "/cycle?n=2")
    context.tracker.add_review(2, "reject", "from a terminal", "bob")  # what `recover review` calls
    page = page_frame.render(context, "/cycle?n=2")
    assert "from a terminal" in page and "looks good" in page  # append-only: both are there


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cycle": ""}, "Which cycle?"),
        ({"cycle": "-2"}, "Which cycle?"),
        ({"cycle": "two"}, "Which cycle?"),
        ({"decision": ""}, "Choose approve"),
        ({"decision": "drop table"}, "Choose approve"),
        ({"reviewer": "  "}, "Give your name"),
        ({"note": "x" * 5000}, "say it shorter"),
        ({"reviewer": "x" * 100}, "say it shorter"),
    ],
)
def test_a_review_that_lacks_something_is_a_sentence_and_no_row(
    context: PageContext, fields: dict[str, str], said: str
) -> None:
    assert said in review(context, **fields)
    assert queries.reviews(context.db) == []


def test_the_cycle_that_the_navigation_opens_is_reviewed_by_its_own_form(context: PageContext) -> None:
    (link,) = re.findall(r'href="(/cycle)"', page_frame.render(context, "/"))
    named = re.findall(r'<input type="hidden" name="cycle" value="(\d+)">', page_frame.render(context, link))
    context.tracker.record_cycle(context.tracker.start_run("cycle").id)  # a newer one begins meanwhile
    given = {"cycle": named[0], "decision": "reject", "note": "", "reviewer": "ann"}
    assert "Recorded: cycle 3 rejected" in page_frame.submit_form(context, link, "review", given)
    assert [row["cycle"] for row in queries.reviews(context.db)] == [3]


def test_a_click_sent_twice_is_one_review_and_two_reviewers_are_two(context: PageContext) -> None:
    for _ in range(2):
        review(context, click="one click")
    assert len(queries.reviews(context.db, cycle=2)) == 1
    people = [
        threading.Thread(target=review, args=(context,), kwargs={"reviewer": f"person {i}"}) for i in range(8)
    ]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert {row["reviewer"] for row in queries.reviews(context.db)} == {
        "ann",
        *(f"person {i}" for i in range(8)),
    }


def test_a_repeated_approval_says_where_current_points_by_then(context: PageContext) -> None:
    review(context, click="one click")
    context.tracker.add_review(1, "approve", "the older one after all", "bob")
    page = review(context, click="one click")
    assert "approved; current has moved on" in page and "current is its model now" not in page
    assert queries.resolve(context.db, "current") == "recovered1"


def test_a_rejection_says_where_current_points(context: PageContext) -> None:
    context.tracker.set_alias("current", "recovered2")
    assert "rejected; current stays its model" in review(context, decision="reject")
    context.tracker.set_alias("current", "recovered1")
    context.tracker.set_alias("current", "recovered2")
    assert "rejected; current is recovered1" in review(context, decision="reject", click="again")
    context.tracker.set_alias("current", "recovered2")
    run = context.tracker.start_run("cycle", key="equal weights").id
    context.tracker.record_cycle(
        run, midtrained_id="recovered1", recovered_id="recovered2", status="accepted"
    )
    page = review(context, decision="reject", click="once more")
    assert "rejected; current stays its model, as another cycle in use has made it too" in page
    assert "needs work." in review(context, decision="needs-work", click="third")


def test_an_unknown_action_does_nothing(context: PageContext) -> None:
    assert "no action" in page_frame.submit_form(
        context, "/cycle?n=1", "delete", {}
    ) and "no action" in page_frame.submit_form(context, "/", "review", {})


# What changed -----------------------------------------------------------------------------------------------


def test_the_version_changes_with_what_is_shown_and_only_then(context: PageContext) -> None:
    seen = context.version()
    assert context.version() == seen
    run = context.tracker.start_run("distill")
    assert context.version() != seen
    seen = context.version()
    record_metrics(context.tracker, run.id, 1, {"loss": 1.0})
    assert context.version() == seen
    context.tracker.add_review(1, "reject", "", "ann")
    assert context.version() != seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.TITLE)
def test_a_page_asks_once_whether_rows_have_changed(
    context: PageContext, page: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def version(db: object) -> tuple[int]:
        asked.append(db)
        return (1,)

    monkeypatch.setattr(queries, "structure_version", version)
    page_frame.render(context, page.PATH)  # type: ignore[attr-defined]
    assert len(asked) == 1


def test_a_score_measured_anew_changes_the_version(context: PageContext) -> None:
    run = context.tracker.start_run("eval", key="again")
    score = {"suite": "ifeval", "metric": "prompt_strict", "value": 0.5, "n": 2}
    first = record_score(context.tracker, run.id, "clean0", score)
    seen = context.version()
    time.sleep(0.002)  # moments are in milliseconds
    assert record_score(context.tracker, run.id, "clean0", score | {"value": 0.6}) == first
    assert context.version() != seen


def test_an_answer_is_kept_until_rows_change(context: PageContext) -> None:
    made: list[int] = []

    def make() -> int:
        made.append(1)
        return len(made)

    assert context.cached("x", make) == context.cached("x", make) == 1
    context.tracker.add_review(1, "reject", "", "ann")
    assert context.cached("x", make) == 2


def test_an_answer_that_rows_have_outdated_is_not_kept_beside_its_successor(context: PageContext) -> None:
    made: list[weakref.ref[Table]] = []

    def make() -> Table:
        table = Table()
        made.append(weakref.ref(table))
        return table

    for number in range(3):
        context.cached("x", make)
        context.tracker.add_review(1, "reject", str(number), "ann")
    context.cached("x", make)
    gc.collect()
    assert [table() is not None for table in made] == [False, False, False, True]


class Table:
    """Something large that a page keeps."""


def test_the_queries_for_stages(context: PageContext) -> None:
    scores = queries.stage_scores(context.db, 1, 2, suite="ifeval")
    stages = ("clean", "midtrained", "recovered")
    assert [(row["cycle"], row["stage"]) for row in scores] == [(n, s) for n in (1, 2) for s in stages]
    ids = {row["stage"]: row["id"] for row in scores if row["cycle"] == 1}
    counts = queries.flip_counts(context.db, ids)
    assert counts == {
        (True, False, True): 3,
        (True, True, True): 1,
        (True, False, False): 1,
        (False, False, True): 1,
    }
    rows = queries.side_by_side(context.db, ids, queries.ItemFilter(kind=KINDS[0], failing="midtrained"))
    assert [row["key"] for row in rows] == ["p0", "p3"]
    assert queries.cycle_numbers(context.db) == [1, 2, 3] and queries.stage_scores(context.db, 9) == []
    with pytest.raises(NotFound):
        queries.cycle(context.db, 9)
