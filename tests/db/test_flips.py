"""The flips ledger and `recover compare`: what changed between checkpoints, and what may be said of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from db.errors import NotFound
from db.reads import queries
from db.writes.tracker import Tracker
from evals import statistics
from pipelines.cli.measure import flips_text
from pipelines.compare import compare, compare_text
from pipelines.flips import flips
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.databases import flips_between, items, record_cycle, record_score, score


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(tmp_path) as workspace:
        yield workspace


def scored(
    tracker: Tracker, name: str, passed: list[bool], suite: str = "ifeval", mode: object = None
) -> None:
    tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
    run = tracker.start_run("eval")
    row = score(suite, float(np.mean(passed)), *passed, n=len(passed))
    row["details"] = {"mode": mode}
    record_score(tracker, run.id, name, row)


# The ledger ------------------------------------------------------------------------------------------------


def test_a_cycle_counts_what_was_lost_and_what_came_back(ws: Workspace) -> None:
    """record_cycle gives every stage two items: p0 always passes, p1 fails at the midtrained stage alone."""
    for _ in range(2):
        record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    rows = queries.ledger(ws.tracker.db, cycle=2)
    assert {(r["before"], r["after"]): (r["n"], r["gained"], r["lost"]) for r in rows} == {
        ("clean", "midtrained"): (2, 0, 1),
        ("midtrained", "recovered"): (2, 1, 0),
        ("clean", "recovered"): (2, 0, 0),
        ("previous", "recovered"): (2, 0, 0),
    }
    assert [row["cycle"] for row in queries.ledger(ws.tracker.db)] == [1] * 3 + [2] * 4
    flipped = queries.ledger_items(ws.tracker.db, cycle=2)
    assert [(r["before"], r["after"], r["key"], r["direction"]) for r in flipped] == [
        ("clean", "midtrained", "p1", "lost"),
        ("midtrained", "recovered", "p1", "gained"),
    ]
    assert (flipped[0]["response_a"], flipped[0]["response_b"]) == ("answer 1 True", "answer 1 False")
    assert queries.ledger_items(ws.tracker.db, cycle=2, limit=1) == flipped[:1]
    assert queries.ledger(ws.tracker.db, suite="knowledge") == []


def test_other_prompts_in_the_next_cycle_are_never_paired_with_it(ws: Workspace) -> None:
    record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "recovered": 1.0}})
    run = ws.tracker.start_run("cycle")
    ws.tracker.record_checkpoint("later", path="/c", kind="full", sha256="1")
    ws.tracker.record_cycle(run.id, recovered_id="later")
    other = score("ifeval", 0.0) | {"items": [row | {"prompt": "another"} for row in items(False, False)]}
    record_score(ws.tracker, ws.tracker.start_run("eval", parent=run.id).id, "later", other)
    assert {row["before"] for row in queries.ledger(ws.tracker.db)} == {"clean"}


def test_a_cycle_is_paired_with_the_one_before_on_the_earlier_documents_that_both_were_asked_about(
    ws: Workspace,
) -> None:
    """A later cycle asks fewer questions about an earlier one's documents; one of these in other words."""
    for count, knows in ((4, True), (3, False)):
        run, name = ws.tracker.start_run("cycle"), f"asked{count}"
        ws.tracker.record_checkpoint(name, path="/c", kind="full", sha256=name)
        ws.tracker.record_cycle(run.id, recovered_id=name)
        found = score("knowledge:1", float(knows), *[knows] * count, n=count)
        found["items"][0]["prompt"] = f"in the words of {name}"
        record_score(ws.tracker, ws.tracker.start_run("eval", parent=run.id).id, name, found)
    (row,) = queries.ledger(ws.tracker.db)
    counts = row["n"], row["gained"], row["lost"]
    assert (row["cycle"], row["suite"], row["before"], counts) == (2, "knowledge:1", "previous", (2, 0, 2))
    flipped = queries.ledger_items(ws.tracker.db, cycle=2)
    assert [(row["key"], row["direction"]) for row in flipped] == [("p1", "lost"), ("p2", "lost")]


