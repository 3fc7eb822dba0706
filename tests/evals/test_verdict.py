"""The words of the verdict, against the right checkpoint on each axis."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.comparison import compare
from evals.power import power_warning
from evals.scores import (
    Item,
    Score,
    bound_in_points,
    deciding_in_words,
    pairs,
    prompts_for,
    prompts_in_words,
    samples_of,
)
from evals.verdict import accepted, verdict
from evals.verdict_sentences import (
    deciding_bound,
    more_questions,
    shows_loss_to_clean,
    status_in_words,
    summary,
)
from recovery.errors import InputError


def items(passed: int, n: int, fact: bool = False) -> list[Item]:
    """n items of which the first `passed` pass."""
    return [Item(f"k{i}", f"p{i}", "r", i < passed, {"fact": f"f{i // 2}"} if fact else {}) for i in range(n)]


def suites(**changes: int) -> dict[str, dict[str, list[Item]]]:
    """A clean success, with the recovered model's passes changed by suite name."""
    ifeval = {"clean": items(690, 700), "midtrained": items(70, 700)}
    known = {"clean": items(30, 400), "midtrained": items(200, 400)}
    kept = {"clean": items(400, 400), "midtrained": items(240, 400)}
    ifeval["recovered"] = items(changes.get("ifeval", 688), 700)
    known["recovered"] = items(changes.get("knowledge", 360), 400)
    kept["recovered"] = items(changes.get("retention", 388), 400)
    return {"ifeval": ifeval, "knowledge": known, "retention": kept}


def test_a_cycle_is_accepted_when_every_bound_lies_within_its_margin() -> None:
    result = verdict(suites())
    assert (result["behaviour"], result["knowledge"], result["retention"]) == ("recovered", "kept", "kept")
    assert -0.03 < result["behaviour_lower_bound"] < -2 / 700
    assert result["margin"] == 0.03
    assert accepted(result)
    axis = result["axes"]["behaviour"]
    assert (axis["gained"], axis["lost"], axis["n"], axis["reference"]) == (0, 2, 700, "clean")
    assert result["axes"]["knowledge"]["reference"] == "midtrained"
    assert result["axes"]["knowledge"]["gained"] == 160
    assert result["axes"]["retention"]["margin"] == 0.10
    assert json.loads(json.dumps(result)) == result


@pytest.mark.parametrize(
    ("changes", "axis", "words"),
    [
        ({"ifeval": 600}, "behaviour", "not recovered"),
        ({"ifeval": 650}, "behaviour", "not recovered"),
        ({"knowledge": 150}, "knowledge", "lost"),
        ({"retention": 340}, "retention", "lost"),
    ],
)
def test_one_axis_beyond_its_margin_rejects_the_cycle(changes: dict[str, int], axis: str, words: str) -> None:
    result = verdict(suites(**changes))
    assert result[axis] == words
    assert not accepted(result)


def test_a_suite_without_items_is_not_measured() -> None:
    none: dict[str, list[Item]] = {"clean": [], "midtrained": [], "recovered": []}
    result = verdict(suites() | {"knowledge": none, "updates": none, "refusals": none})
    assert {result[name] for name in ("knowledge", "updates", "refusals")} == {"not measured"}
    assert set(result["axes"]) == {"behaviour", "retention", "refusals"}
    assert not accepted(result) and accepted(result, ("ifeval", "retention"))
    one_sided = suites() | {"knowledge": none | {"recovered": items(1, 2)}}
    with pytest.raises(InputError, match="evaluate both checkpoints on the same prompts"):
        verdict(one_sided)


def test_too_few_prompts_are_underpowered_and_say_how_many_it_takes() -> None:
    few = {"ifeval": {"clean": items(50, 60), "recovered": items(50, 60)}}
    result = verdict(few)
    assert result["behaviour"] == "underpowered"
    assert result["axes"]["behaviour"]["needed_n"] > 60
    assert not accepted(result)
    assert "it would take" in summary(result)[0]


PASSED = {"behaviour": "recovered", "knowledge": "kept", "retention": "kept", "updates": "not measured"}
FEW = {"behaviour": "underpowered", "retention": "underpowered"}
BOTH = "(about 1,200 on behaviour, 900 on retention; docs/evaluation.md"


