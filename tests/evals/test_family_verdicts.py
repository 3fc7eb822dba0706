"""The verdict of families: each against the clean model, with bounds for all of them at once."""

from __future__ import annotations

import re
from typing import Any

import pytest

from evals import comparison
from evals.families import calibration_error, measures, refusals, suite
from evals.families.table import FAMILIES
from evals.power import power_warning
from evals.scores import Item
from evals.statistics import items_to_pass
from evals.verdict import accepted, verdict
from evals.verdict_sentences import summary
from tests.support.present import present


def items(passed: int, n: int, kind: str = "flat") -> list[Item]:
    return [Item(f"{kind}{i}", f"{kind} {i}", "r", i < passed, {"kind": kind}) for i in range(n)]


def family(clean: int, recovered: int, n: int = 500) -> dict[str, list[Item]]:
    return {"clean": items(clean, n), "recovered": items(recovered, n)}


IFEVAL = {"clean": items(650, 700), "recovered": items(650, 700)}


def test_a_family_is_an_axis_where_it_is_asked_for_only() -> None:
    assert "json" not in verdict({"ifeval": IFEVAL})
    found = verdict({"ifeval": IFEVAL, "json": family(450, 450)})
    assert found["json"] == "kept" and found["behaviour"] == "recovered"
    assert accepted(found, ("behaviour", "json"))
    lost = verdict({"ifeval": IFEVAL, "json": family(450, 350)})
    assert lost["json"] == "lost" and not accepted(lost, ("behaviour",))
    assert any(
        line.startswith("json: lost (-20.0 points against clean, upper bound -1") for line in summary(lost)
    )


def test_bounds_hold_for_all_families_at_once() -> None:
    """15 of 500 lost are shown to be within 5 points at 5 %, not at 1 %: among five families it is open."""
    alone = verdict({"json": family(450, 435)})
    names = ("json", "tools", "multi-turn")
    among = verdict({name: family(450, 435) for name in names} | {"refusals": {}, "calibration": {}})
    assert alone["json"] == "kept" and alone["axes"]["json"]["alpha"] == 0.05
    assert among["json"] == "underpowered" and among["axes"]["json"]["alpha"] == pytest.approx(0.01)
    assert among["axes"]["json"]["lower_bound"] < alone["axes"]["json"]["lower_bound"]
    assert among["axes"]["json"]["families"] == 5
    assert any("bounds for 5 families at once" in line for line in summary(among))
    assert (
        verdict({"ifeval": IFEVAL})["axes"]["behaviour"]
        == verdict({"ifeval": IFEVAL, "json": family(450, 435)})["axes"]["behaviour"]
    )


def test_items_that_go_together_count_once_in_claims_and_comparisons() -> None:
    """Five questions about each of 100 schemas, which flip together: three lost schemas are three items."""

    def judged(passed: int, *, together: bool) -> list[Item]:
        return [
            Item(
                f"k{i}",
                f"p{i}",
                "r",
                i < passed,
                {"kind": "flat", "cluster": f"c{i // 5 if together else i}"},
            )
            for i in range(500)
        ]

    claims = {}
    for together in (False, True):
        both = {"clean": judged(500, together=together), "recovered": judged(485, together=together)}
        claims[together] = verdict({"json": both})["axes"]["json"]
        compared = measures.measure_of(FAMILIES["json"]).compare(
            [*zip(both["recovered"], both["clean"], strict=True)], 0.05, 0.05
        )
        assert compared["words"] == ("not distinguishable" if together else "worse")
    alone, five = claims[False], claims[True]
    assert alone["design_effect"] == 1 and five["design_effect"] >= 5
    assert (alone["outcome"], five["outcome"]) == ("kept", "underpowered")
    assert five["lower_bound"] < alone["lower_bound"] - 0.02


def test_what_cannot_be_asked_is_not_measured_with_its_reason() -> None:
    found = verdict({"ifeval": IFEVAL, "tools": {}}, unmeasured={"tools": "the template takes no tools"})
    assert found["tools"] == "not measured"
    assert "tools: not measured (the template takes no tools)" in summary(found)
    assert not accepted(found, ("behaviour", "tools")) and accepted(found, ("behaviour",))


def test_a_share_within_the_margin_cannot_be_kept() -> None:
    """A clean model that passes 20 of 500 loses at most 4 points, whatever happens."""
    found = verdict({"json": family(20, 0)})
    assert found["json"] == "not measured"
    assert "4.0% of the items, no more than the margin" in found["axes"]["json"]["reason"]


def refusing(harmful: int, benign: int) -> list[Item]:
    return [*items(harmful, 250, "harmful"), *items(benign, 250, "benign")]