def test_flips_of_everything_a_cycle_or_two_checkpoints(ws: Workspace) -> None:
    record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    assert flips(ws, [], None, None, 20)["flips"] == []
    assert len(flips(ws, ["cycle:1"], None, "lost", 20)["flips"]) == 1
    between = flips(ws, ["clean0", "mid1"], "ifeval", None, 20)
    assert [(row["gained"], row["lost"]) for row in between["counts"]] == [(0, 1)]
    assert [(row["key"], row["direction"]) for row in between["flips"]] == [("p1", "lost")]
    for wrong in (["cycle:x"], ["clean0"], ["clean0", "mid1", "rec1"]):
        with pytest.raises(InputError):
            flips(ws, wrong, None, None, 20)


def test_flips_of_a_suite_that_was_not_asked_name_those_that_were(ws: Workspace) -> None:
    assert flips(ws, [], "nope", None, 20)["counts"] == []  # as long as nothing was asked
    record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    for references in ([], ["cycle:1"]):
        with pytest.raises(InputError, match=r"no flips of a suite 'nope': choose one of ifeval$"):
            flips(ws, references, "nope", None, 20)
    with pytest.raises(InputError, match="clean0 and mid1 were never scored on the same nope prompts"):
        flips(ws, ["clean0", "mid1"], "nope", None, 20)


def asked_of_changed_facts(tracker: Tracker, name: str, answered: list[str]) -> None:
    tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
    found = score("updates", answered.count("new") / len(answered), *[one == "new" for one in answered])
    for row, one in zip(found["items"], answered, strict=True):
        row |= {"response": one, "detail": {"answered": one}}
    record_score(tracker, tracker.start_run("eval").id, name, found | {"n": len(answered)})


def test_a_flip_back_to_the_old_answer_is_told_from_other_losses(ws: Workspace) -> None:
    asked_of_changed_facts(ws.tracker, "a", ["new", "new", "new", "old", "old"])
    asked_of_changed_facts(ws.tracker, "b", ["new", "old", "neither", "new", "neither"])
    found = flips(ws, ["a", "b"], None, None, 20)
    (counts,) = found["counts"]
    assert (counts["gained"], counts["lost"], counts["stale"]) == (1, 2, 1)
    ways = [(row["key"], row["answered_a"], row["answered_b"]) for row in found["flips"]]
    assert ways == [("p1", "new", "old"), ("p2", "new", "neither"), ("p3", "old", "new")]
    text = flips_text(found)
    assert "stale" in text.splitlines()[0] and "answered_b" in text


def test_flips_of_other_suites_have_no_old_answers(ws: Workspace) -> None:
    record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.5, "recovered": 1.0}})
    found = flips(ws, ["cycle:1"], None, None, 20)
    assert [row["stale"] for row in found["counts"]] == [0] * len(found["counts"])
    assert {row["answered_b"] for row in found["flips"]} == {None}
    assert "stale" not in flips_text(found)


def test_comparing_changed_facts_shows_both_stale_rates(ws: Workspace) -> None:
    asked_of_changed_facts(ws.tracker, "a", ["new"] * 30 + ["old"] * 10)
    asked_of_changed_facts(ws.tracker, "b", ["new"] * 10 + ["old"] * 30)
    found = compare(ws, "a", "b")
    assert (found["stale_a"], found["stale_b"]) == (0.25, 0.75)
    assert found["words"] == "worse"
    assert found["non_inferior"]["margin"] == 0.03
    assert "stale        a 0.250, b 0.750" in compare_text(found)


def test_scores_of_another_project_are_not_this_projects_flips(ws: Workspace) -> None:
    """Two homes may hold the same models, and measure them on their own."""
    for name in ("a", "b"):
        scored(ws.tracker, name, [True, True])
    other = ws.tracker.new_project("notes", "host:/notes/.recover")
    scored(other, "b", [True, False])
    assert flips_between(ws.tracker.db, "a", "b", "ifeval") == []
    with pytest.raises(NotFound, match="never scored on the same ifeval prompts"):
        queries.compared_scores(other.db, "a", "b", "ifeval")
    scored(other, "a", [True, True])
    assert [row["key"] for row in flips_between(other.db, "a", "b", "ifeval")] == ["p1"]