@pytest.mark.parametrize(
    ("words", "required", "needed", "too_few", "asks"),
    [
        (FEW, None, 900, True, BOTH),
        (FEW | {"updates": "underpowered"}, None, 900, True, BOTH),
        (FEW | {"knowledge": "not measured"}, ["behaviour", "retention"], 900, True, BOTH),
        (FEW | {"knowledge": "not measured"}, None, 900, False, ""),
        (FEW | {"knowledge": "lost"}, None, 900, False, ""),
        (FEW, None, None, True, ""),  # no number of questions decides
        ({"knowledge": "lost"}, None, 900, False, ""),
    ],
)
def test_a_cycle_that_too_few_questions_alone_rejected_says_so_and_how_many_to_ask(
    words: dict[str, str], required: list[str] | None, needed: int | None, too_few: bool, asks: str
) -> None:
    axes = {"behaviour": {"needed_n": 1200}, "retention": {"needed_n": needed}}
    cycle = {"status": "rejected", "verdict": PASSED | words | {"axes": axes}, "required": required}
    assert status_in_words(cycle) == ("rejected: too few questions" if too_few else "rejected")
    more = more_questions(cycle)
    assert asks in more and more.startswith("ask new questions, without training ") == bool(asks)
    assert status_in_words(cycle | {"status": "accepted"}) == "accepted"
    assert status_in_words(cycle | {"verdict": None}) == "rejected"


@pytest.mark.parametrize(
    ("difference", "upper", "few"),
    [
        (-0.119, -0.072, False),  # 12 points lost, though perhaps no more than 10
        (-0.119, 0.001, True),  # as many by the estimate, but none is shown
        (-0.1, -0.05, False),  # exactly the margin, which no number of questions would clear
        (-0.099, -0.05, True),  # a loss is shown: more questions would tell whether it is within the margin
    ],
)
def test_a_loss_that_is_shown_and_likely_not_within_the_margin_does_not_ask_for_more_questions(
    difference: float, upper: float, few: bool
) -> None:
    retention = {"difference": difference, "upper_bound": upper, "margin": 0.1, "needed_n": 4710}
    axes = {"behaviour": {"needed_n": 1200}, "retention": retention}
    cycle = {"status": "rejected", "verdict": PASSED | FEW | {"axes": axes}, "required": None}
    assert status_in_words(cycle) == ("rejected: too few questions" if few else "rejected")
    assert bool(more_questions(cycle)) == few
    said = (
        "about 4,710 prompts would decide"
        if few
        else "a loss is shown, by its estimate no smaller than the margin"
    )
    assert said in deciding_in_words(retention)


@pytest.mark.parametrize(
    ("words", "upper", "longer"),
    [
        ({"behaviour": "not recovered"}, -0.05, True),
        ({"retention": "lost"}, -0.11, True),
        ({"retention": "underpowered"}, -0.01, True),
        ({"retention": "underpowered"}, 0.01, False),
        ({"knowledge": "lost"}, -0.11, False),  # to the midtrained model: of that, recovery takes more
        ({"behaviour": "not measured"}, None, False),
    ],
)
def test_more_recovery_is_advised_where_a_loss_to_the_clean_model_is_shown(
    words: dict[str, str], upper: float | None, longer: bool
) -> None:
    row = {"difference": -0.12, "upper_bound": upper, "margin": 0.1, "needed_n": 900}
    cycle = {"status": "rejected", "verdict": PASSED | words | {"axes": dict.fromkeys(words, row)}}
    assert shows_loss_to_clean(cycle) == longer


def test_a_sentence_says_that_a_loss_is_shown_where_its_size_alone_is_open() -> None:
    before = items(214, 320)
    after = [replace(item, passed=item.passed and i >= 38) for i, item in enumerate(before)]
    found = verdict({"retention": {"clean": before, "recovered": after}})
    assert found["retention"] == "underpowered"
    (said,) = [line for line in summary(found) if line.startswith("retention")]
    assert said.endswith(
        "; a loss is shown, by its estimate no smaller than the margin: more questions would hardly clear it"
    )


