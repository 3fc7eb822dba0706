"""Responses of a cycle's models side by side, chosen by hand, and the scores of its stages."""

from __future__ import annotations

from typing import Any

import pytest

from db.reads import stages
from db.reads.queries import ItemFilter
from db.writes.tracker import Tracker
from tests.support.databases import record_cycle, record_score, score

FIRST, SECOND = "length:words", "case:capital"
BOTH = [FIRST, SECOND]
MIDTRAINED: list[tuple[list[str], list[bool]]] = [  # instructions of each prompt, and which are followed
    (BOTH, [False, True]),
    (BOTH, [True, False]),
    (BOTH, [True, True]),
    (BOTH, [False, False]),
    ([SECOND], [False]),
    ([FIRST], [False]),
]


def recorded(tracker: Tracker, *items: tuple[list[str], list[bool]]) -> int:
    """A score of prompts with these instructions, each followed or not; return its number."""
    row = score("ifeval", 0.5, *[all(followed) for _, followed in items])
    for item, (kinds, followed) in zip(row["items"], items, strict=True):
        item["detail"] = {"instructions": kinds, "strict": followed}
    return record_score(tracker, tracker.start_run("eval").id, None, row)


@pytest.mark.parametrize("chunk", [2, 200])
def test_prompts_that_fail_a_kind_of_instruction_at_a_stage(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(stages, "CHUNK", chunk)
    passed = [(kinds, [True] * len(kinds)) for kinds, _ in MIDTRAINED]
    scores = {"clean": recorded(tracker, *passed), "midtrained": recorded(tracker, *MIDTRAINED)}

    def keys(**page: Any) -> list[str]:
        only = ItemFilter(kind=FIRST, failing="midtrained")
        return [row["key"] for row in stages.side_by_side(tracker.db, scores, only, **page)]

    assert keys() == ["p0", "p3", "p5"]
    assert keys(limit=2) == ["p0", "p3"] and keys(after="p3") == ["p5"]
    of_kind = stages.side_by_side(tracker.db, scores, ItemFilter(kind=FIRST))
    assert [row["key"] for row in of_kind] == ["p0", "p1", "p2", "p3", "p5"]
    lost = stages.side_by_side(tracker.db, scores, ItemFilter({"clean": True, "midtrained": False}))
    assert [row["key"] for row in lost] == ["p0", "p1", "p3", "p4", "p5"]
    assert [lost[0]["stages"][stage]["passed"] for stage in scores] == [True, False]


def test_a_prompt_that_a_stage_was_not_asked_is_counted_and_shown_without_an_answer(tracker: Tracker) -> None:
    scores = {"clean": recorded(tracker, *MIDTRAINED[:3]), "midtrained": recorded(tracker, *MIDTRAINED[:2])}
    assert stages.flip_counts(tracker.db, scores) == {(False, False): 2, (True, None): 1}
    *_, last = stages.side_by_side(tracker.db, scores)
    assert last["stages"]["midtrained"] == {"passed": None, "response": None, "detail": None}


def test_the_newest_score_of_a_stage_counts_and_the_first_names_the_prompts(tracker: Tracker) -> None:
    number = record_cycle(tracker, {"ifeval": {"clean": 0.5}})
    (first,) = stages.stage_scores(tracker.db, number)
    again = score("ifeval", 0.75, True, True, True)
    run = tracker.start_run("eval", parent=first["run_id"])
    record_score(tracker, run.id, "clean0", again)
    assert [row["value"] for row in stages.stage_scores(tracker.db, number)] == [0.75]
    assert stages.item_prompts(tracker.db, number) == {"ifeval": [("p0", "prompt 0"), ("p1", "prompt 1")]}
