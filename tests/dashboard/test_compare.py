"""The pages Compare, Methods and Knowledge: what may be claimed, what it cost, what is still known."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from dashboard import page_frame
from dashboard.figures.plane import methods_plane
from dashboard.page_context import PageContext
from dashboard.pages import export, knowledge, methods
from db.reads import overview, queries
from db.writes.tracker import Tracker
from pipelines.compare import compare, compare_text
from pipelines.runs.workspace import Workspace
from tests.support import databases, views

BARS = re.compile(r'<line [^>]*class="bar[^>]*>')
Home = tuple[PageContext, dict[str, str]]


def scored(
    tracker: Tracker,
    name: str,
    passed: list[bool],
    samples: int = 1,
    settings: dict[str, float] | None = None,
) -> None:
    """A checkpoint with IFEval items whose texts are hostile; of each prompt there may be several answers."""
    tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name * 8)
    run = tracker.start_run("eval", key=f"eval:{name}", config={"settings": settings})
    items = [item | {"response": f"{views.HOSTILE} of {name}"} for item in databases.items(*passed)]
    if samples > 1:
        places = [divmod(i, samples) for i in range(len(items))]
        names = [{"key": f"p{prompt}#{answer}", "prompt": f"p{prompt}"} for prompt, answer in places]
        items = [item | name for item, name in zip(items, names, strict=True)]
    value = sum(passed) / len(passed)
    databases.record_score(
        tracker, run.id, name, databases.score("ifeval", value) | {"items": items, "n": len(items)}
    )


def test_two_models_that_hardly_differ_are_not_distinguishable(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        scored(tracker, "one", [True] * 18 + [False] * 2)
        scored(tracker, "two", [True] * 17 + [False] * 2 + [True])
        context = views.context(tracker)
        page = views.look(context, "/compare?a=one&b=two")
        assert "The two are not distinguishable." in page.text and "not distinguishable" in page.text
        assert page.text.count("pass → fail") >= 2 and f"{views.HOSTILE[:20]}" in page.text
        assert {given.get("dir") for given in page.all("div", "said")} == {"auto"}  # Hebrew, Arabic
        lost = views.look(context, "/compare?a=one&b=two&flips=lost")
        assert len(lost.all("article", "flip")) == 1 < len(page.all("article", "flip"))


def test_the_page_says_what_the_command_says(tmp_path: Path) -> None:
    with Workspace.open(tmp_path) as ws:
        scored(ws.tracker, "one", [True] * 30)
        scored(ws.tracker, "two", [False] * 25 + [True] * 5)
        said = compare(ws, "one", "two")
        page = views.look(views.context(ws.tracker), "/compare?a=one&b=two")
        assert said["words"] == "worse" and "Compared with one: two is worse on ifeval." in page.text
        assert f"{said['p_holm']:.2g}" in page.text and "−83.3" in page.text


def test_page_and_command_leave_earlier_documents_out_unless_they_are_named(tmp_path: Path) -> None:
    """6 losses against none are p = 0.031: a finding, but not among five comparisons."""
    before, after = [True] * 50, [False] * 6 + [True] * 44
    earlier = {f"knowledge:{number}": before for number in range(1, 5)}
    with Workspace.open(tmp_path) as ws:
        measured(ws.tracker, "one", ifeval=before, **earlier)
        measured(ws.tracker, "two", ifeval=after, **earlier)
        measured(ws.tracker, "three", **earlier)
        said = compare(ws, "one", "two")
        page = views.look(views.context(ws.tracker), "/compare?a=one&b=two")
        assert compare(ws, "one", "two", "knowledge:1")["suite"] == "knowledge:1"
        assert len(compare(ws, "one", "three")["suites"]) == 4  # there is no other
    assert [row["suite"] for row in said["suites"]] == ["ifeval"]
    assert said["verdict"] == "two is worse on ifeval" and "two is worse on ifeval" in page.text


def test_page_and_command_take_the_margin_of_the_later_evaluation(tmp_path: Path) -> None:
    passed = [True] * 60  # without a flip among them, at most 4.9 points are lost
    with Workspace.open(tmp_path) as ws:
        for name, margin in (("one", 0.03), ("two", 0.2)):
            scored(ws.tracker, name, passed, settings={"margin": margin})
        for a, b in (("one", "two"), ("two", "one")):
            said = compare(ws, a, b)
            page = views.look(views.context(ws.tracker), f"/compare?a={a}&b={b}")
            assert said["non_inferior"]["margin"] == 0.2
            for words in (compare_text(said), page.text):
                assert "b is at most 20 points worse" in words


def test_models_are_offered_with_what_they_are(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        for _ in range(2):
            databases.record_cycle(tracker, {"ifeval": {"clean": 0.9, "recovered": 0.8}})
        tracker.set_alias("base", "clean0")
        tracker.set_alias("current", "rec1")
        run = tracker.start_run("distill").id
        tracker.record_checkpoint("alone", path="/c/alone", kind="full", sha256="x", run_id=run)
        page = page_frame.render(views.context(tracker), "/compare")
        other = page_frame.render(views.context(tracker), "/compare?a=cycle:9&b=cycle:1")
    first, second = (re.findall("<option[^>]*>[^<]*", shown) for shown in (page, other))
    models = {
        "base": "base: clean0",
        "cycle:2:recovered": "cycle:2:recovered: rec2",
        "cycle:2:midtrained": "cycle:2:midtrained: mid2",
        "cycle:1:recovered": "cycle:1:recovered, current: rec1",
        "cycle:1:midtrained": "cycle:1:midtrained: mid1",
        "alone": f"run {run}: alone",
    }
    options = [f'<option value="{name}">{words}' for name, words in models.items()]
    chosen = [one.replace(">", " selected>", 1) for one in options]
    assert first[:12] == [chosen[0], *options[1:], options[0], chosen[1], *options[2:]]
    assert second[:7] == ['<option value="cycle:9" selected>cycle:9', *options]
    assert second[7:13] == [*options[:3], chosen[3], *options[4:]]


@pytest.mark.parametrize(("tried", "asked", "warned"), [(1, 20, False), (2, 20, True), (2, 19, False)])
def test_a_model_that_these_questions_chose_is_not_compared_without_a_word(
    tmp_path: Path, tried: int, asked: int, warned: bool
) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        for name in ("one", "two"):
            scored(tracker, name, [True] * 20)
        choice = tracker.start_run("choose")
        candidate = tracker.start_run("eval", parent=choice.id, key="asked:two")
        databases.record_score(
            tracker, candidate.id, "two", databases.score("ifeval", 1.0, *[True] * asked, n=asked)
        )
        tracker.finish_run(choice.id, {"checkpoint": "two", "tried": [{"name": "none"}] * tried})
        page = views.look(views.context(tracker), "/compare?a=one&b=two")
    said = "two was chosen by half of its cycle's questions, which flatter it: its verdict judges by"
    assert (said in page.text) is warned and "one was chosen" not in page.text


def test_several_answers_to_a_prompt_are_not_called_prompts(tmp_path: Path) -> None:
    with Workspace.open(tmp_path) as ws:
        scored(ws.tracker, "one", [True] * 40, samples=2)
        scored(ws.tracker, "two", [True] * 38 + [False] * 2, samples=2)
        found = compare(ws, "one", "two")
        page = views.look(views.context(ws.tracker), "/compare?a=one&b=two")
    assert found["samples"] == 2
    for words in (compare_text(found), page.text):
        assert words.count("40 answers (20 prompts)") == 2 and " 40 prompts" not in words


def test_prompts_whose_own_names_count_from_zero_are_prompts(tmp_path: Path) -> None:
    with Workspace.open(tmp_path) as ws:
        for name in ("one", "two"):
            ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name * 8)
            found = databases.score("knowledge", 1.0, *[True] * 40, n=40)
            found["items"] = [item | {"key": f"page#{i}"} for i, item in enumerate(found["items"])]
            databases.record_score(ws.tracker, ws.tracker.start_run("eval").id, name, found)
        said = compare(ws, "one", "two")
    assert (said["n"], said["samples"]) == (40, 1) and "the same 40 prompts" in compare_text(said)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/compare?a=nobody", "is not recorded"),
        ("/compare?a=base&b=base", "is not recorded"),
        ("/compare?a=rec1&b=rec1", "the same model"),
        ("/compare?a=cycle:1&b=cycle:99", "cycle:99"),
    ],
)
def test_a_model_that_is_not_there_is_a_sentence(home: Home, url: str, said: str) -> None:
    assert said in views.look(home[0], url).text


def test_many_flips_come_page_by_page(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        scored(tracker, "one", [True] * 50)
        scored(tracker, "two", [False] * 50)
        context = views.context(tracker)
        seen = 0
        url = "/compare?a=one&b=two"
        for _ in range(3):
            page = views.look(context, url)
            seen += len(page.all("article", "flip"))
            assert ("← From the start" in page.text) == ("after=" in url)
            url = next((given["href"] for given in page.all("a") if "after=" in given["href"]), "")
        assert seen == 50 and url == ""


def test_flips_are_listed_of_each_metric_that_is_counted(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        for name in ("one", "two"):
            measured(tracker, name, knowledge=[True] * 4)
            beside = databases.score("knowledge", 0.5, True, name == "one", n=2, metric="cloze")
            databases.record_score(tracker, tracker.start_run("eval").id, name, beside)
        context = views.context(tracker)
        headline = views.look(context, "/compare?a=one&b=two&suite=knowledge")
        cloze = views.look(context, "/compare?a=one&b=two&suite=knowledge+%28cloze%29")
    offered = [given["value"] for given in cloze.all("option") if "knowledge" in given["value"]]
    assert offered == ["knowledge", "knowledge (cloze)"]
    assert not headline.all("article", "flip") and len(cloze.all("article", "flip")) == 1


def test_the_page_has_methods_costs_and_the_models_it_is_between(home: Home) -> None:
    page = views.look(home[0], "/methods?student=all&sort=tokens")
    words = page.text
    assert "1.5 k" in words and "3 min 00 s" in words
    one = views.look(home[0], "/methods?student=mid2")
    assert "opd-sampled" in one.text and "midtrained" in one.text and "sft" not in one.text


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("newest", ["sft", "opd-sampled", "opd"]),
        ("tokens", ["opd", "opd-sampled", "sft"]),
        ("time", ["opd", "opd-sampled", "sft"]),
    ],
)
def test_methods_are_sorted(home: Home, sort: str, order: list[str]) -> None:
    drawn = page_frame.render(home[0], f"/methods?student=all&sort={sort}")
    assert re.findall(r'class="nowrap"><svg.*?</svg> ([a-z-]+)</span>', drawn) == order


def test_the_ring_of_the_clean_model_is_the_homes_whoever_taught(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        measured(tracker, "clean", ifeval=[True] * 4, knowledge=[True, False] * 2)
        measured(tracker, "other", ifeval=[False] * 4, knowledge=[False] * 4)
        tracker.set_alias("base", "clean")
        context = views.context(tracker)
        recovered(tracker, "opd", ifeval=[True] * 4, knowledge=[True] * 4)
        recovered(tracker, "sft", ifeval=[True] * 4, knowledge=[True] * 4)
        alike = views.look(context, "/methods")
        recovered(tracker, "seqkd", teacher="other", ifeval=[True] * 4, knowledge=[True] * 4)
        rows = overview.recoveries(tracker.db)
        rings = methods._references(context, rows, "mid")
        assert rings["clean"]["scores"]["ifeval"]["value"] == 1.0
        several = views.look(context, "/methods")
    assert "to come back to the same model's behaviour" in alike.text
    assert "to come back" not in several.text and "answered the same questions" in several.text
    assert "not all answered" not in alike.text + several.text
    assert "100.0 %95.0–105.0, n 4" in several.text  # with its interval, as it was recorded


def test_a_model_that_is_recovered_longer_is_not_called_midtrained(context: PageContext) -> None:
    """`recover distill --student cycle:1` begins from a recovered model."""
    tracker = context.tracker
    databases.record_cycle(tracker, views.SCORES)
    for student in ("mid1", "rec1"):
        for method in ("opd", "sft"):
            run = tracker.start_run("distill", config={"student": student, "teacher": "clean0"})
            measured(tracker, f"{method} of {student}", ifeval=[True] * 2, knowledge=[True] * 2)
            tracker.finish_run(run.id, {"checkpoint": f"{method} of {student}", "method": method})
        measured(tracker, student, ifeval=[True, False], knowledge=[True, False])
    for student, ring in (("rec1", "its beginning"), ("mid1", "midtrained")):
        page = page_frame.render(context, f"/methods?student={student}")
        assert re.findall(r'class="strong over">([^<]+)<', page) == [ring]
        assert "All began from the same model, to come back" in page


def test_a_score_of_nothing_stands_before_what_was_not_measured(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        recovered(tracker, "opd", ifeval=[True, True])
        recovered(tracker, "sft", ifeval=[False, False])
        recovered(tracker, "merge", knowledge=[True, True])
        page = views.look(views.context(tracker), "/methods?sort=behaviour")
    words = page.text.split("sort")[-1]
    assert words.index("opd") < words.index("sft") < words.index("merge")


def test_a_page_of_the_newest_recoveries_says_how_many_there_are(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        context = views.context(tracker)
        said = []
        for more in (100, 1):
            for _ in range(more):
                run = tracker.start_run("distill", config={"student": "mid"})
                tracker.finish_run(run.id, {"checkpoint": "rec", "method": "opd"})
            said.append(views.look(context, "/methods").text)
    assert "every recovery" in said[0] and "newest 100" not in said[0]
    assert "every recovery" not in said[1] and "This page has the newest 100 of 101 recoveries." in said[1]


def test_merges_are_named_by_their_kind(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        for kind, weight in (("linear", 0.5), ("embeddings", 1.0), ("residual", 0.7)):
            run = tracker.start_run("merge", config={"student": "mid", "kind": kind, "weight": weight})
            tracker.finish_run(run.id, {"checkpoint": kind})
        page = views.look(views.context(tracker), "/methods")
    assert all(name in page.text for name in ("merge 0.5", "embeddings", "residual 0.7"))
    assert "embeddings 1" not in page.text


def test_the_mixtures_of_a_search_are_no_ways_to_recover(tmp_path: Path) -> None:
    """`recover locate` merges one for each part: the page was full of rows that nothing tells apart."""
    with Tracker(tmp_path / "recover.db") as tracker:
        for above, kind, weight in (("locate", "parts", 1.0), ("sweep", "linear", 0.5)):
            parent = tracker.start_run(above).id
            config = {"student": "mid", "kind": kind, "weight": weight}
            for number in range(2):
                run = tracker.start_run("merge", parent=parent, key=f"{number}", config=config)
                tracker.finish_run(run.id, {"checkpoint": f"{kind} {number}"})
        alone = tracker.start_run("merge", config={"student": "mid", "kind": "embeddings", "weight": 1.0})
        tracker.finish_run(alone.id, {"checkpoint": "alone"})
        rows = overview.recoveries(tracker.db)
    assert [row["method"] for row in rows] == ["embeddings", "merge 0.5", "merge 0.5"]


def recovered(
    tracker: Tracker, name: str, method: str | None = None, teacher: str = "clean", **passed: list[bool]
) -> None:
    """A recovery of `mid`, with a score of each suite on as many questions as there are answers."""
    run = tracker.start_run("distill", config={"student": "mid", "teacher": teacher})
    measured(tracker, name, **passed)
    tracker.finish_run(run.id, {"checkpoint": name, "method": method or name})


def measured(tracker: Tracker, name: str, **passed: list[bool]) -> None:
    tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name * 8)
    run = tracker.start_run("eval")
    for suite, answers in passed.items():
        value = sum(answers) / len(answers)
        databases.record_score(tracker, run.id, name, databases.score(suite, value, *answers, n=len(answers)))


def test_methods_are_compared_on_the_same_questions(tmp_path: Path) -> None:
    few, many = [True] * 2, [True] * 30 + [False] * 10
    with Tracker(tmp_path / "recover.db") as tracker:
        measured(tracker, "clean", ifeval=many, knowledge=many)
        for method in ("opd", "merge"):
            recovered(tracker, method, ifeval=many, knowledge=many)
        recovered(tracker, "sft", ifeval=few, knowledge=many)
        measured(tracker, "opd", ifeval=few, knowledge=few)  # later, and fewer
        rows = {row["method"]: row for row in overview.recoveries(tracker.db)}
        page = views.look(views.context(tracker), "/methods")
    assert {row["scores"]["ifeval"]["n"] for row in rows.values() if "ifeval" in row["scores"]} == {40}
    assert rows["sft"]["scores"].keys() == {"knowledge"} and rows["sft"]["otherwise"] == ["ifeval"]
    assert (
        "75.0 %70.0–80.0, n 40" in page.text and "other questions" in page.text and "100.0 %" not in page.text
    )
    assert "not in the plot, for want of a score on these questions: sft" in page.text
    assert "behaviour, but not all answered the same questions." in page.text


def test_many_checkpoints_of_one_method_do_not_outvote_two_methods(tmp_path: Path) -> None:
    few, many = [True] * 2, [True] * 30 + [False] * 10
    with Tracker(tmp_path / "recover.db") as tracker:
        for method in ("opd", "sft"):
            recovered(tracker, method, ifeval=many)
        for number in range(4):
            recovered(tracker, f"part{number}", method="parts", ifeval=few)
        rows = {row["checkpoint"]: row for row in overview.recoveries(tracker.db)}
    assert rows["opd"]["scores"]["ifeval"]["n"] == rows["sft"]["scores"]["ifeval"]["n"] == 40
    assert all(rows[f"part{number}"]["otherwise"] == ["ifeval"] for number in range(4))


def test_a_name_beside_a_ring_grows_away_from_it() -> None:
    """A phone's letters are larger: a name that is centred beside its ring would cover it."""
    row, low, high = ({"value": value, "low": value, "high": value} for value in (0.5, 0.1, 0.9))
    one = {"method": "opd", "label": "x", "scores": {"knowledge": row, "ifeval": row}}
    rings = {
        "clean": {"scores": {"knowledge": low, "ifeval": high}},
        "midtrained": {"scores": {"knowledge": low, "ifeval": low}},
    }
    drawn = str(methods_plane([one], ["opd"], rings))
    assert re.findall(r'text-anchor="(\w+)" class="strong over">(\w+)', drawn) == [
        ("start", "clean"),
        ("start", "midtrained"),
    ]


