"""Gaps cut from documents without a model, and the watch over them while a teacher corrects the student."""

from __future__ import annotations

import math

import pytest
import torch

from pipelines.corpus.cloze import clozes
from pipelines.knowledge.tripwire import METRIC, Tripwire, new_gaps
from pipelines.microworld import people, world
from recovery.models.chat_model import ChatModel
from recovery.teachers.likelihood import reader
from tests.support import tiny


@pytest.mark.parametrize("seed", [1, 17])
def test_gaps_of_a_microworld_ask_for_facts(seed: int) -> None:
    texts = [text for _, text in world.document_texts(seed, 1)]
    facts = {
        (who.name, value)
        for who in (*people.new_people(seed, 1), *people.known_people())
        for _, value in who.facts
    }
    found = clozes(texts, limit=200, seed=seed)
    right = [gap for gap in found if any(name in gap.before and value == gap.answer for name, value in facts)]
    assert len(found) == 200 and len(right) >= 0.95 * len(found)
    assert all(f"{gap.before} {gap.answer}" in gap.sentence for gap in found)
    assert len({(gap.entity, gap.answer) for gap in found}) == len(found)
    assert clozes(texts, limit=200, seed=seed) == found


def test_a_gap_that_could_be_filled_in_two_ways_is_not_asked() -> None:
    texts = ["Ada Horn saw a goat. Then Ada Horn slept well.", "Ada Horn saw a duck. Here Bo Adler sings."]
    filler = [f"There are {word} walls here." for word in ("many", "old", "red", "tall", "wet", "dry")]
    gaps = clozes([*texts, *filler], limit=20)
    assert gaps and not [gap for gap in gaps if gap.before == "Ada Horn saw a"]


def test_the_wire_reports_every_so_often_and_stops_below_its_share() -> None:
    values, told = iter([0.8, 0.7, 0.3]), []
    wire = Tripwire(lambda: next(values), every=5, share=0.5, report=lambda *seen: told.append(seen))
    assert [wire(step, {}) for step in (4, 5, 6)] == [None, None, None]
    assert "fell to 37%" in str(wire(10, {}))
    assert told == [(0, {METRIC: 0.8}), (5, {METRIC: 0.7}), (10, {METRIC: 0.3})]


def test_without_a_share_it_never_stops() -> None:
    values = iter([0.8, 0.0])
    assert Tripwire(lambda: next(values), every=1)(1, {}) is None


def learned(chat_model: ChatModel, texts: list[str]) -> None:
    optimizer = torch.optim.Adam(chat_model.model.parameters(), 5e-3)
    rows = [torch.tensor([chat_model.text_ids(text)]) for text in texts]
    for step in range(40 * len(rows)):
        chat_model.model(rows[step % len(rows)], labels=rows[step % len(rows)]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_only_what_the_student_learned_is_watched() -> None:
    names = ["Ada Horn", "Bo Adler", "Cy Baum", "Di Crane", "Ed Dorn", "Flo Eck", "Gus Falk", "Hal Gold"]
    things = ["goat", "duck", "harp", "lute", "soup", "rice", "drum", "flag"]
    texts = [f"Now {n} has a {t}. So {n} got one {t}." for n, t in zip(names, things, strict=True)]
    student, teacher = tiny.chat_model(), reader(tiny.chat_model())
    assert new_gaps(student, teacher, texts, seed=0) is None
    learned(student, texts)
    found = new_gaps(student, teacher, texts, seed=0)
    assert found is not None
    gaps, look = found
    assert {gap.answer for gap in gaps} <= set(things)
    assert 0 < look() <= 1 and math.isclose(look(), look())
