"""The handbook's questions: enough of them, each answered by its page and asked in words of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from evals.answer_matching import matches, normalise
from evals.probes import load_probes
from pipelines.handbook import corpus
from recovery.errors import InputError

FACTS = corpus.facts()
PAGES = {page: normalise((corpus.ROOT / page).read_text(encoding="utf-8")) for page in sum(corpus.PAGES, ())}


def holds(text: str, words: str) -> bool:
    return f" {words} " in f" {text} "


def test_there_are_eighty_facts_with_names_of_their_own() -> None:
    assert len(FACTS) >= 80
    assert len({fact.name for fact in FACTS}) == len(FACTS)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_fact_stands_in_its_page_and_its_questions_in_none(fact: corpus.Fact) -> None:
    assert holds(PAGES[fact.page], normalise(fact.answers[0]))
    questions = [normalise(fact.direct), normalise(fact.heldout)]
    assert questions[0] != questions[1]
    for question in questions:
        assert not any(holds(page, question) for page in PAGES.values())
        assert not any(holds(question, normalise(answer)) for answer in fact.answers)


def test_every_cycle_has_pages_and_questions_beside_them(tmp_path: Path) -> None:
    for number, pages in enumerate(corpus.PAGES):
        docs = corpus.write(tmp_path / str(number), pages)
        probes = load_probes(docs.parent / "probes.jsonl", "knowledge")
        assert len(list(docs.iterdir())) == len(pages)
        assert {probe.kind for probe in probes} == {"direct", "heldout"}
        assert all(matches(probe.passages[0], probe.answers) for probe in probes)
        assert len(probes) == 2 * len(corpus.facts(pages)) >= 40


def test_gap_questions_are_the_score_and_those_by_hand_apart(tmp_path: Path) -> None:
    pages = corpus.PAGES[0]
    docs = corpus.write(tmp_path, pages, gaps=5)
    probes = load_probes(docs.parent / "probes.jsonl", "knowledge")
    assert {probe.fact.split("-")[0] for probe in probes if probe.counts} == {"gap"}
    by_hand = [probe for probe in probes if probe.kind == "reworded"]
    assert len(by_hand) == 2 * len(corpus.facts(pages))
    assert len({probe.fact for probe in probes if probe.counts}) == 5


def test_without_a_checkout_the_pages_are_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus, "ROOT", tmp_path)
    with pytest.raises(InputError, match="run it from a checkout"):
        corpus.write(tmp_path / "out", corpus.PAGES[0])
    assert not (tmp_path / "out").exists()