def test_bars_and_signs_do_not_strike_through_a_name(tmp_path: Path) -> None:
    one = {"value": 0.5, "low": 0.2, "high": 0.8}
    ring = {"value": 0.5, "low": 0.4, "high": 0.6}
    row = {"method": "opd", "label": "x", "scores": {"knowledge": one, "ifeval": one}}
    drawn = str(methods_plane([row], ["opd"], {"clean": {"scores": {"knowledge": ring, "ifeval": ring}}}))
    bars = [
        [float(end) for end in re.findall(r'[xy][12]="([-.0-9]+)"', line)] for line in BARS.findall(drawn)
    ]
    assert bars
    left, base = map(float, re.findall(r'<text x="([.0-9]+)" y="([.0-9]+)"[^>]*>clean', drawn)[0])
    for x1, y1, x2, y2 in bars:
        assert (
            max(x1, x2) < left - 15 or min(x1, x2) > left + 15 or max(y1, y2) < base - 9 or min(y1, y2) > base
        )


def test_no_axis_of_shares_has_a_tick_that_no_share_can_be() -> None:
    one = {"value": 1.0, "low": 0.95, "high": 1.0}
    row = {"method": "opd", "label": "x", "scores": {"knowledge": one, "ifeval": one}}
    drawn = str(methods_plane([row], ["opd"], {}))
    assert max(map(float, re.findall(r">([0-9.]+)</text>", drawn))) == 100