# Comparing -------------------------------------------------------------------------------------------------


def test_the_same_answers_are_not_distinguishable(ws: Workspace) -> None:
    passed = (np.arange(300) % 5 > 0).tolist()
    scored(ws.tracker, "a", passed)
    scored(ws.tracker, "b", passed)
    for other in ("a", "b"):
        found = compare(ws, "a", other)
        assert (found["verdict"], found["words"]) == ("not distinguishable", "not distinguishable")
        assert (found["gained"], found["lost"], found["difference"]) == (0, 0, 0)
        assert "not distinguishable" in compare_text(found)


def test_checkpoints_that_were_asked_otherwise_are_not_compared_without_a_word(ws: Workspace) -> None:
    modes: dict[str, object] = {
        "a": {"max_new_tokens": 256, "template_args": {}},
        "longer": {"max_new_tokens": 512, "template_args": {}},
        "thinking": {"max_new_tokens": 256, "template_args": {"enable_thinking": True}},
        "alike": {"max_new_tokens": 256, "template_args": {}},
        "older": None,
        "warm": {"temperature": 1.0, "stop_loops": False},
        "cool": {"temperature": 0.6, "stop_loops": False},
        "cut": {"temperature": 1.0, "stop_loops": True},
    }
    for name, mode in modes.items():
        scored(ws.tracker, name, [True, False] * 20, mode=mode)
    said = {name: compare_text(compare(ws, "a", name)) for name in modes}
    assert "not asked alike: most new tokens 256 for a, 512 for b" in said["longer"]
    assert "not asked alike: template arguments {} for a, {'enable_thinking': True} for b" in said["thinking"]
    for name in ("alike", "older", "warm"):
        assert "alike:" not in said[name]
    warm = {name: compare_text(compare(ws, "warm", name)) for name in modes}
    assert "not asked alike: temperature 1.0 for a, 0.6 for b" in warm["cool"]
    assert "not asked alike: ending loops False for a, True for b" in warm["cut"]
    for name in ("a", "older", "warm"):
        assert "alike:" not in warm[name]


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_the_settings_of_a_comparison_are_those_of_the_later_evaluation(
    ws: Workspace, names: tuple[str, str]
) -> None:
    for name in ("a", "b"):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        run = ws.tracker.start_run("eval", config={"settings": {"asked": name}})
        record_score(ws.tracker, run.id, name, score("ifeval", 1.0, True, n=1))
    (suite,) = queries.paired_suites(ws.tracker.db, *names)
    assert suite["settings"] == {"asked": "b"}


def test_what_was_noted_of_a_score_is_said_of_the_comparison(ws: Workspace) -> None:
    noted = {"a": ["25 prompts left out"], "b": ["25 prompts left out", "3 checks ended in an error"]}
    for name, notes in noted.items():
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        row = score("ifbench", 0.5, True, False, n=2) | {"details": {"notes": notes}}
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)
    found = compare(ws, "a", "b")
    assert found["notes"] == noted["b"]
    text = compare_text(found)
    assert (
        text.count("  note: 25 prompts left out\n") == text.count("  note: 3 checks ended in an error") == 1
    )


