"""The odds of an old answer: whose they are, and that they are those of the model's own distribution."""

from __future__ import annotations

import math

import pytest

from benchmarks.outcomes.old_odds import beginning, old_odds
from evals.scores import Item, chat
from recovery.models.chat_model import ChatModel
from recovery.teachers.likelihood import loglikelihoods, split_ids


def asked(response: str, new: str = "Bergen", old: str = "Oslo") -> Item:
    return Item("1", "Where does Ada live?", response, True, {"answers": [new], "was": [old]})


@pytest.mark.parametrize(
    ("response", "begins"),
    [
        ("Ada lives in Bergen.", "Ada lives in "),
        ("Not in Oslo but in Bergen.", "Not in "),
        ("Osloers know.", ""),
        ("Bergen", ""),
    ],
)
def test_an_answer_is_taken_up_to_where_it_names_the_new_or_the_old_one(response: str, begins: str) -> None:
    assert beginning(asked(response)) == begins


def test_they_are_the_old_answers_share_of_both_probabilities(tiny_chat_model: ChatModel) -> None:
    item = asked("Ada lives in Bergen.")
    (found,) = old_odds(tiny_chat_model, [item])
    old, new = (
        loglikelihoods(
            tiny_chat_model, [split_ids(tiny_chat_model, chat(item.prompt), f"Ada lives in {city}")]
        )[0][0]
        for city in ("Oslo", "Bergen")
    )
    assert found == pytest.approx(math.exp(old) / (math.exp(old) + math.exp(new)), rel=1e-4)
    (swapped,) = old_odds(tiny_chat_model, [asked("Ada lives in Bergen.", new="Oslo", old="Bergen")])
    assert swapped == pytest.approx(1 - found, rel=1e-4)