def test_the_intervals_of_methods_are_drawn_to_their_ends() -> None:
    rows = []
    for share in (0.3, 0.4):
        one = {"value": share, "low": share - 0.2, "high": share + 0.2}
        rows.append({"method": "opd", "label": "x", "scores": {"knowledge": one, "ifeval": one}})
    drawn = str(methods_plane(rows, ["opd"], {}))
    bars = [
        [float(end) for end in re.findall(r'[xy][12]="([-.0-9]+)"', line)] for line in BARS.findall(drawn)
    ]
    assert len(bars) == 4
    for across, upright in zip(bars[::2], bars[1::2], strict=True):
        assert across[0] + across[2] == pytest.approx(2 * upright[0], abs=0.3)  # the sign is in the middle
        assert upright[1] + upright[3] == pytest.approx(2 * across[1], abs=0.3)


def test_knowledge_is_a_triangle_by_cycle(home: Home) -> None:
    page = views.look(home[0], "/knowledge")
    assert len(page.all("rect")) >= 6 and "cycle 1's documents after cycle 3: 60.0 %" in page.text
    assert "every earlier cycle's" in page.text
    second = views.look(home[0], "/knowledge?n=2")
    # Both questions asked again were answered rightly when they were new, whatever the whole score was then.
    assert "After cycle 2" in second.text and "60.055.0 to 65.0100.0−40.0" in second.text
    assert "cycle 3" not in views.look(home[0], "/knowledge?before=3").text.split("by kind of question")[0]


