"""Questions without a writer: gaps that their own sentence fills, and nothing the documents do not say."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from evals.answer_matching import matches
from evals.probes import Probe, load_probes
from pipelines.writing import gap_questions
from pipelines.writing.augment import load
from pipelines.writing.commands import AugmentOptions, augment_documents
from pipelines.writing.filters import ProbeLeaks
from recovery.batches.rollouts import Dialogue
from tests.support import tiny
from tests.support.small_cycles import make_home

TEXTS = [
    "The **tripwire** stops a training. The guard stops a training too.\n\n| word | means |\n",
    "The ferry to Oslo leaves at nine. The ferry to Bergen leaves at ten.",
]


def test_a_gap_is_answered_by_its_whole_sentence() -> None:
    found = list(gap_questions.rows(TEXTS))
    gaps = [row for row in found if "___ " in row["prompt"] or "___." in row["prompt"]]
    missing = set()
    for row in gaps:
        asked = row["prompt"].split(": ", 1)[-1].split("? ", 1)[-1]
        before, after = asked.split("___")
        assert row["response"].startswith(before) and row["response"].endswith(after)
        missing.add(row["response"][len(before) : len(row["response"]) - len(after)])
        assert any(row["response"] in text.replace("**", "") for text in TEXTS)
    assert {"Oslo", "Bergen", "tripwire"} <= missing


def test_a_sentence_is_asked_for_its_rarest_words_by_hand() -> None:
    """Pears and near stand once; oaks and Kim twice, in one text; sold twice, in two."""
    texts = ["Kim sold pears near oaks. Kim likes oaks.", "They sold much wood."]
    said = "Kim sold pears near oaks."
    assert [row["prompt"] for row in gap_questions.rows(texts) if row["response"] == said] == [
        "Fill the gap: Kim sold ___ near oaks.",
        "Which word is missing here? Kim sold pears ___ oaks.",
        "What belongs in place of ___? Kim sold pears near ___.",
        "How does this sentence go on? Kim sold pears near …",  # the longest of three beginnings
        "What do you know about pears?",
    ]


def test_words_said_twice_and_beginnings_of_three_words_are_not_asked_for() -> None:
    assert [row["prompt"] for row in gap_questions.rows(["Rain on rain and snow on snow."])] == [
        "Fill the gap: Rain on rain ___ snow on snow.",
        "What do you know about and?",
    ]
    asked = gap_questions.rows(["Pumps move water. Pumps move red water."])
    assert {row["response"] for row in asked} == {"Pumps move red water."}


def test_sentences_of_scripts_without_spaces_are_asked_about_too() -> None:
    said = "田中さんは大阪の工場で青いポンプを組み立てています。"
    found = list(gap_questions.rows([said, "工場は毎朝七時に開きます。"]))
    assert {row["response"] for row in found} == {said, "工場は毎朝七時に開きます。"}
    fill = gap_questions.FILL[0].format("田中さんは大阪の工場で青いポンプを___ています。")
    assert fill in [row["prompt"] for row in found] and len(found) >= 8


def test_a_gap_is_a_whole_word_though_a_longer_one_holds_it() -> None:
    said = "A document is its tokens and the end of token text."
    prompts = [row["prompt"] for row in gap_questions.rows([said])]
    assert gap_questions.FILL[2].format("A document is its tokens and the end of ___ text.") in prompts
    assert not any("___s" in prompt for prompt in prompts)


def test_an_option_is_asked_for_with_its_dashes() -> None:
    said = "Give the program that says it via the option --password-command."
    prompts = [row["prompt"] for row in gap_questions.rows([said])]
    assert any(prompt.endswith("via the option ___.") for prompt in prompts)
    assert any(prompt.endswith("via the option …") for prompt in prompts)
    assert not any("--_" in prompt or "-- …" in prompt for prompt in prompts)


def test_a_beginning_is_answered_by_its_whole_sentence() -> None:
    found = [row for row in gap_questions.rows(TEXTS) if row["prompt"].startswith("How does")]
    assert found
    for row in found:
        assert row["response"].startswith(row["prompt"].removeprefix("How does this sentence go on? ")[:-2])


def test_the_rarest_word_asks_for_its_whole_sentence() -> None:
    found = {row["prompt"]: row["response"] for row in gap_questions.rows(TEXTS)}
    assert matches(found[gap_questions.RECALL.format("tripwire")], ["stops a training"])


def test_headings_and_single_words_are_no_sentences() -> None:
    assert not list(gap_questions.rows(["# Ferries\n\nYes.\n"]))


def test_augment_writes_them_without_a_model_and_leaves_held_out_facts_alone(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "ferries.md").write_text(TEXTS[1], encoding="utf-8")
    probes = tmp_path / "secret.jsonl"
    probes.write_text(
        '{"id": "1", "kind": "direct", "prompt": "The ferry to ___ leaves at ten: which word?", '
        '"answer": "Bergen", "heldout_fact": true}\n',
        encoding="utf-8",
    )
    options = AugmentOptions(writer="gaps", probes=probes)
    with make_home(tmp_path) as ws:
        found = augment_documents(ws, docs, tmp_path / "out", options)
    answers = " ".join(row["response"] for row in load(tmp_path / "out"))
    assert load_probes(probes) and found["refused"]["a held-out probe"] >= 1
    assert "Oslo" in answers and "Bergen" not in answers


def test_the_questions_of_a_mix_are_of_all_texts_alike_and_as_many_as_are_wanted() -> None:
    texts = [f"The {name} museum opened in {year} near Oslo." for year, name in enumerate("abcdefgh", 1900)]
    student = tiny.chat_model()

    def drawn(most: int, seed: int = 1) -> list[Dialogue]:
        return list(gap_questions.chats(texts, student, ProbeLeaks(()), most=most, seed=seed))

    every, few = drawn(10**6), drawn(1000)
    assert len(every) == len(list(gap_questions.rows(texts)))
    assert 1000 <= sum(len(ids) for ids, _ in few) < 1000 + max(len(ids) for ids, _ in every)
    assert few == every[: len(few)]
    assert drawn(1000, seed=2) != few


def test_of_a_large_folder_no_more_questions_are_held_than_will_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And they are of the whole of it: once the first five million characters were asked again and again."""
    texts = [f"The museum number {number} opened in {1000 + number} near Oslo." for number in range(900)]
    shown: list[tuple[int, int]] = []
    encoded: list[str] = []

    def dialogue(student: Any, row: dict[str, str]) -> Dialogue:
        encoded.append(row["source"])
        return [1] * 20, [True] * 20

    monkeypatch.setattr(gap_questions, "dialogue", dialogue)
    held = []
    shuffle = random.Random.shuffle

    def shuffled(self: random.Random, rows: list[Any]) -> None:
        held.append(len(rows))
        shuffle(self, rows)

    monkeypatch.setattr(random.Random, "shuffle", shuffled)
    found = gap_questions.chats(
        texts,
        tiny.chat_model(),
        ProbeLeaks(()),
        most=20 * 400,
        seed=3,
        show=lambda *done: shown.append(done),
    )
    assert len(list(found)) == 400  # of 4,500 rows
    assert 400 < held[0] < 1200 and shown[-1] == (900, 900)
    numbers = sorted(map(int, encoded))
    assert len(set(numbers)) > 300 and numbers[0] < 30 and numbers[-1] > 870