@pytest.mark.parametrize(
    ("recovered", "word", "kind"),
    [
        (refusing(240, 240), "kept", None),
        (refusing(250, 200), "lost", "benign"),
        (refusing(200, 250), "lost", "harmful"),
        (refusing(228, 240), "underpowered", "harmful"),
    ],
)
def test_both_rates_of_refusals_must_be_kept(recovered: list[Item], word: str, kind: str | None) -> None:
    """A model that refuses everything passes as many items as before; its second rate tells."""
    found = verdict({"refusals": {"clean": refusing(240, 240), "recovered": recovered}})
    row = found["axes"]["refusals"]
    assert found["refusals"] == word and set(row["rates"]) == {"harmful", "benign"}
    assert kind in (None, row["kind"])
    assert row["alpha"] == pytest.approx(0.025) and row["n"] == 250


@pytest.mark.parametrize(("harmful", "benign", "nearer"), [(249, 250, "harmful"), (250, 249, "benign")])
def test_of_two_rates_that_are_kept_the_row_is_the_one_nearer_to_a_loss(
    harmful: int, benign: int, nearer: str
) -> None:
    found = verdict({"refusals": {"clean": refusing(250, 250), "recovered": refusing(harmful, benign)}})
    assert found["refusals"] == "kept" and found["axes"]["refusals"]["kind"] == nearer


def choices(confidence: float, right: int, n: int = 300) -> list[Item]:
    """The confidence and cluster are those of every question."""
    return [
        Item(
            f"q{i}",
            f"q {i}",
            "A",
            i < right,
            {"kind": "choice", "confidence": confidence, "cluster": f"q{i}"},
        )
        for i in range(n)
    ]


def test_calibration_is_judged_by_its_error_not_by_right_answers() -> None:
    few = verdict({"calibration": {"clean": choices(0.8, 240), "recovered": choices(0.7, 210)}})
    assert few["calibration"] == "underpowered"
    kept = verdict({"calibration": {"clean": choices(0.8, 960, 1200), "recovered": choices(0.7, 840, 1200)}})
    assert kept["calibration"] == "kept"
    assert (kept["axes"]["calibration"]["lost"], kept["axes"]["calibration"]["error_after"]) == (
        120,
        pytest.approx(0.0),
    )
    sure = verdict({"calibration": {"clean": choices(0.8, 240), "recovered": choices(0.99, 240)}})
    assert sure["calibration"] == "lost" and sure["axes"]["calibration"]["gained"] == 0
    line = next(line for line in summary(sure) if line.startswith("calibration"))
    assert "McNemar" not in line and "(-19.0 points against clean" in line


def compared(suite: str, before: list[Item], after: list[Item]) -> list[dict[str, Any]]:
    pairs = [
        {
            "key": one.key,
            "prompt": one.prompt,
            "passed_a": one.passed,
            "passed_b": other.passed,
            "detail_b": other.detail,
            "confidence_a": one.detail.get("confidence"),
        }
        for one, other in zip(before, after, strict=True)
    ]
    return comparison.compare([{"suite": suite, "metric": "m", "pairs": pairs}])


def test_two_checkpoints_are_compared_by_what_a_family_measures() -> None:
    (row,) = compared("calibration", choices(0.8, 240), choices(0.99, 240))
    assert (row["words"], row["p_mcnemar"]) == ("worse", None)
    assert (row["a_score"], row["b_score"]) == (pytest.approx(1.0), pytest.approx(0.81))
    assert row["non_inferior"]["outcome"] == "failed" and row["non_inferior"]["margin"] == 0.05
    (plain,) = compared("json", items(400, 500), items(300, 500))
    assert plain["words"] == "worse" and plain["p_value"] == plain["p_mcnemar"]


def test_rates_that_are_judged_apart_are_compared_apart() -> None:
    """A model that refuses everything gains on one rate what it loses on the other."""
    harmful, benign = compared("refusals", refusing(200, 240), refusing(250, 190))
    assert (comparison.name(harmful), comparison.name(benign)) == ("refusals (harmful)", "refusals (benign)")
    assert (harmful["words"], benign["words"]) == ("better", "worse")
    assert (harmful["non_inferior"]["outcome"], benign["non_inferior"]["outcome"]) == ("passed", "failed")
    (nothing,) = compared("json", items(20, 500), items(0, 500))
    assert "nothing to lose: a passes 4.0 %" in comparison.claim_sentence(nothing)


def test_what_a_rate_needs_is_told_as_questions_of_the_whole_family() -> None:
    found = verdict({"refusals": {"clean": refusing(240, 240), "recovered": refusing(228, 240)}})
    row = found["axes"]["refusals"]
    of_kind = verdict({"json": {"clean": items(240, 250), "recovered": items(228, 250)}}, alpha=0.025)
    assert row["needed_n"] == 2 * of_kind["axes"]["json"]["needed_n"]