def test_knowledge_by_kind_draws_stages_as_other_pages_do_and_kinds_as_none_of_them(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        number = databases.record_cycle(tracker, {"knowledge": {"midtrained": 0.6, "recovered": 0.5}})
        asked = tracker.start_run("eval", parent=queries.cycle(tracker.db, number)["run"], key="kinds")
        found = databases.score("knowledge", 0.5, True, False, n=2)
        kinds = {kind: {"value": 0.5, "n": 2} for kind in ("direct", "heldout")}
        found["details"] = {"by_kind": kinds}
        databases.record_score(tracker, asked.id, f"rec{number}", found)
        page = page_frame.render(views.context(tracker), "/knowledge")
    shown = re.findall(r'class="(c-\w+) fill"[^>]*></path></svg> ([^<]+)', page)
    names = [*(f"all questions, {stage}" for stage in ("midtrained", "recovered")), "direct", "heldout"]
    colours = ["c-midtrained", "c-recovered", "c-s4", "c-s5"]
    assert shown == list(zip(colours, names, strict=True))
    drawn = page.split("</svg>")[-6]  # before the signs of the legend
    assert [colour for colour in colours if f'class="{colour} fill"' in drawn] == colours


def test_no_link_leads_to_cycles_that_were_asked_nothing(tmp_path: Path) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        databases.record_cycle(tracker, {"ifeval": {"recovered": 0.9}})
        databases.record_cycle(tracker, {"knowledge": {"recovered": 0.5}})
        context = views.context(tracker)
        for address in ("/knowledge", "/knowledge?before=2", "/knowledge?n=1"):
            page = page_frame.render(context, address)
            assert "After cycle" in page and "before=" not in page


def test_a_sample_of_earlier_questions_is_compared_with_the_same_ones(tmp_path: Path) -> None:
    """Of four questions one was known; the two that are asked again were not, and one of them is now."""
    with Tracker(tmp_path / "recover.db") as tracker:
        for _ in range(2):
            databases.record_cycle(tracker, {"ifeval": {"recovered": 0.9}})
        answers = {1: ("knowledge", [True, False, False, False]), 2: ("knowledge:1", [False, True])}
        for number, (suite, passed) in answers.items():
            asked = tracker.start_run("eval", parent=queries.cycle(tracker.db, number)["run"], key=suite)
            found = databases.score(suite, sum(passed) / len(passed), *passed, n=len(passed))
            for key, item in enumerate(found["items"], number - 1):
                item["key"] = str(key)
            found["details"] = {"by_kind": {"direct": {"passed": sum(passed), "n": len(passed)}}}
            databases.record_score(tracker, asked.id, f"rec{number}", found)
        page = views.look(views.context(tracker), "/knowledge?n=2")
        kind = views.look(views.context(tracker), "/knowledge?n=2&kind=direct")
    assert "cycle 150.045.0 to 55.00.0+50.02" in page.text
    assert "cycle 1–––" in kind.text  # not known for one kind


def test_a_triangle_that_begins_late_says_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "PAGE", 2)
    context = views.context(home[0].tracker)
    assert "those of earlier cycles, from cycle 2 on" in views.look(context, "/knowledge").text


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/compare", "recover demo"),
        ("/methods", "recover distill"),
        ("/knowledge", "recover cycle"),
    ],
)
def test_an_empty_home_says_what_to_type(tmp_path: Path, path: str, command: str) -> None:
    with Tracker(tmp_path / "recover.db") as tracker:
        assert command in views.look(views.context(tracker), path).text


