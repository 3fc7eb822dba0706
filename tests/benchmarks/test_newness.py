"""Entities are compared by what was gained on sentences trained on, and on others."""

from __future__ import annotations

from benchmarks.outcomes.newness import Gains, in_words, table

FOUND = {
    ("raft",): Gains([0.9, 1.1, 1.0, 1.0], [0.6, 0.8, 0.6, 0.6]),
    ("git", "hub"): Gains([0.7, 0.5, 0.6, 0.6], [0.1, 0.1, 0.3, 0.1]),
}


def test_each_kind_of_sentence_has_a_row() -> None:
    trained, held_out = table(FOUND)
    assert (trained["sentences"], trained["entities"]) == ("trained on", 2)
    assert trained["gain, nats a token"] == "0.80 (median 0.80)"
    assert str(trained["taken as new"]).startswith("2 (100% [")
    assert str(held_out["taken as new"]).startswith("1 (50% [")


def test_what_only_one_kind_takes_as_new_is_named() -> None:
    assert (
        in_words(FOUND)
        == "New by sentences trained on alone: 1 (git hub); by sentences held out alone: 0 ()."
    )
