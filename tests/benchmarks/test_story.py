"""The bench of the story: what it shows of a cycle, and that a claim which fails is named."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.outcomes import story


def cycle(number: int = 2, **changes: Any) -> dict[str, Any]:
    """A cycle that shows everything the story claims, but for the changes."""
    scores = {
        "ifeval": {"clean": 0.99, "midtrained": 0.1, "recovered": 0.98},
        "knowledge": {"clean": 0.05, "midtrained": 0.4, "recovered": 0.9},
        "retention": {"clean": 1.0, "midtrained": 0.5, "recovered": 0.95},
    }
    for name, value in changes.items():
        suite, _, stage = name.partition("_")
        if stage:
            scores[suite][stage] = value
    return {
        "cycle": number,
        "status": "accepted",
        "scores": scores,
        "verdict": {
            "behaviour": changes.get("behaviour", "recovered"),
            "knowledge": "kept",
            "behaviour_lower_bound": -0.012,
        },
        "knowledge_by_cycle": [{"cycle": 1, "score": changes.get("now", 0.88), "then": 0.9}],
    }


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"ifeval_clean": 0.94}, ["clean behaves"]),
        ({"ifeval_midtrained": 0.51}, ["midtraining breaks behaviour"]),
        ({"behaviour": "underpowered"}, ["behaviour recovered"]),
        ({"knowledge_clean": 0.16}, ["the documents are new"]),
        ({"knowledge_recovered": 0.79}, ["the documents are known"]),
        ({"retention_recovered": 0.89}, ["old knowledge stays"]),
        ({"now": 0.8}, ["earlier documents stay"]),
    ],
)
def test_a_claim_that_fails_is_named(changes: dict[str, Any], missed: list[str]) -> None:
    assert list(story.misses(cycle(**changes))) == missed


def test_a_demo_is_a_row_a_cycle() -> None:
    line = {"seed": 7, "seconds": 301.4, "story": [cycle(1, now=0.9), cycle(2, now=0.5)]}
    first, second = story.rows(line)
    assert first["seed"] == 7 and first["seconds"] == "301" and second["seed"] is None
    assert first["ifeval"] == "0.99 / 0.10 / 0.98"
    assert first["lower bound"] == "-1.2" and first["misses"] == ""
    assert second["earlier documents"] == "0.90 → 0.50" and second["misses"] == "earlier documents stay"