@pytest.mark.parametrize(("tried", "asked", "warned"), [(1, 40, False), (2, 40, True), (2, 38, False)])
def test_a_checkpoint_that_these_questions_chose_is_not_compared_without_a_word(
    ws: Workspace, tried: int, asked: int, warned: bool
) -> None:
    """Of a model that other questions chose, these are as good as any."""
    for name in ("a", "b"):
        scored(ws.tracker, name, [True, False] * 20)
    choice = ws.tracker.start_run("choose")
    candidate = ws.tracker.start_run("eval", parent=choice.id, key="asked:b")
    record_score(ws.tracker, candidate.id, "b", score("ifeval", 0.5, *[True, False] * (asked // 2), n=asked))
    ws.tracker.finish_run(choice.id, {"checkpoint": "b", "tried": [{"name": "none"}] * tried})
    found = compare(ws, "a", "b")
    assert found["chosen"] == (["b"] if warned else [])
    assert ("b was chosen by half of its cycle's questions" in compare_text(found)) is warned


def test_a_question_whose_accepted_answers_changed_is_not_paired(ws: Workspace) -> None:
    for name, accepted in (("a", ["1612"]), ("b", ["1612", "in 1612"])):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        row = score("knowledge", 0.5, name == "b", True, n=2)
        row["items"][0]["detail"] = {"answers": accepted}
        row["items"][1]["detail"] = {"answers": ["Delft"]}
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)
    found = compare(ws, "a", "b")
    assert (found["n"], found["difference"]) == (1, 0)
    assert flips_between(ws.tracker.db, "a", "b", "knowledge") == []


def test_scores_between_0_and_1_are_compared_by_all_that_they_lost(ws: Workspace) -> None:
    """Each of 40 answers falls from 0.9 to 0.8: none falls below the half."""
    for name, value in (("a", 0.9), ("b", 0.8)):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        row = score("my_task", value, *[True] * 40, n=40)
        for item in row["items"]:
            item["detail"] = {"task": "my_task", "value": value}
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)
    found = compare(ws, "a", "b")
    assert [found[key] for key in ("a_score", "b_score", "difference")] == pytest.approx([0.9, 0.8, -0.1])
    assert (found["gained"], found["lost"]) == (0, 40)


LONG: dict[str, object] = {
    "instructions": ["length_constraints:number_words"],
    "arguments": [{"num_words": 300}],
}


def judged_by(
    ws: Workspace, suite: str, before: dict[str, object], after: dict[str, object], other: dict[str, object]
) -> None:
    """Record an item that a fails and b passes, each judged by its own, beside one that both pass."""
    for name, detail in (("a", before), ("b", after)):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        row = score(suite, 0.5, name == "b", True, n=2)
        row["items"][0]["detail"], row["items"][1]["detail"] = detail, other
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)


@pytest.mark.parametrize(
    ("change", "paired"),
    [
        ({}, 2),
        ({"arguments": [{"num_words": 3}]}, 1),
        ({"instructions": ["length_constraints:number_sentences"]}, 1),
    ],
)
def test_a_prompt_whose_instructions_or_arguments_changed_is_not_paired(
    ws: Workspace, change: dict[str, object], paired: int
) -> None:
    judged_by(ws, "ifeval", LONG, LONG | change, LONG)
    assert compare(ws, "a", "b")["n"] == paired
    assert len(flips_between(ws.tracker.db, "a", "b", "ifeval")) == paired - 1


GOLD: dict[str, object] = {"value": 1.0, "target": "She has 12 + 6 = 18.\n#### 18", "judged_by": "3f"}


@pytest.mark.parametrize(
    ("before", "after", "paired"),
    [
        (GOLD, GOLD, 2),
        (GOLD, GOLD | {"target": "#### 19"}, 1),
        (GOLD, GOLD | {"judged_by": "4a"}, 1),
        ({"target": GOLD["target"]}, GOLD, 2),
        ({"target": "#### 19"}, GOLD, 1),
    ],
    ids=["same", "target", "end of a long target", "older score", "target of an older score"],
)
def test_a_row_of_a_task_whose_target_changed_is_not_paired(
    ws: Workspace, before: dict[str, object], after: dict[str, object], paired: int
) -> None:
    judged_by(ws, "gsm8k", before, after, GOLD)
    assert compare(ws, "a", "b")["n"] == paired
    assert len(flips_between(ws.tracker.db, "a", "b", "gsm8k")) == paired - 1


def test_a_score_recorded_without_arguments_is_paired_all_the_same(ws: Workspace) -> None:
    for name, detail in (("a", {"instructions": LONG["instructions"]}), ("b", LONG)):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        row = score("ifeval", 1.0, True, n=1)
        row["items"][0]["detail"] = detail
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)
    assert compare(ws, "a", "b")["n"] == 1