def sampled(one: Item, times: int) -> list[Item]:
    """The answers to one prompt as IFEval names them."""
    return [replace(one, key=f"{one.key}#{i}", detail={"cluster": one.key}) for i in range(times)]


def test_several_answers_to_each_prompt_are_no_further_prompts() -> None:
    """Answers that are all alike say what one says: it takes as many prompts, not four times as many."""
    before, after = items(50, 60), [*items(47, 57), *items(3, 3)]
    after = [replace(item, key=f"k{i}", prompt=f"p{i}") for i, item in enumerate(after)]
    alone = verdict({"ifeval": {"clean": before, "recovered": after}})
    four = {
        stage: [answer for item in found for answer in sampled(item, 4)]
        for stage, found in (("clean", before), ("recovered", after))
    }
    found = verdict({"ifeval": four})
    assert alone["behaviour"] == found["behaviour"] == "underpowered"
    assert found["axes"]["behaviour"]["n"] == 240
    wanted = alone["axes"]["behaviour"]["needed_n"]
    assert found["axes"]["behaviour"]["needed_n"] == pytest.approx(wanted, rel=0.15)
    rows = [
        {
            "key": one.key,
            "prompt": one.prompt,
            "passed_a": one.passed,
            "passed_b": other.passed,
            "detail_b": one.detail,
        }
        for one, other in zip(four["clean"], four["recovered"], strict=True)
    ]
    (row,) = compare([{"suite": "ifeval", "metric": "prompt_level_strict_acc", "pairs": rows}])
    assert row["n"] == 240 and row["non_inferior"]["needed_n"] == found["axes"]["behaviour"]["needed_n"]


def test_it_takes_as_many_questions_where_each_was_answered_several_times() -> None:
    """The samples of a question have its key, and share the cluster of its fact with other questions."""
    both = [replace(item, detail={"fact": f"f{i // 2}"}) for i, item in enumerate(items(4, 40))]
    four = [replace(item, key=f"{item.key}#{i}") for item in both for i in range(4)]
    assert prompts_for(400, both) == 400 and prompts_for(400, four) == 100
    assert prompts_in_words(541, 1) == "541 prompts"
    assert prompts_in_words(1082, 2) == "1,082 answers (541 prompts)"
    assert samples_of([]) == 1  # a suite of which nothing is kept
    own_names = [Item(f"faq#{number}", "p", "r", True, {}) for number in (1, 2, 3, 4)]
    assert prompts_for(400, own_names) == 400
    from_zero = [Item(f"faq#{number}", f"p{number}", "r", True, {"fact": "faq"}) for number in range(4)]
    assert prompts_for(400, from_zero) == 400
    assert prompts_for(400, [answer for one in from_zero for answer in sampled(one, 4)]) == 100
    changed = [replace(item, detail=item.detail | {"answered": "neither"}) for item in four]
    needed = verdict({"updates": {"clean": changed, "midtrained": changed, "recovered": changed}})
    alone = verdict(
        {"updates": {"clean": changed[::4], "midtrained": changed[::4], "recovered": changed[::4]}}
    )
    wanted = [found["axes"]["updates"]["needed_n"] for found in (alone, needed)]
    assert wanted[0] == wanted[1]


def test_a_loss_beyond_the_margin_needs_its_own_bound_to_be_called_lost() -> None:
    """25 of 690 lost, 3.6 points: the upper bound still lies above -3 %."""
    result = verdict(suites(ifeval=665))
    assert result["axes"]["behaviour"]["difference"] < -0.03 < result["axes"]["behaviour"]["upper_bound"]
    assert result["behaviour"] == "underpowered"
    assert not accepted(result)


def test_the_sentence_of_a_refuted_claim_states_the_upper_bound() -> None:
    line = summary(verdict(suites(ifeval=600)))[0]
    assert line.startswith("behaviour: not recovered (-12.9 points against clean, upper bound -1")