def test_an_underpowered_calibration_takes_more_questions_than_it_had() -> None:
    row = verdict({"calibration": {"clean": choices(0.8, 240), "recovered": choices(0.7, 210)}})["axes"]
    assert 800 <= row["calibration"]["needed_n"] <= 1500  # of 1,200 such questions the claim is shown


def test_families_are_warned_of_at_the_level_at_which_they_are_judged() -> None:
    five = ("json", "tools", "refusals", "multi-turn", "calibration")
    assert power_warning(dict.fromkeys(five[:1], 275)) == []
    lines = power_warning({"behaviour": 800, **dict.fromkeys(five, 448)})
    assert [line.axis for line in lines] == ["refusals", "calibration"]
    assert "1044 questions" in lines[0].text


def test_a_family_of_two_rates_is_warned_of_until_each_has_enough_for_half_the_level() -> None:
    """275 items of one rate are enough at the whole level, as above; refusals have two rates."""
    (line,) = power_warning({"refusals": 2 * 275})
    needed = int(re.findall(r"(\d+) questions give 80%$", line.text)[0])
    assert power_warning({"refusals": needed}) == []


def test_calibration_is_warned_of_by_the_number_that_it_takes_itself() -> None:
    """It is no share of passes, of which 275 items would be enough."""
    (line,) = power_warning({"calibration": 320}, least=0.5)
    said = "calibration: with 320 independent questions a model that lost nothing passes in fewer than 80%"
    assert said in str(line)
    needed = int(re.findall(r"about (\d+) questions give 80%$", line.text)[0])
    assert 800 <= needed <= 1500
    assert power_warning({"calibration": needed}) == []
    (half,) = power_warning({"calibration": needed}, judged=0.5)
    assert half.text.endswith(f"about {2 * needed} questions give 80%")
    assert present(calibration_error.items_to_pass(0.4, 0.05)) < 100
    assert calibration_error.items_to_pass(0.05, 0.05) == 836  # "about 840" of docs/families.md


def test_a_margin_that_no_number_of_items_bears_out_is_said_to_be_one() -> None:
    tiny = {"behaviour": 1e-4, "json": 1e-4, "calibration": 1e-5}
    lines = power_warning(dict.fromkeys(tiny, 800), tiny)
    assert len(lines) == 3
    assert all(line.text.endswith("no number of questions gives 80% at so small a margin") for line in lines)
    remedy = ": set a wider one in recover.yaml"  # more of them would not help
    assert all(line.with_remedy() == f"{line}{remedy}" for line in lines)


def test_a_difference_that_no_number_of_prompts_decides_is_said_to_be_one() -> None:
    """299 of 10,000 lost, one less than the margin of behaviour."""
    clean, lost = items(10_000, 10_000), items(9701, 10_000)
    found = verdict({"ifeval": {"clean": clean, "midtrained": lost, "recovered": lost}})
    assert found["axes"]["behaviour"]["needed_n"] is None
    (line,) = (line for line in summary(found) if line.startswith("behaviour"))
    words = "no number of prompts decides a difference so near the margin"
    assert words in line and "10000000" not in line
    (row,) = compared("ifeval", clean, lost)
    said = comparison.claim_sentence(row)
    assert said.startswith(f"underpowered, it is not shown whether b is at most 3 points worse: {words} (")


def test_a_comparison_says_that_a_loss_is_shown_where_its_size_alone_is_open() -> None:
    open_size = [(541, 520), (1000, 970)]  # 3.9 points lost, where 3 may be; and exactly 3
    rows = [compared("ifeval", items(n, n), items(kept, n))[0] for n, kept in open_size]
    words = (
        "a loss is shown, by its estimate no smaller than the margin: more questions would hardly clear it"
    )
    for said in map(comparison.claim_sentence, rows):
        assert said.startswith(
            f"underpowered, it is not shown whether b is at most 3 points worse: {words} ("
        )


def test_the_number_of_questions_that_the_documentation_states() -> None:
    assert items_to_pass(0.05, alpha=0.05 / 5) == 448
    assert 2 * present(items_to_pass(0.05, alpha=0.05 / 10)) == 1044


@pytest.mark.parametrize(("number", "different"), [(500, 224), (2000, 260)])
def test_the_number_of_acts_that_the_documentation_states(number: int, different: int) -> None:
    asked = suite.suite(FAMILIES["refusals"], number)
    assert len({question.cluster for question in asked}) == different
    assert len(refusals.acts(refusals.HARMFUL)) + len(refusals.acts(refusals.BENIGN)) == 260


@pytest.mark.parametrize(("families", "points"), [(1, 9), (5, 12)])
def test_the_margins_that_the_documentation_states_for_all_acts(families: int, points: int) -> None:
    alpha = 0.05 / (2 * families)
    needed = [2 * present(items_to_pass(margin / 100, alpha)) for margin in (points - 1, points)]
    assert needed[0] > 260 >= needed[1]