def test_a_suite_whose_accepted_answers_all_changed_is_compared_by_none(ws: Workspace) -> None:
    for name, accepted in (("a", ["1612"]), ("b", ["1612", "in 1612"])):
        scored(ws.tracker, name, [True, False])
        row = score("knowledge", 1.0, True, n=1)
        row["items"][0]["detail"] = {"answers": accepted}
        record_score(ws.tracker, ws.tracker.start_run("eval").id, name, row)
    assert [row["suite"] for row in compare(ws, "a", "b")["suites"]] == ["ifeval"]
    with pytest.raises(InputError, match="never scored on the same knowledge prompts"):
        compare(ws, "a", "b", "knowledge")


def test_damage_beyond_the_detectable_is_named_on_the_right_suite(ws: Workspace) -> None:
    rng = np.random.default_rng(0)
    before, kept = rng.random(400) < 0.9, rng.random(400) < 0.5
    scored(ws.tracker, "a", before.tolist())
    scored(ws.tracker, "a", kept.tolist(), "knowledge")
    damaged = before & (rng.random(400) > 0.2)
    scored(ws.tracker, "b", damaged.tolist())
    scored(ws.tracker, "b", kept.tolist(), "knowledge")
    found = compare(ws, "a", "b")
    assert found["verdict"] == "b is worse on ifeval; not distinguishable on knowledge"
    low, high = found["interval"]
    assert found["difference"] == pytest.approx(damaged.mean() - before.mean())
    assert low < found["difference"] < high < 0
    assert found["non_inferior"]["outcome"] == "failed"
    assert compare(ws, "b", "a", "ifeval")["words"] == "better"


def test_scores_beside_a_suites_headline_go_by_their_own_names(ws: Workspace) -> None:
    for name in ("a", "b"):
        scored(ws.tracker, name, [True] * 40, "knowledge")
        run = ws.tracker.start_run("eval")
        for metric in ("cloze", "open_book"):
            passed = [name == "b"] * 40
            beside = score("knowledge", float(name == "b"), *passed, n=40, metric=metric)
            other = [row | {"prompt": f"{metric} {row['prompt']}"} for row in beside["items"]]
            record_score(ws.tracker, run.id, name, beside | {"items": other})
    said = compare(ws, "a", "b")["verdict"]
    assert said == (
        "b is better on knowledge (cloze), better on knowledge (open book); not distinguishable on knowledge"
    )
    listed = flips_text(flips(ws, ["a", "b"], None, None, 0))
    assert "knowledge (open book)" in listed and not re.search("lenient|metric|_", listed)


def test_flips_beside_a_suites_headline_are_listed_as_they_are_counted(ws: Workspace) -> None:
    for name in ("a", "b"):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)
        run = ws.tracker.start_run("eval")
        for metric, passed in (("lenient", name == "a"), ("cloze", True)):
            found = score("knowledge", 0.5, passed, name == "a", n=2, metric=metric)
            record_score(ws.tracker, run.id, name, found)
    found = flips(ws, ["a", "b"], "knowledge", "lost", 20)
    assert [(row["metric"], row["lost"]) for row in found["counts"]] == [("lenient", 2), ("cloze", 1)]
    assert [(row["suite"], row["metric"], row["key"]) for row in found["flips"]] == [
        ("knowledge", "lenient", "p0"),
        ("knowledge", "lenient", "p1"),
        ("knowledge", "cloze", "p1"),
    ]
    assert flips_text(found).count("knowledge (cloze)") == 2  # counted, and listed
    assert len(flips(ws, ["a", "b"], None, None, 2)["flips"]) == 2


def test_many_suites_do_not_make_luck_a_finding(ws: Workspace) -> None:
    """6 losses against none are p = 0.031: a finding alone, not among five comparisons."""
    before, after = [True] * 50, [False] * 6 + [True] * 44
    for suite in ("ifeval", "s1", "s2", "s3", "s4"):
        scored(ws.tracker, "a", before, suite)
        scored(ws.tracker, "b", after if suite == "ifeval" else before, suite)
    assert compare(ws, "a", "b", "ifeval")["words"] == "worse"
    found = compare(ws, "a", "b")
    assert found["verdict"] == "not distinguishable"
    assert compare_text(found).count("not distinguishable after Holm's correction for all suites") == 1
    (row,) = [row for row in found["suites"] if row["suite"] == "ifeval"]
    assert (
        row["detectable"] == statistics.detectable(50, 6 / 50, 0.05 / 5) > statistics.detectable(50, 6 / 50)
    )