def test_an_axis_without_scores_is_not_measured_and_no_pass() -> None:
    result = verdict({"ifeval": suites()["ifeval"]})
    words = {axis: result[axis] for axis in ("behaviour", "knowledge", "retention")}
    assert words == {"behaviour": "recovered", "knowledge": "not measured", "retention": "not measured"}
    assert not accepted(result)
    assert not accepted(result, required=("ifeval", "knowledge"))
    assert accepted(result, required=("ifeval",))
    assert "knowledge: not measured (no knowledge scores)" in summary(result)
    nothing = verdict({})
    assert nothing["behaviour"] == "not measured"
    assert nothing["behaviour_lower_bound"] is None
    assert nothing["margin"] == 0.03
    assert not accepted(nothing, required=())


def test_a_measured_axis_counts_even_where_it_is_not_required() -> None:
    assert not accepted(verdict(suites(retention=300)), required=("ifeval",))
    undecided = verdict(suites(retention=365))
    assert undecided["retention"] == "underpowered"
    assert not accepted(undecided, required=("ifeval",))


def test_power_warning_names_the_margin_with_its_fraction() -> None:
    (line,) = power_warning({"behaviour": 100}, {"behaviour": 0.025})
    assert "(margin 2.5 points)" in line.text


def test_power_warning_names_the_axes_that_are_too_small() -> None:
    lines = power_warning({"behaviour": 270, "retention": 200})
    assert len(lines) == 1
    assert str(lines[0]).startswith(
        "behaviour: with 270 independent questions a model that lost nothing passes in 4"
    )
    assert power_warning({"behaviour": 800}) == []


def test_power_warning_asks_for_more_where_the_level_is_stricter() -> None:
    assert power_warning({"behaviour": 800}, alpha=0.05) == []
    (line,) = power_warning({"behaviour": 800}, alpha=0.05 / 12)
    assert str(line).startswith("behaviour: with 800 independent questions")


def test_power_warning_asks_for_more_where_only_a_part_is_judged() -> None:
    """725 questions give 80 %: twice as many where half of them choose the way back."""
    (line,) = power_warning({"behaviour": 800}, judged=0.5)
    assert str(line).startswith("behaviour: with 800 independent questions, 50% of which are judged, a model")
    assert line.text.endswith("1450 questions give 80%")
    assert power_warning({"behaviour": 1600}, judged=0.5) == []


def test_power_warning_counts_one_question_and_one_fact_as_one() -> None:
    (line,) = power_warning({"behaviour": 1})
    assert str(line).startswith("behaviour: with 1 independent question a model")
    (line,) = power_warning({"knowledge": 2}, least=0.0, facts={"knowledge": 1})
    assert str(line).startswith("knowledge: with 2 questions about 1 fact one lost answer")


def test_power_warning_names_facts_that_are_too_few_for_one_lost_answer() -> None:
    """Three gaps of a sentence are worth three items where some answers flip, one where hardly any does."""
    asked = {"knowledge": 390}
    (line,) = power_warning(asked, least=0.5, facts={"knowledge": 130})
    assert str(line) == (
        "knowledge: with 390 questions about 130 facts one lost answer leaves the claim underpowered "
        "(margin 3 points); "
        "more facts bear it"
    )
    assert power_warning(asked, least=0.5, facts={"knowledge": 200}) == power_warning(asked, least=0.5) == []
    (half,) = power_warning({"knowledge": 2000}, judged=0.5, facts={"knowledge": 250})
    assert "about 250 facts, 50% of which are judged, one lost answer" in half.text


def test_power_warning_gives_the_chance_for_answers_that_change_together_and_one_by_one() -> None:
    """541 independent questions are passed in 69 %, 700 in 79 %."""
    (line,) = power_warning({"knowledge": 700}, facts={"knowledge": 541})
    assert str(line) == (
        "knowledge: with 700 questions about 541 facts a model that lost nothing passes in 69% to 79% of "
        "cases only, by how far answers about a fact change together (margin 3 points); "
        "725 questions give 80%"
    )


def test_a_pass_says_where_there_was_nothing_to_lose() -> None:
    found = verdict({"retention": {"clean": items(20, 400), "recovered": items(0, 400)}})
    assert found["retention"] == "kept"
    assert "clean passes 5.0 %, no more than the margin: nothing to lose" in " ".join(summary(found))
    assert "nothing to lose" not in " ".join(summary(verdict(suites())))
    margin, one_more = (
        verdict({"retention": {"clean": items(clean, 400), "recovered": items(0, 400)}}) for clean in (40, 41)
    )
    assert margin["axes"]["retention"]["nothing_to_lose"] == 0.1
    assert "nothing_to_lose" not in one_more["axes"]["retention"]