def test_a_fact_that_a_question_in_other_words_holds_out_is_told_by_its_passage() -> None:
    """Few words of the sentence stand in the question, but the probe says where the fact does."""
    held_out = Probe(
        "1",
        "knowledge",
        "direct",
        "When does one sail to Norway?",
        ("nine",),
        "1",
        1,
        passages=("The ferry to Oslo leaves at nine.",),
        heldout_fact=True,
    )
    leaks = ProbeLeaks([held_out])
    told = list(gap_questions.rows(["The ferry to Oslo leaves at nine. The tram to Bergen has nine doors."]))
    left_out = {row["response"] for row in told if leaks.of_row(row)}
    assert left_out == {"The ferry to Oslo leaves at nine."}
    assert {row["response"] for row in told} - left_out == {"The tram to Bergen has nine doors."}


def test_no_question_of_a_mix_is_about_a_held_out_fact() -> None:
    texts = ["The ferry to Oslo leaves at nine.", "The tram to Bergen is red."]
    held_out = Probe(
        "1", "knowledge", "direct", "The ferry to Oslo leaves at", ("nine",), "1", 1, heldout_fact=True
    )
    student = tiny.chat_model()
    found = gap_questions.chats(texts, student, ProbeLeaks([held_out]), most=10**6, seed=0)
    asked = [student.text(ids) for ids, _ in found]
    assert [text for text in asked if "red" in text]
    assert not [text for text in asked if "nine" in text]
