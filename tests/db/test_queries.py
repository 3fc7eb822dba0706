"""Reading: a cycle's numbers worked by hand, pages, curves, flips, names of checkpoints."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from db.errors import BadRequest, NotFound
from db.reads import curves, earlier_documents, overview, queries
from db.reads.cycles import knowledge_kept, recovered_fraction, whole_cycles
from db.writes.points import Point, store
from db.writes.tracker import Tracker
from tests.support.databases import flips_between, items, record_cycle, record_metrics, record_score, score
from tests.support.present import present

CONTRACT = {
    "ifeval": {"clean": 0.9, "midtrained": 0.1, "recovered": 0.82},
    "knowledge": {"clean": 0.08, "midtrained": 0.48, "recovered": 0.88},
    "retention": {"clean": 1.0, "midtrained": 0.6, "recovered": 0.97},
}


def exported(tracker: Tracker) -> list[dict[str, Any]]:
    """All cycles, as an export reads them."""
    with tracker.db.read() as connection:
        return list(whole_cycles(connection, tracker.db.project, 50))


# Cycles ----------------------------------------------------------------------------------------------------


def test_a_cycle_in_the_shape_that_scripts_rely_on(tracker: Tracker) -> None:
    number = record_cycle(tracker, CONTRACT)
    tracker.record_verdicts(
        number,
        {
            "behaviour": {"outcome": "recovered", "lower_bound": -0.012, "margin": 0.03, "n": 100, "lost": 3},
            "knowledge": {"outcome": "kept", "lower_bound": 0.2},
            "retention": {"outcome": "underpowered"},
        },
    )
    cycle = queries.cycle(tracker.db, number)
    json.dumps(cycle, allow_nan=False)
    assert (cycle["cycle"], cycle["status"]) == (1, "accepted")
    assert cycle["checkpoints"] == {"clean": "clean0", "midtrained": "mid1", "recovered": "rec1"}
    shown = {
        suite: {name: row[name] for name in ("clean", "midtrained", "recovered")}
        for suite, row in cycle["scores"].items()
    }
    assert shown == CONTRACT
    assert cycle["scores"]["ifeval"]["n"] == 100
    assert cycle["scores"]["ifeval"]["intervals"]["clean"] == pytest.approx([0.85, 0.95])
    assert cycle["recovered_fraction"] == pytest.approx((0.82 - 0.1) / (0.9 - 0.1))
    assert cycle["knowledge_kept"] == pytest.approx((0.88 - 0.08) / (0.48 - 0.08))
    verdict = cycle["verdict"]
    assert (verdict["behaviour"], verdict["knowledge"], verdict["retention"]) == (
        "recovered",
        "kept",
        "underpowered",
    )
    assert (verdict["behaviour_lower_bound"], verdict["margin"]) == (-0.012, 0.03)
    assert verdict["axes"]["behaviour"]["lost"] == 3
    assert cycle["cost"] == {
        "tokens_sampled": 330,
        "tokens_scored": 0,
        "tokens_trained": 15,
        "seconds": 6.0,
        "peak_bytes": 7,
    }  # three stages of 10 + 5 + 1.5 s, three evaluations of 100 + 0.5 s
    assert "knowledge_by_cycle" not in cycle and cycle["review"] is None


def test_a_cycle_that_has_only_begun(tracker: Tracker) -> None:
    number = tracker.record_cycle(tracker.start_run("cycle").id)
    cycle = queries.cycle(tracker.db, number)
    assert (cycle["status"], cycle["scores"], cycle["verdict"]) == ("running", {}, None)
    assert cycle["recovered_fraction"] is None and cycle["knowledge_kept"] is None
    assert cycle["cost"] == {"tokens_sampled": 0, "tokens_scored": 0, "tokens_trained": 0, "seconds": 0.0}
    with pytest.raises(NotFound, match="cycle 7 is not recorded"):
        queries.cycle(tracker.db, 7)
    with pytest.raises((BadRequest, NotFound)):  # the number is at fault, not the database
        queries.cycle(tracker.db, 10**30)


def test_a_cycle_names_the_margin_and_the_axes_that_it_began_with(tracker: Tracker) -> None:
    required = ["behaviour", "retention"]
    run = tracker.start_run("cycle", config={"settings": {"eval": {"margin": 0.1}}, "required": required})
    begun = tracker.record_cycle(run.id)
    older = tracker.record_cycle(tracker.start_run("cycle").id)
    assert [queries.cycle(tracker.db, number)["margin"] for number in (begun, older)] == [0.1, None]
    assert [queries.cycle(tracker.db, number)["required"] for number in (begun, older)] == [required, None]


@pytest.mark.parametrize("ended", ["accepted", "rejected", "failed"])
def test_a_cycle_whose_run_was_stopped_is_stopped_until_it_goes_on(tracker: Tracker, ended: str) -> None:
    run = tracker.start_run("cycle", key="k").id
    tracker.record_cycle(run)
    tracker.stop_run(run, "interrupted")
    cycle = queries.cycle(tracker.db, 1)
    assert (cycle["status"], cycle["error"], cycle["stalled"]) == ("stopped", "interrupted", False)
    tracker.start_run("cycle", key="k")
    assert queries.cycle(tracker.db, 1)["status"] == "running"
    tracker.record_cycle(run, status=ended)
    tracker.stop_run(run, "interrupted")  # after the decision, before the run was recorded as done
    assert queries.cycle(tracker.db, 1)["status"] == ended


def test_nothing_lost_is_no_division_by_zero(tracker: Tracker) -> None:
    record_cycle(tracker, {"ifeval": {"clean": 0.9, "midtrained": 0.9, "recovered": 0.9}})
    assert queries.cycle(tracker.db, 1)["recovered_fraction"] is None


def test_a_share_of_what_midtraining_hardly_changed_is_not_shown(tracker: Tracker) -> None:
    record_cycle(
        tracker,
        {
            "ifeval": {"clean": 0.5, "midtrained": 0.48, "recovered": 0.44},
            "knowledge": {"clean": 0.1, "midtrained": 0.12, "recovered": 0.3},
        },
    )
    cycle = queries.cycle(tracker.db, 1)
    assert cycle["recovered_fraction"] is None and cycle["knowledge_kept"] is None


def test_no_share_is_told_where_midtraining_raised_behaviour_or_lowered_knowledge(tracker: Tracker) -> None:
    record_cycle(
        tracker,
        {
            "ifeval": {"clean": 0.5, "midtrained": 0.7, "recovered": 0.6},
            "knowledge": {"clean": 0.5, "midtrained": 0.3, "recovered": 0.4},
        },
    )
    cycle = queries.cycle(tracker.db, 1)
    assert cycle["recovered_fraction"] is None and cycle["knowledge_kept"] is None
    assert cycle["cost_per_recovered_point"] is None


def test_moments_have_the_form_that_the_page_on_json_shows(tracker: Tracker) -> None:
    number = record_cycle(tracker, CONTRACT)
    tracker.add_review(number, "approve", "", "ann")
    cycle = queries.cycle(tracker.db, number)
    moments = (cycle["started_at"], cycle["ended_at"], cycle["heartbeat_at"], cycle["review"]["at"])
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\| `started_at`, `ended_at` \|.* such as `([^`]+)`", page, re.MULTILINE)
    assert {re.sub(r"\d", "0", moment) for moment in moments} == {re.sub(r"\d", "0", shown)}


def test_what_is_still_known_of_earlier_cycles(tracker: Tracker) -> None:
    record_cycle(tracker, CONTRACT)
    record_cycle(
        tracker,
        CONTRACT | {"knowledge": {"clean": 0.0, "recovered": 0.5}, "knowledge:1": {"recovered": 0.44}},
    )
    last = CONTRACT | {"knowledge:2": {"recovered": 0.6}, "knowledge:1": {"recovered": 0.66}}
    record_cycle(tracker, last)
    first, second, third = (queries.cycle(tracker.db, number) for number in (1, 2, 3))
    assert "knowledge_by_cycle" not in first
    assert exported(tracker) == [first, second, third]
    assert [row["scores"] for row in queries.cycles(tracker.db)] == [
        row["scores"] for row in (first, second, third)
    ]
    assert second["knowledge_by_cycle"] == [{"cycle": 1, "score": 0.44, "n": 100, "then": 1.0, "kept": 0.44}]
    assert [row["kept"] for row in third["knowledge_by_cycle"]] == pytest.approx([0.66, 0.6])
    assert set(third["scores"]) == {"ifeval", "knowledge", "retention"}
    assert queries.cycle(tracker.db, 3) == third


def test_earlier_documents_are_compared_on_the_questions_that_are_asked_again(tracker: Tracker) -> None:
    """A later cycle asks some of them: what was known of the others then does not count."""
    record_cycle(tracker, {"ifeval": {"recovered": 0.9}})
    record_cycle(tracker, {"ifeval": {"recovered": 0.9}})

    def asked(number: int, suite: str, *passed: bool, first: int = 0) -> None:
        work = tracker.start_run("eval", parent=queries.cycle(tracker.db, number)["run"], key=suite)
        found = score(suite, sum(passed) / len(passed), *passed)
        rows = [item | {"key": f"{key}"} for key, item in enumerate(found["items"], first)]
        record_score(tracker, work.id, f"rec{number}", found | {"items": rows, "n": len(rows)})

    asked(1, "knowledge", True, True, False, False, False)
    asked(2, "knowledge:1", True, False, True, first=1)
    row = {"cycle": 1, "score": pytest.approx(2 / 3), "n": 3, "then": pytest.approx(1 / 3)}
    assert queries.cycle(tracker.db, 2)["knowledge_by_cycle"] == [row | {"kept": pytest.approx(2.0)}]
    asked(2, "knowledge:1", True, False, True, first=3)  # one that was not asked then
    (row,) = queries.cycle(tracker.db, 2)["knowledge_by_cycle"]
    assert (row["n"], row["then"], row["kept"]) == (3, None, None)


def test_what_was_known_then_is_what_the_cycle_itself_measured_last(tracker: Tracker) -> None:
    for _ in range(2):
        record_cycle(tracker, {})

    def scored(name: str, suite: str, *passed: bool, cycle: int | None = None) -> None:
        above = None if cycle is None else queries.cycle(tracker.db, cycle)["run"]
        found = score(suite, sum(passed) / len(passed), *passed, n=len(passed))
        record_score(tracker, tracker.start_run("eval", parent=above).id, name, found)

    scored("rec1", "knowledge", False, False, cycle=1)
    scored("rec1", "knowledge", True, False, cycle=1)
    scored("mid1", "knowledge", True, True, cycle=1)
    scored("rec1", "knowledge", True, True)  # by hand, later
    scored("rec2", "knowledge:1", True, True, cycle=2)
    (row,) = queries.cycle(tracker.db, 2)["knowledge_by_cycle"]
    assert (row["then"], row["kept"]) == (0.5, 2.0)


def test_each_cycle_leads_with_the_metric_that_it_recorded_first(tracker: Tracker) -> None:
    for metric, value in (("lenient", 0.25), ("strict", 0.75)):
        number = record_cycle(tracker, {})
        run = tracker.start_run("eval", parent=queries.cycle(tracker.db, number)["run"])
        record_score(tracker, run.id, f"rec{number}", score("knowledge", value, metric=metric))
    assert [cycle["scores"]["knowledge"]["recovered"] for cycle in queries.cycles(tracker.db)] == [0.25, 0.75]


def test_points_that_a_recovery_lost_have_no_cost_each(tracker: Tracker) -> None:
    record_cycle(tracker, {"ifeval": {"clean": 0.9, "midtrained": 0.5, "recovered": 0.3}})
    assert queries.cycle(tracker.db, 1)["cost_per_recovered_point"] is None


@pytest.mark.parametrize("at_once", [2, 5000])
def test_earlier_documents_take_as_many_queries_after_many_cycles_as_after_few(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(earlier_documents, "PAIRS_AT_ONCE", at_once)
    few, many = 3, 9
    drawn = random.Random(0)
    known = {number: [drawn.random() < 0.5 for _ in range(4)] for number in range(1, many)}
    asked_of = {number: drawn.randint(1, 4) for number in known}
    for number in range(1, many + 1):
        run = tracker.start_run("cycle").id
        tracker.record_checkpoint(f"rec{number}", path="/c", kind="full", sha256=f"{number}")
        tracker.record_cycle(run, recovered_id=f"rec{number}")
        again = [
            score(f"knowledge:{earlier}", 0.5, *[True] * asked_of[earlier]) for earlier in range(1, number)
        ]
        own = score("knowledge", 0.5, *known.get(number, ()))
        tracker.record_scores(run, f"rec{number}", [*again, own])
    with statements(tracker) as after_few:
        queries.cycle(tracker.db, few)
    with statements(tracker) as after_many:
        found = queries.cycle(tracker.db, many)["knowledge_by_cycle"]
    expected = {n: sum(known[n][: asked_of[n]]) / asked_of[n] for n in known}
    assert {row["cycle"]: row["then"] for row in found} == pytest.approx(expected)
    batches = -(-(many - 1) // at_once) - 1
    assert len(after_many) == len(after_few) + batches
    with statements(tracker) as without:
        assert "knowledge_by_cycle" not in queries.cycle(tracker.db, many, earlier=False)
    assert len(without) < len(after_few)
    assert exported(tracker)[-1]["knowledge_by_cycle"] == found


@contextmanager
def statements(tracker: Tracker) -> Iterator[list[str]]:
    """The statements that are executed meanwhile."""
    found: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        found.append(statement)

    sa.event.listen(tracker.db.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(tracker.db.engine, "before_cursor_execute", note)


def test_one_checkpoint_scored_in_two_cycles_is_not_mixed_up(tracker: Tracker) -> None:
    """The clean model is asked about other documents in each cycle."""
    record_cycle(tracker, {"knowledge": {"clean": 0.1}})
    record_cycle(tracker, {"knowledge": {"clean": 0.3}})
    assert [cycle["scores"]["knowledge"]["clean"] for cycle in queries.cycles(tracker.db)] == [0.1, 0.3]


def test_the_headline_metric_stands_for_its_suite(tracker: Tracker) -> None:
    number = record_cycle(tracker, {"knowledge": {"clean": 0.1}})
    run = queries.cycle(tracker.db, number)["run"]
    for metric, value in (("inst_loose", 0.5), ("prompt_strict", 0.4), ("prompt_loose", 0.6)):
        record_score(tracker, run, "clean0", score("ifeval", value, metric=metric))
    record_score(tracker, run, "clean0", score("knowledge", 0.05, metric="strict"))
    scores = queries.cycle(tracker.db, number)["scores"]
    assert (scores["ifeval"]["clean"], scores["knowledge"]["clean"]) == (0.4, 0.1)


def test_pages_of_cycles(tracker: Tracker) -> None:
    parent = tracker.start_run("demo", key="demo")
    for _ in range(5):
        tracker.record_cycle(tracker.start_run("cycle", parent=parent.id).id)
    pages = [
        [row["cycle"] for row in queries.cycles(tracker.db, before=before, limit=2)]
        for before in (None, 4, 2, 1)
    ]
    assert pages == [[4, 5], [2, 3], [1], []]
    assert len(queries.cycles(tracker.db)) == 5


def test_counts_of_two_checkpoints_lead_with_the_headline(tracker: Tracker) -> None:
    """On each kind of database, also where another metric was scored between two evaluations."""
    newest = {}
    for name in ("one", "other"):
        tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        for metric in ("lenient", "retrieval", "lenient"):
            run = tracker.start_run("eval")
            row = score("knowledge", 0.5, True, name == "one", n=2) | {"metric": metric}
            newest[name, metric] = record_score(tracker, run.id, name, row)
    rows = queries.compared(tracker.db, "one", "other")
    assert [row["metric"] for row in rows] == ["lenient", "retrieval"]
    for row in rows:
        assert row["score_a"] == newest["one", row["metric"]]
        assert row["score_b"] == newest["other", row["metric"]]
    assert [(row["n"], row["gained"], row["lost"]) for row in rows] == [(2, 0, 1)] * 2


def test_the_latest_review_is_shown(tracker: Tracker) -> None:
    record_cycle(tracker, {})
    for decision in ("needs-work", "approve"):
        tracker.add_review(1, decision, "note", "ada")
    assert queries.cycle(tracker.db, 1)["review"]["decision"] == "approve"
    assert [row["decision"] for row in queries.reviews(tracker.db)] == ["approve", "needs-work"]


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.01, 1))
def test_fractions(clean: float, midtrained: float, recovered: float) -> None:
    if clean <= midtrained:
        assert recovered_fraction(clean, midtrained, recovered) is None  # nothing was lost
    elif clean > midtrained + 1e-6:
        assert recovered_fraction(clean, midtrained, clean) == 1
        assert recovered_fraction(clean, midtrained, midtrained) == 0
        back = recovered_fraction(clean, midtrained, recovered)
        assert back is not None and midtrained + back * (clean - midtrained) == pytest.approx(
            recovered, abs=1e-6
        )
    if midtrained <= clean:
        assert knowledge_kept(clean, midtrained, recovered) is None  # nothing was learned
    else:
        assert knowledge_kept(clean, midtrained, midtrained) == 1


# Runs and checkpoints --------------------------------------------------------------------------------------


def test_runs_are_newest_first(tracker: Tracker) -> None:
    made = [tracker.start_run("eval").id for _ in range(7)]
    assert [row["id"] for row in queries.runs(tracker.db)] == made[::-1]
    assert [row["id"] for row in queries.runs(tracker.db, limit=3)] == made[:3:-1]


def test_runs_of_a_kind_a_status_or_a_parent(tracker: Tracker) -> None:
    cycle = tracker.start_run("cycle")
    stage = tracker.start_run("eval", parent=cycle.id)
    tracker.finish_run(stage.id)
    assert [row["id"] for row in queries.runs(tracker.db, kind="cycle")] == [cycle.id]
    assert [row["id"] for row in queries.runs(tracker.db, status="done")] == [stage.id]
    assert [row["id"] for row in queries.runs(tracker.db, parent=cycle.id)] == [stage.id]


def test_what_can_be_resumed(tracker: Tracker) -> None:
    names = ("done", "failed", "stopped", "running", "given up")
    runs = {name: tracker.start_run(name, key=name) for name in names}
    tracker.start_run("eval", parent=runs["done"].id)
    tracker.give_up_run(runs["given up"].id, "given up")
    tracker.finish_run(runs["done"].id)
    tracker.fail_run(runs["failed"].id, "no")
    tracker.stop_run(runs["stopped"].id, "enough")
    found = [row["id"] for row in queries.unfinished_runs(tracker.db)]
    assert found == [runs[name].id for name in ("running", "stopped", "failed")]
    given_up = queries.run(tracker.db, runs["given up"].id)
    assert (given_up["status"], given_up["error"], given_up["key"]) == ("stopped", "given up", None)
    assert tracker.start_run("given up", key="given up").id != given_up["id"]
    with pytest.raises(NotFound, match="run nobody is not recorded"):
        queries.run(tracker.db, "nobody")


def test_names_of_checkpoints(tracker: Tracker) -> None:
    for name in ("abcd123", "abcd456", "abde789", "current-not"):
        tracker.record_checkpoint(name, path="/c", kind="full", sha256="00")
    record_cycle(tracker, {})
    tracker.set_alias("current", "abde789")
    found = {
        reference: queries.resolve(tracker.db, reference)
        for reference in ("abcd123", "abcd1", "current", "cycle:1", "cycle:1:midtrained", "rec1")
    }
    assert found == {
        "abcd123": "abcd123",
        "abcd1": "abcd123",
        "current": "abde789",
        "cycle:1": "rec1",
        "cycle:1:midtrained": "mid1",
        "rec1": "rec1",
    }
    assert queries.checkpoint(tracker.db, "abde")["aliases"] == ["current"]
    with pytest.raises(BadRequest, match="'abcd' could be abcd123, abcd456"):
        queries.resolve(tracker.db, "abcd")
    for unknown in ("zzz", "", "%", "a_c", "cycle:9", "cycle:99999999999999999999"):
        with pytest.raises(NotFound):
            queries.resolve(tracker.db, unknown)
    for missing in ("cycle:9", "cycle:9:midtrained"):
        with pytest.raises(NotFound, match="cycle 9 is not recorded: `recover ls`"):
            queries.resolve(tracker.db, missing)
    for unreadable in ("cycle:x", "cycle:1:best", "cycle:-1", "cycle:"):
        with pytest.raises(BadRequest):
            queries.resolve(tracker.db, unreadable)


def test_the_number_of_a_cycle_is_not_the_beginning_of_an_id(tracker: Tracker) -> None:
    tracker.record_checkpoint("1fee42", path="/c", kind="full", sha256="00")
    for number in ("1", "99"):
        with pytest.raises(NotFound, match=f"no checkpoint is named {number}: write cycle:{number} for a"):
            queries.resolve(tracker.db, number)
    with pytest.raises(BadRequest, match="'1fe' is too short: give at least 4 characters of its id"):
        queries.resolve(tracker.db, "1fe")
    assert queries.resolve(tracker.db, "1fee") == "1fee42"


# Items -----------------------------------------------------------------------------------------------------


def test_a_search_takes_its_words_as_they_are_written(tracker: Tracker) -> None:
    asked = score("ifeval", 0.5, True, False, True, False, False)
    asked["items"][3]["response"] = "100% WRONG_"
    number = record_score(tracker, tracker.start_run("eval").id, None, asked)

    def keys(search: str) -> list[str]:
        wanted = queries.ItemFilter(search=search)
        return [row["key"] for row in queries.side_by_side(tracker.db, {"clean": number}, wanted)]

    assert keys("wrong") == ["p3"] and keys("0%") == ["p3"] and keys("_") == ["p3"]
    assert keys("PROMPT 2") == ["p2"] and keys("nowhere") == []


def test_a_search_knows_capitals_beyond_ascii(tracker: Tracker) -> None:
    asked = score("ifeval", 0.5, True, False, True)
    for item, words in zip(asked["items"], ("Die ÄRZTE", "école", "ЁЛКА"), strict=True):
        item["response"] = words
    number = record_score(tracker, tracker.start_run("eval").id, None, asked)
    for search, key in (("ärzte", "p0"), ("ÉCOLE", "p1"), ("ёлка", "p2")):
        wanted = queries.ItemFilter(search=search)
        assert [row["key"] for row in queries.side_by_side(tracker.db, {"clean": number}, wanted)] == [key]


def test_flips_pair_the_same_prompts_only(tracker: Tracker) -> None:
    run = tracker.start_run("eval")
    for name, passed in (("a", (True, True, False)), ("b", (True, False, True))):
        tracker.record_checkpoint(name, path="/c", kind="full", sha256="00")
        record_score(tracker, run.id, name, score("ifeval", 0.5, *passed))
    flips = flips_between(tracker.db, "a", "b", "ifeval")
    assert [(row["key"], row["passed_a"], row["passed_b"]) for row in flips] == [
        ("p1", True, False),
        ("p2", False, True),
    ]
    assert (flips[0]["response_a"], flips[0]["response_b"]) == ("answer 1 True", "answer 1 False")
    assert [row["key"] for row in flips_between(tracker.db, "a", "b", "ifeval", after="p1")] == ["p2"]
    (suite,) = queries.paired_suites(tracker.db, "a", "b")
    found = [(row["passed_a"], row["passed_b"]) for row in suite["pairs"]]
    assert found == [(True, True), (True, False), (False, True)]
    other = score("ifeval", 0.5) | {
        "items": [item | {"prompt": "another"} for item in items(True, True, True)]
    }
    record_score(
        tracker, tracker.start_run("eval").id, "b", other
    )  # newer, but other prompts under the same keys
    assert flips_between(tracker.db, "a", "b", "ifeval") == flips
    with pytest.raises(NotFound, match="never scored on the same knowledge prompts"):
        queries.compared_scores(tracker.db, "a", "b", "knowledge")


# Curves ----------------------------------------------------------------------------------------------------


def test_a_short_curve_comes_whole(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    for step, value in ((-2, 1.0), (0, math.nan), (5, 3.0)):
        record_metrics(tracker, run.id, step, {"loss": value})
    rows = curves.metric_series(tracker.db, run.id, "loss")
    assert [(row["step"], row["value"], row["special"]) for row in rows] == [
        (-2, 1.0, None),
        (0, None, "nan"),
        (5, 3.0, None),
    ]
    assert (
        curves.metric_series(tracker.db, run.id, "other")
        == curves.metric_series(tracker.db, "other", "loss")
        == []
    )


def test_a_long_curve_is_thinned_without_losing_its_peaks(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    values = {step: float(step % 10) for step in range(1, 1001)} | {500: 1e6, 777: math.inf}
    points = [Point.of(run.id, "loss", step, value) for step, value in values.items()]
    tracker.db.write(lambda session: store(session, points))
    rows = curves.metric_series(tracker.db, run.id, "loss", points=100)
    assert len(rows) == 100 and sum(row["n"] for row in rows) == 1000
    assert rows[0] | {"at": 0} == {
        "step": 1,
        "last_step": 10,
        "value": 4.5,
        "low": 0.0,
        "high": 9.0,
        "special": None,
        "at": 0,
        "n": 10,
    }
    assert max(row["high"] for row in rows) == 1e6
    assert [(row["step"], row["special"]) for row in rows if row["special"]] == [(771, "inf")]


def test_metrics_step_by_step(tracker: Tracker) -> None:
    run = tracker.start_run("distill")
    for step, kl in ((9, 0.5), (0, 2.0), (3, math.nan)):
        record_metrics(tracker, run.id, step, {"loss": step, "kl": kl, "lr": 1.0})
    found = curves.metrics_by_step(tracker.db, run.id, ["loss", "kl"])
    assert list(found.items()) == [
        (0, {"loss": 0.0, "kl": 2.0}),
        (3, {"loss": 3.0}),
        (9, {"loss": 9.0, "kl": 0.5}),
    ]
    assert list(curves.metrics_by_step(tracker.db, run.id, ["kl"], before=9)) == [0]
    assert curves.metrics_by_step(tracker.db, run.id, ["other"]) == {}


def test_names_and_latest_values(tracker: Tracker) -> None:
    run, other = tracker.start_run("distill"), tracker.start_run("distill")
    for step in range(3):
        record_metrics(tracker, run.id, step, {"loss": step, "kl": 1.0, "grad_norm": 2.0})
    record_metrics(tracker, run.id, 9, {"kl": math.inf})
    record_metrics(tracker, other.id, 1, {"alien": 1.0})
    assert curves.metric_names(tracker.db, run.id) == ["grad_norm", "kl", "loss"]
    latest = {
        row["name"]: (row["step"], row["value"], row["special"])
        for row in curves.latest_metrics(tracker.db, run.id)
    }
    assert latest == {"grad_norm": (2, 2.0, None), "kl": (9, None, "inf"), "loss": (2, 2.0, None)}
    assert curves.metric_names(tracker.db, "nobody") == []
    assert curves.latest_metrics(tracker.db, "nobody") == []


def test_curves_are_found_by_their_key(tmp_path: Path) -> None:
    """What keeps a page fast at ten million points: no query may read the table from end to end."""
    tracker, plans = Tracker(tmp_path / "recover.db"), []
    run = tracker.start_run("distill")
    record_metrics(tracker, run.id, 1, {"loss": 1.0})
    with tracker.db.engine.connect() as connection:
        raw = present(connection.connection.driver_connection)
        asked: list[str] = []
        raw.set_trace_callback(asked.append)
        connection.connection.close()
    curves.metric_series(tracker.db, run.id, "loss")
    curves.metric_names(tracker.db, run.id)
    curves.latest_metrics(tracker.db, run.id)
    raw.set_trace_callback(None)
    for sql in (
        sql for sql in asked if "metrics" in sql and sql.lstrip().upper().startswith(("SELECT", "WITH"))
    ):
        plans += [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}") if "metrics" in row[3].lower()]
    assert len(plans) >= 6
    assert [plan for plan in plans if not plan.startswith("SEARCH")] == []


def test_the_documents_of_a_run_are_counted_in_whole_numbers(tracker: Tracker) -> None:
    run = tracker.start_run("midtrain").id
    read = [{"path": f"{i}.md", "status": "read", "tokens": 2**31} for i in range(3)]
    tracker.record_documents(run, [*read, {"path": "x.bin", "status": "skipped", "reason": "odd"}])
    totals = queries.document_totals(tracker.db, run)
    assert totals == {
        "read": {"status": "read", "n": 3, "tokens": 3 * 2**31},
        "skipped": {"status": "skipped", "n": 1, "tokens": None},
    }
    assert type(totals["read"]["tokens"]) is int


# Knowledge by documents -----------------------------------------------------------------------------------


def asked(tracker: Tracker, metric: str, *, by_its_cycle: bool = True, **kinds: float) -> None:
    """A score of the recovered model's, as its cycle or `recover eval` records it: kinds in its details."""
    run = tracker.start_run("eval", parent=queries.cycle(tracker.db, 1)["run"] if by_its_cycle else None)
    by_kind = {kind: {"value": value, "n": 16} for kind, value in kinds.items()}
    found = score("knowledge", sum(kinds.values()) / len(kinds), metric=metric)
    record_score(tracker, run.id, "rec1", found | {"details": {"by_kind": by_kind}})