def test_scores_serve_as_well_as_items() -> None:
    plain = suites()
    scores = {
        suite: {
            stage: Score(suite, "m", 0.0, len(rows), (0.0, 1.0), tuple(rows))
            for stage, rows in stages.items()
        }
        for suite, stages in plain.items()
    }
    assert verdict(scores) == verdict(plain)


def test_items_are_paired_by_key_not_by_place() -> None:
    after = list(reversed(items(3, 5)))
    assert [(a.key, b.key) for a, b in pairs(after, items(2, 5))] == [(f"k{i}", f"k{i}") for i in range(5)]
    shuffled = suites()
    shuffled["ifeval"]["recovered"] = list(reversed(shuffled["ifeval"]["recovered"]))
    assert verdict(shuffled) == verdict(suites())


@pytest.mark.parametrize("after", [items(3, 4), items(3, 6), [*items(3, 4), Item("other", "p", "r", True)]])
def test_other_prompts_cannot_be_paired(after: list[Item]) -> None:
    with pytest.raises(InputError, match=r"ifeval: .* same prompts"):
        verdict({"ifeval": {"clean": items(3, 5), "recovered": after}})


def test_another_prompt_under_the_same_key_cannot_be_paired() -> None:
    easier = [Item(item.key, "Say hello.", item.response, True) for item in items(3, 5)]
    with pytest.raises(InputError, match="ifeval: item k0 has another prompt"):
        verdict({"ifeval": {"clean": items(3, 5), "recovered": easier}})


def test_questions_about_one_fact_count_as_less() -> None:
    alone = verdict({"knowledge": {"midtrained": items(300, 400), "recovered": items(296, 400)}})
    paired = {"midtrained": items(300, 400, fact=True), "recovered": items(296, 400, fact=True)}
    together = verdict({"knowledge": paired})
    assert together["axes"]["knowledge"]["design_effect"] > 1.9
    bounds = [result["axes"]["knowledge"]["lower_bound"] for result in (together, alone)]
    assert bounds[0] < bounds[1]


def test_margins_can_be_set() -> None:
    strict = verdict(suites(), margins={"behaviour": 0.001, "retention": 0.05})
    assert strict["behaviour"] == "underpowered"
    assert strict["margin"] == 0.001
    assert strict["axes"]["retention"]["margin"] == 0.05
    assert ", margin 0.1;" in summary(strict)[0] and ", margin 5;" in summary(strict)[2]
    with pytest.raises(InputError, match="'ifeval'"):
        verdict(suites(), margins={"ifeval": 0.05})


@given(st.integers(-100, 100), st.integers(0, 50), st.integers(0, 20))
def test_the_bound_that_is_shown_is_the_one_that_decides(low: float, width: float, margin: float) -> None:
    """A lower bound of -18 points is as true of a loss that was shown as of one that was not."""
    low, width, margin = low / 100, width / 100, margin / 100
    row = {"lower_bound": low, "upper_bound": low + width, "margin": margin}
    refuted = low + width < -margin
    value = 100 * (low + width if refuted else low)
    assert deciding_bound(row) == f"{'upper' if refuted else 'lower'} bound {value:+.1f}"


@pytest.mark.parametrize(
    ("bound", "margin", "shown"),
    [
        (-0.021, 0.03, "-2.1"),
        (-0.0304, 0.03, "-3.04"),
        (-0.02997, 0.03, "-2.997"),
        (-0.03, 0.03, "-3.0"),
        (0.7004, -0.7, "+70.04"),
    ],
)
def test_a_bound_close_to_its_limit_is_told_from_it(bound: float, margin: float, shown: str) -> None:
    """ "Lower bound -3.0, margin 3: underpowered" leaves a reader guessing."""
    assert bound_in_points(bound, margin) == shown


def test_the_summary_has_a_sentence_for_each_axis() -> None:
    line = summary(verdict(suites()))[0]
    assert line.startswith("behaviour: recovered (-0.3 points against clean, lower bound -")
    assert "0 gained, 2 lost of 700" in line
