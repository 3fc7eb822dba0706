"""The verdict of lm-eval's tasks that have a margin: one claim each, of passes and of scores from 0 to 1."""

from __future__ import annotations

from typing import Any

import pytest

from evals import comparison
from evals.power import power_warning
from evals.scores import Item
from evals.statistics import items_to_pass
from evals.verdict import accepted, axes_of, margins_of, verdict
from evals.verdict_sentences import more_questions, status_in_words, summary
from pipelines.cli.cycle_text import other_line
from recovery.errors import InputError

IFEVAL = {
    stage: [Item(f"i{n}", f"i {n}", "r", n < 650) for n in range(700)] for stage in ("clean", "recovered")
}


def scored(*values: float) -> list[Item]:
    return [
        Item(f"k{n}", f"p {n}", "r", value > 0.5, {"task": "mine", "value": value, "cluster": f"c{n}"})
        for n, value in enumerate(values)
    ]


def passes(passed: int, n: int) -> list[Item]:
    return scored(*[1.0] * passed, *[0.0] * (n - passed))


def judged(before: list[Item], after: list[Item], margin: float = 0.02) -> dict[str, Any]:
    suites = {"ifeval": IFEVAL, "mine": {"clean": before, "recovered": after}}
    return verdict(suites, {"mine": margin})


def test_a_task_is_one_more_claim_that_must_hold() -> None:
    kept = judged(passes(900, 1000), passes(900, 1000))
    assert kept["mine"] == "kept" and accepted(kept, ("behaviour", "mine"))
    lost = judged(passes(900, 1000), passes(850, 1000))
    assert lost["mine"] == "lost" and not accepted(lost, ("behaviour", "mine"))
    assert not accepted(lost, ("behaviour",))  # as it was measured
    row = lost["axes"]["mine"]
    assert (row["alpha"], row["margin"], row["n"], row["gained"], row["lost"]) == (0.05, 0.02, 1000, 0, 50)
    assert any(
        line.startswith("mine: lost (-5.0 points against clean, upper bound -") for line in summary(lost)
    )
    assert [axis.name for axis in axes_of(lost)][-1] == "mine"
    assert "mine" not in verdict({"ifeval": IFEVAL})


def test_a_task_leaves_the_bounds_of_other_axes_as_they_are() -> None:
    both = {"clean": passes(450, 500), "recovered": passes(440, 500)}
    alone = verdict({"ifeval": IFEVAL, "json": both})
    beside = verdict(
        {"ifeval": IFEVAL, "json": both, "mine": both, "other": both}, {"mine": 0.02, "other": 0.3}
    )
    assert beside["axes"]["json"] == alone["axes"]["json"]
    assert beside["axes"]["behaviour"] == alone["axes"]["behaviour"]
    assert (beside["axes"]["mine"]["alpha"], beside["axes"]["mine"]["outcome"]) == (0.05, "underpowered")
    assert beside["other"] == "kept" and "families" not in beside["axes"]["other"]


def test_a_task_with_too_few_questions_is_underpowered_and_has_no_more() -> None:
    few = judged(passes(50, 60), passes(50, 60))
    assert few["mine"] == "underpowered" and not accepted(few, ("behaviour", "mine"))
    (line,) = (line for line in summary(few) if line.startswith("mine: "))
    assert line.endswith(" prompts (a task has only its own: take a larger one, or a wider margin)")
    cycle = {"status": "rejected", "verdict": few, "required": ["behaviour", "mine"]}
    assert status_in_words(cycle) == "rejected: too few questions" and more_questions(cycle) == ""
    (warning,) = power_warning({"mine": 60}, {"mine": 0.02})
    assert str(warning).startswith(
        "mine: with 60 independent questions a model that lost nothing passes in 11%"
    )
    assert warning.remedy == "a task has only its own: take a larger one, or a wider margin"


def test_a_larger_task_is_named_only_where_more_questions_would_decide() -> None:
    """Of one that is likely lost it was said that more questions would hardly clear it, and to take them."""
    likely = (
        "a loss is shown, by its estimate no smaller than the margin: more questions would hardly clear it"
    )
    for after, ends in (
        (50, " prompts would decide; a task has only its own: take a larger one, or a wider margin)"),
        (45, f", {likely})"),
    ):
        row = judged(passes(50, 60), passes(after, 60), margin=0.03)["axes"]["mine"]
        line = other_line("mine", row | {"details": {"suite": "mine"}})
        assert line.startswith("mine        underpowered (") and line.endswith(ends)


def test_a_score_is_judged_by_all_that_it_lost_not_by_answers_below_the_half() -> None:
    """Each of 1,000 answers falls from 0.9 to 0.8: no flip, and 10 points."""
    lost = judged(scored(*[0.9] * 1000), scored(*[0.8] * 1000))
    assert lost["mine"] == "lost"
    assert lost["axes"]["mine"]["difference"] == pytest.approx(-0.1)
    swapped = judged(scored(*[0.4, 0.6] * 500), scored(*[0.5, 0.5] * 500), margin=0.05)
    assert swapped["mine"] == "kept"  # 500 answers fell below the half, and the score stays


def test_two_checkpoints_are_compared_by_the_same_scores_and_margin() -> None:
    before, after = scored(*[0.9] * 1000), scored(*[0.8] * 1000)
    pairs = [
        {
            "key": one.key,
            "prompt": one.prompt,
            "passed_a": one.passed,
            "passed_b": other.passed,
            "value_a": one.detail["value"],
            "detail_b": other.detail,
        }
        for one, other in zip(before, after, strict=True)
    ]
    settings = {"task_points": {"mine": 2}, "margin": 0.03}
    (row,) = comparison.compare([{"suite": "mine", "metric": "f1", "pairs": pairs, "settings": settings}])
    assert (row["a_score"], row["b_score"]) == (pytest.approx(0.9), pytest.approx(0.8))
    assert (row["words"], row["non_inferior"]["outcome"], row["non_inferior"]["margin"]) == (
        "worse",
        "failed",
        0.02,
    )


def test_a_score_within_the_margin_cannot_be_kept() -> None:
    found = judged(passes(20, 1000), passes(20, 1000))
    assert found["mine"] == "not measured" and not accepted(found, ("behaviour", "mine"))
    assert "2.0% of the items, no more than the margin" in found["axes"]["mine"]["reason"]


def test_margins_of_tasks_are_written_in_points() -> None:
    assert margins_of({"margin": 0.03, "task_points": {"mine": 2}})["mine"] == 0.02


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        (50, "lost (upper bound -3.9 points, margin 2)"),
        (5, "kept (lower bound -1.1 points, margin 2)"),
    ],
)
def test_what_the_documentation_says_of_a_task(lost: int, said: str) -> None:
    row = judged(passes(1000, 1000), passes(1000 - lost, 1000))["axes"]["mine"]
    assert other_line("mine", row | {"details": {"suite": "mine"}}).split(maxsplit=1)[1] == said
    assert (items_to_pass(0.02), items_to_pass(0.03)) == (1591, 725)


def test_a_margin_without_its_suite_is_refused() -> None:
    with pytest.raises(InputError, match=r"margin for 'knowlege': one of behaviour, knowledge, .* or a task"):
        verdict({"ifeval": IFEVAL}, {"knowlege": 0.03})