def test_what_is_scored_beside_the_questions_is_not_the_headline(tracker: Tracker) -> None:
    record_cycle(tracker, {})
    asked(tracker, "lenient", direct=0.9, heldout=0.7)
    asked(tracker, "cloze", cloze=0.5)
    asked(tracker, "open_book", direct=1.0, heldout=1.0)
    asked(tracker, "reverse", reverse=0.0)
    asked(tracker, "indirect", indirect=0.1)
    (row,) = overview.knowledge(tracker.db)
    assert row["value"] == pytest.approx(0.8)
    assert {kind: one["value"] for kind, one in row["kinds"].items()} == {
        "direct": 0.9,
        "heldout": 0.7,
        "cloze": 0.5,
        "reverse": 0.0,
        "indirect": 0.1,
    }
    asked(tracker, "lenient", direct=0.8, heldout=0.6)
    asked(tracker, "reverse", reverse=0.2)
    (row,) = overview.knowledge(tracker.db)
    assert row["value"] == pytest.approx(0.7) and row["kinds"]["direct"]["value"] == 0.8
    assert row["kinds"]["reverse"]["value"] == 0.2
    asked(tracker, "lenient", by_its_cycle=False, direct=0.1, multihop=0.0)
    assert overview.knowledge(tracker.db) == [row]  # what was asked later is no score of the cycle's


