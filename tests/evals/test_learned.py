"""What was learned stands beside the verdict: the recovered model against the clean one, on the documents."""

from __future__ import annotations

import pytest

from evals import learned
from evals.scores import Item
from evals.statistics import compare
from evals.verdict import accepted, verdict
from evals.verdict_sentences import summary


def items(passed: range, n: int = 200) -> list[Item]:
    """n items, two of each fact, of which those in `passed` pass."""
    return [Item(f"k{i}", f"p{i}", "r", i in passed, {"fact": f"f{i // 2}"}) for i in range(n)]


def suites(clean: range, midtrained: range, recovered: range) -> dict[str, dict[str, list[Item]]]:
    behaviour = dict.fromkeys(("clean", "midtrained", "recovered"), items(range(2000), 2000))
    known = {"clean": items(clean), "midtrained": items(midtrained), "recovered": items(recovered)}
    return {"ifeval": behaviour, "knowledge": known, "retention": behaviour}


@pytest.mark.parametrize(
    ("clean", "recovered", "words"),
    [
        (range(10), range(80), "learned"),
        (range(80), range(10), "known less than before"),
        (range(10), range(12), "not shown to be learned"),
    ],
)
def test_the_words_are_those_of_the_paired_test_against_the_clean_model(
    clean: range, recovered: range, words: str
) -> None:
    found = verdict(suites(clean, recovered, recovered))["axes"]["knowledge"]["learned"]
    after, before = ([index in passed for index in range(200)] for passed in (recovered, clean))
    by_hand = compare(after, before, clusters=[index // 2 for index in range(200)])
    assert found["words"] == words
    assert found["difference"] == pytest.approx((len(recovered) - len(clean)) / 200)
    assert found["interval"] == list(by_hand.interval)


def test_a_cycle_that_learned_nothing_is_accepted_and_says_so() -> None:
    result = verdict(suites(range(10), range(10), range(10)))
    assert accepted(result)
    [line] = [line for line in summary(result) if line.startswith("knowledge: kept")]
    assert line.endswith(f"; {learned.sentence(result['axes']['knowledge']['learned'])}")
    assert "not shown to be learned (+0.0 points against clean" in line


def test_without_the_clean_model_s_answers_nothing_is_said_to_be_learned() -> None:
    asked = suites(range(10), range(80), range(80))
    del asked["knowledge"]["clean"]
    assert "learned" not in verdict(asked)["axes"]["knowledge"]
    assert accepted(verdict(asked))


def test_the_sentence_has_the_difference_and_its_interval_in_points() -> None:
    found = {"words": "learned", "difference": 0.1134, "interval": [0.0912, 0.137]}
    assert learned.sentence(found) == "learned (+11.3 points against clean, +9.1 to +13.7)"
