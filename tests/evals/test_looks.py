"""Two looks at behaviour: their bounds, what the second one counts, how often they are wrong or of use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evals import looks
from evals.exact import paired_lower_bound
from evals.ifeval import FURTHER, IFEVAL
from evals.scores import Item
from evals.statistics import outcome
from evals.verdict import accepted, verdict
from evals.verdict_sentences import summary

Counts = NDArray[np.int64]
KEPT = {  # the other axes, beyond doubt
    suite: {stage: [Item(f"k{n}", f"p{n}", "", True) for n in range(500)] for stage in stages}
    for suite, stages in (("knowledge", ("midtrained", "recovered")), ("retention", ("clean", "recovered")))
}


def flipped(n: int, gained: int, lost: int, of: str = "") -> dict[str, list[Item]]:
    """A suite of n prompts of which the clean model passes half."""
    half = n // 2
    before = [place < half for place in range(n)]
    after = [(place >= lost) if place < half else place < half + gained for place in range(n)]
    return {
        stage: [Item(f"k{place}", f"{of}{place}", "", passed) for place, passed in enumerate(passes)]
        for stage, passes in (("clean", before), ("recovered", after))
    }


def judged(own: dict[str, list[Item]], further: dict[str, list[Item]] | None = None) -> dict[str, Any]:
    suites = {**KEPT, IFEVAL: own} | ({FURTHER: further} if further else {})
    return verdict(suites, two_looks=True)


def test_a_first_look_judges_behaviour_at_half_the_error_rate_and_nothing_else() -> None:
    once, first = verdict({**KEPT, IFEVAL: flipped(541, 28, 30)}), judged(flipped(541, 28, 30))
    assert (once["behaviour"], first["behaviour"]) == ("recovered", "underpowered")
    assert [once["axes"]["behaviour"]["alpha"], first["axes"]["behaviour"]["alpha"]] == [0.05, 0.025]
    assert first["behaviour_lower_bound"] < -0.03 < once["behaviour_lower_bound"]
    assert once["axes"]["retention"] == first["axes"]["retention"]
    assert "look" not in once["axes"]["behaviour"] and first["axes"]["behaviour"]["look"] == 1
    assert "first of two looks, at 97.5 %" in summary(first)[0] and "look" not in summary(once)[0]


def test_a_second_look_counts_the_prompts_of_both_suites_together() -> None:
    found = judged(flipped(541, 28, 30), flipped(1000, 50, 46, of="further "))
    axis = found["axes"]["behaviour"]
    assert accepted(found)
    assert (axis["n"], axis["gained"], axis["lost"], axis["look"], axis["alpha"]) == (1541, 78, 76, 2, 0.025)
    assert axis["difference"] == pytest.approx(2 / 1541)
    assert axis["parts"][IFEVAL]["difference"] == pytest.approx(-2 / 541)
    assert axis["parts"][FURTHER] == {"n": 1000, "gained": 50, "lost": 46, "difference": 0.004}
    said = "second of two looks, at 97.5 %: -0.4 on 541 of ifeval, +0.4 on 1,000 of ifeval:further"
    assert said in summary(found)[0]
    assert axis["design_effect"] == 1.0  # equal keys in two suites are two prompts


def test_there_is_no_second_look_where_the_own_prompts_do_not_pass_alone_at_80_percent() -> None:
    """However well the further ones are kept, which outnumber them."""
    own, further = flipped(541, 22, 34), flipped(1000, 80, 20, of="further ")
    first = judged(own)
    assert first["behaviour"] == "underpowered" and not looks.may_follow(first["axes"]["behaviour"])
    assert judged(own, further) == first
    alone = first["axes"]["behaviour"]["own_lower_bound"]
    assert alone == pytest.approx(paired_lower_bound(22, 34, 541, 0.2), abs=1e-6) and alone < -0.03
    assert f"too low for a second one (lower bound {100 * alone:.1f} at 80%)" in summary(first)[0]
    better = judged(flipped(541, 22, 31))
    assert better["behaviour"] == "underpowered" and looks.may_follow(better["axes"]["behaviour"])
    assert judged(flipped(541, 22, 31), further)["behaviour"] == "recovered"
    refuted = judged(flipped(541, 10, 60))
    assert refuted["behaviour"] == "not recovered" and "too low" not in summary(refuted)[0]


def test_further_prompts_that_the_clean_model_fails_show_nothing() -> None:
    """Nothing could be lost there."""
    own, further = flipped(541, 28, 30), flipped(1000, 50, 46, of="further ")
    failed = {stage: [replace(one, passed=False) for one in items] for stage, items in further.items()}
    assert judged(own, failed) == judged(own)


def test_without_two_looks_further_prompts_decide_nothing() -> None:
    own, further = flipped(541, 20, 40), flipped(1000, 50, 50, of="further ")
    assert verdict({**KEPT, IFEVAL: own, FURTHER: further}) == verdict({**KEPT, IFEVAL: own})


def passes(
    rng: np.random.Generator, gain: float, loss: float, further_loss: float | None = None
) -> tuple[bool, bool]:
    """Whether one drawn cycle passes in its first look, and in either."""
    more = loss if further_loss is None else further_loss
    own = rng.multinomial(541, [gain, loss, 1 - gain - loss])
    return decided(own, own + rng.multinomial(1000, [gain, more, 1 - gain - more]))


def decided(own: Counts, both: Counts) -> tuple[bool, bool]:
    """Whether a cycle with these counts of gained and lost prompts passes at first, and in either look."""
    at_first = outcome(int(own[0]), int(own[1]), 541, alpha=0.025)
    if at_first != "underpowered":
        return at_first == "passed", at_first == "passed"
    alone = outcome(int(own[0]), int(own[1]), 541, alpha=looks.OWN_ALPHA)
    return False, alone == outcome(int(both[0]), int(both[1]), 1541, alpha=0.025) == "passed"


@pytest.mark.slow
def test_the_simulated_rule_is_that_of_the_verdict() -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        own, more = (rng.multinomial(n, [0.05, 0.07, 0.88]) for n in (541, 1000))
        first = judged(flipped(541, int(own[0]), int(own[1])))
        asks_on = looks.may_follow(first["axes"]["behaviour"]) and first["behaviour"] == "underpowered"
        further = flipped(1000, int(more[0]), int(more[1]), of="further ") if asks_on else None
        found = judged(flipped(541, int(own[0]), int(own[1])), further)
        assert decided(own, own + more) == (first["behaviour"] == "recovered", accepted(found))


@pytest.mark.slow
def test_two_looks_pass_no_more_of_what_is_worse_by_the_margin_and_more_of_equals() -> None:
    """Of a hundred cycles that lost nothing, one look at 541 prompts passes about 69."""
    rng = np.random.default_rng(11)
    worse = [passes(rng, 0.05, 0.08)[1] for _ in range(2000)]  # at the margin
    assert sum(worse) / len(worse) <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(worse))
    equal = [passes(rng, 0.05, 0.05) for _ in range(500)]
    first, either = (sum(column) / len(equal) for column in zip(*equal, strict=True))
    assert first < 0.69 and either == pytest.approx(0.88, abs=0.04)


@pytest.mark.slow
def test_a_loss_on_the_own_prompts_alone_is_passed_by_no_more_than_a_fifth() -> None:
    rng = np.random.default_rng(12)
    passed = [passes(rng, 0.05, 0.08, further_loss=0.05)[1] for _ in range(1000)]
    assert sum(passed) / len(passed) <= looks.OWN_ALPHA + 2 * np.sqrt(0.16 / len(passed))