# Scores under the same conditions ---------------------------------------------------------------------------


def measured(tracker: Tracker, status: str, conditions: str = "same", recorded_in: str | None = None) -> str:
    """An evaluation with two scores of a suite; returns its run."""
    run = tracker.start_run("eval")
    details = {queries.CONDITIONS: conditions} | ({queries.RECORDED_IN: recorded_in} if recorded_in else {})
    rows = [
        score("knowledge", 0.5, True, False, metric=metric) | {"details": details}
        for metric in ("lenient", "cloze")
    ]
    tracker.record_scores(run.id, "clean0", rows)
    if status == "done":
        tracker.finish_run(run.id, {})
    if status == "failed":
        tracker.fail_run(run.id, "out of luck")
    return run.id


def under(tracker: Tracker, run_id: str, conditions: str = "same", others: bool = True) -> list[str]:
    rows = queries.scores_under(tracker.db, "clean0", "knowledge", conditions, run_id=run_id, others=others)
    assert [row["metric"] for row in rows] in ([], ["lenient", "cloze"])
    return sorted({row["run_id"] for row in rows})


def test_scores_under_the_same_conditions_are_of_the_run_itself_or_the_newest_finished_one(
    tracker: Tracker,
) -> None:
    tracker.record_checkpoint("clean0", path="/c", kind="full", sha256="c")
    now = tracker.start_run("eval").id
    assert under(tracker, now) == []
    measured(tracker, "failed")
    measured(tracker, "running")
    assert under(tracker, now) == []
    first = measured(tracker, "done")
    measured(tracker, "done", recorded_in=first)
    measured(tracker, "done", conditions="other")
    measured(tracker.new_project("notes", "host:/notes/.recover"), "done")
    assert under(tracker, now) == [first]
    second = measured(tracker, "done")
    assert under(tracker, now) == [second]
    assert under(tracker, now, others=False) == under(tracker, now, "unknown") == []
    interrupted = measured(tracker, "failed")
    assert under(tracker, interrupted) == under(tracker, interrupted, others=False) == [interrupted]
    for checkpoint, suite in (("clean1", "knowledge"), ("clean0", "ifeval")):
        assert queries.scores_under(tracker.db, checkpoint, suite, "same", run_id=now, others=True) == []


def test_scores_name_the_cycle_that_measured_them(tracker: Tracker) -> None:
    number = record_cycle(tracker, CONTRACT)
    [run] = queries.runs(tracker.db, parent=queries.cycle(tracker.db, number)["run"], limit=1)
    details = {"details": {queries.CONDITIONS: "same"}}
    record_score(tracker, run["id"], "clean0", score("ifeval", 0.9) | details)
    [found] = queries.scores_under(tracker.db, "clean0", "ifeval", "same", run_id=run["id"], others=False)
    assert (found["cycle"], found["value"]) == (number, 0.9)


def test_the_page_about_json_names_every_key_of_a_cycle(tracker: Tracker) -> None:
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    record_cycle(tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    record_cycle(tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    missing = {key for key in queries.cycle(tracker.db, 2) if f"`{key}`" not in page}
    assert missing == set()