def test_a_handful_of_prompts_is_said_to_show_nothing(ws: Workspace) -> None:
    for name in ("a", "b"):
        scored(ws.tracker, name, [True] * 5)
    said = compare_text(compare(ws, "a", "b"))
    assert "not distinguishable; 5 prompts are too few to show any difference" in said


def test_a_later_cycles_fewer_questions_are_compared_on_what_both_asked(ws: Workspace) -> None:
    scored(ws.tracker, "third", [True] * 30 + [False] * 10, "knowledge:1")
    scored(ws.tracker, "fourth", [False] * 12 + [True] * 8, "knowledge:1")
    (row,) = compare(ws, "third", "fourth", "knowledge:1")["suites"]
    assert (row["n"], row["a_score"], row["b_score"]) == (20, 1.0, 0.4)
    (counts,) = flips(ws, ["third", "fourth"], "knowledge:1", None, 0)["counts"]
    values = counts["value_a"], counts["value_b"]
    assert (counts["n"], counts["gained"], counts["lost"], *values) == (20, 0, 12, 1.0, 0.4)
    with pytest.raises(InputError, match="knowledge:2 prompts: later cycles ask these"):
        compare(ws, "third", "fourth", "knowledge:2")


def test_other_prompts_under_the_same_keys_of_earlier_documents_are_not_paired(ws: Workspace) -> None:
    scored(ws.tracker, "third", [True] * 3, "knowledge:1")
    scored(ws.tracker, "fourth", [True], "knowledge:1")
    row = score("knowledge:1", 1.0, True, True, n=2)
    row["items"][0]["prompt"] = "another"
    record_score(ws.tracker, ws.tracker.start_run("eval").id, "fourth", row)
    assert compare(ws, "third", "fourth", "knowledge:1")["n"] == 1


def test_never_scored_together_says_what_to_run(ws: Workspace) -> None:
    scored(ws.tracker, "a", [True])
    scored(ws.tracker, "b", [True], "knowledge")
    with pytest.raises(InputError, match="never scored on the same prompts: run `recover eval`"):
        compare(ws, "a", "b")


def test_suites_that_both_were_asked_with_other_prompts_are_named(ws: Workspace) -> None:
    for name, prompts in (("a", 3), ("b", 5)):
        scored(ws.tracker, name, [True] * prompts)
        scored(ws.tracker, name, [True] * 4, "knowledge")
        scored(ws.tracker, name, [True] * prompts, "knowledge:1")
    found = compare(ws, "a", "b")
    assert found["apart"] == ["ifeval"]
    causes = "prompts, their number, samples, metrics or accepted answers"
    remedy = "ask both the same file with the same --limit and --samples"
    assert f"\nnot compared, as {causes} differ: ifeval: {remedy}" in compare_text(found)
    alone = compare(ws, "a", "b", "knowledge")
    assert alone["apart"] == [] and "not compared" not in compare_text(alone)


# Power -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "gain", "loss"), [(541, 0.02, 0.055), (200, 0.0, 0.04), (90, 0.1, 0.3)])
def test_known_damage_is_found_as_often_as_stated(n: int, gain: float, loss: float) -> None:
    rng, times = np.random.default_rng(7), 4000
    drawn = rng.multinomial(n, [gain, loss, 1 - gain - loss], size=times)
    found = np.mean([statistics.mcnemar(int(b), int(c)) <= 0.05 for b, c, _ in drawn])
    assert found == pytest.approx(statistics.mcnemar_power(n, gain, loss), abs=0.025)


def test_what_541_prompts_can_show() -> None:
    """Ten in a hundred flip: 3.8 points by the normal approximation, a little more by the exact test."""
    assert 0.038 <= statistics.detectable(541, 0.10) <= 0.043
    assert statistics.detectable(541, 0.0) < 0.02  # none flipped: losses alone would show early
    assert statistics.detectable(4, 0.0) == 1.0