def test_downloads_beyond_some_are_refused_until_one_has_ended(home: Home) -> None:
    from starlette.testclient import TestClient

    from dashboard import app

    client = TestClient(app.make(home[0].tracker), base_url="http://127.0.0.1:7860")
    page = views.Scan(client.get("/export").text)
    link = next(given["href"] for given in page.all("a", "download") if given["download"] == "runs.csv")
    for _ in range(export.AT_ONCE):
        assert export._free.acquire(blocking=False)
    assert client.get(link).status_code == 503
    given_up = export._Download(one_by_one())
    assert next(given_up) == b"1"
    del given_up
    assert [client.get(link).status_code for _ in range(export.AT_ONCE + 1)] == [200] * (export.AT_ONCE + 1)
    export._free.release()
    with pytest.raises(ValueError, match="released too many times"):
        export._free.release()


def one_by_one() -> Generator[bytes]:
    yield b"1"
    yield b"2"


def test_the_export_page_gives_files_only_with_its_own_token(home: Home) -> None:
    from starlette.testclient import TestClient

    from dashboard import app

    secret = "hf_abcdefghijklmnopqrstuvwxyz0123"
    home[0].tracker.start_run("eval", config={"hub": {"token": secret}})
    client = TestClient(app.make(home[0].tracker), base_url="http://127.0.0.1:7860")
    page = views.Scan(client.get("/export").text)
    links = {given["download"]: given["href"] for given in page.all("a", "download")}
    assert len(links) == 36
    answer = client.get(links["metrics.csv"])
    assert answer.headers["content-disposition"] == 'attachment; filename="metrics.csv"'
    assert (
        answer.text.startswith('"run_id","name","step"')
        and answer.headers["x-content-type-options"] == "nosniff"
    )
    assert secret not in client.get(links["runs.json"]).text
    address, _, _ = links["runs.json"].partition("&token=")
    assert client.get(address).status_code == 403 and client.get(f"{address}&token=x").status_code == 403
    assert client.get(links["runs.json"].replace("table=runs", "table=../etc/passwd")).status_code == 404
    assert client.get(links["runs.json"], headers={"host": "evil.example"}).status_code == 400


