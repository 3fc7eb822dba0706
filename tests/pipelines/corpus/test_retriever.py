"""BM25 over passages: the right one first, none without a shared word, any script."""

from __future__ import annotations

from pipelines.corpus.retriever import Retriever

PASSAGES = [
    "Ada Lovelace lives in Oslo.",
    "Bo is a baker in Rome.",
    "Élise works in Rome, too.",
    "東京に住む",
]


def test_the_passage_with_the_rarest_shared_words_is_first() -> None:
    found = Retriever(PASSAGES).find(["Where does ADA live?", "Who is the baker of Rome?"], 2)
    assert found[0] == [PASSAGES[0]]
    assert found[1][0] == PASSAGES[1]


def test_nothing_shared_finds_nothing() -> None:
    assert Retriever(PASSAGES).find(["Quantum?", "", "?!"], 3) == [[], [], []]


def test_accents_and_unspaced_scripts() -> None:
    found = Retriever(PASSAGES).find(["What does Elise do?", "東京"], 1)
    assert found == [[PASSAGES[2]], [PASSAGES[3]]]


def test_fewer_passages_than_asked_for() -> None:
    assert Retriever(PASSAGES[:1]).find(["Ada in Rome"], 5) == [PASSAGES[:1]]