def test_the_page_knowledge_of_a_cycle_before_the_newest_ones_shows_that_cycle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knowledge, "PAGE", 2)
    with Tracker(tmp_path / "recover.db") as tracker:
        for number in range(1, 6):
            run = tracker.start_run("cycle")
            tracker.record_cycle(run.id)
            if number == 2:
                continue  # its knowledge was never measured
            tracker.record_checkpoint(f"recovered{number}", path="/c", kind="full", sha256=str(number))
            tracker.record_cycle(run.id, recovered_id=f"recovered{number}")
            asked = tracker.start_run("eval", parent=run.id)
            found = databases.score("knowledge", number / 10, True, n=40)
            databases.record_score(tracker, asked.id, f"recovered{number}", found)
        context = views.context(tracker)
        oldest = views.look(context, "/knowledge?n=1").text
        unmeasured = views.look(context, "/knowledge?n=2").text
        newest = views.look(context, "/knowledge").text
        unknown = views.look(context, "/knowledge?n=99").text
    assert "After cycle 1: all questions" in oldest and "10.0" in oldest and "After cycle 5" not in oldest
    assert "After cycle 2: all questions" in unmeasured and "was not asked yet" in unmeasured
    assert "After cycle 5: all questions" in newest and "After cycle 5: all questions" in unknown
