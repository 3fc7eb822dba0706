"""Written questions that give away a probe are found in every script."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.answer_matching import normalise, occurs
from evals.probes import Probe, parse_probes
from pipelines.writing.filters import ProbeLeaks


def probe(kind: str, prompt: str, answer: str) -> Probe:
    return Probe("1", "knowledge", kind, prompt, (answer,), "1", 1, heldout_fact=kind == "direct")


FACTS = {
    "english": ("Who invented the telephone?", "Bell"),
    "chinese": ("谁发明了电话？", "贝尔"),
    "japanese": ("電話を発明したのは誰ですか。", "ベル"),
    "thai": ("ใครเป็นผู้ประดิษฐ์โทรศัพท์", "เบลล์"),
}


@pytest.mark.parametrize(
    ("language", "question", "answer", "leaks"),
    [
        ("english", "Who invented the telephone?", "Bell", True),
        ("english", "Was the telephone invented by someone?", "Bell", True),
        ("english", "Who wrote this?", "Bell", False),
        ("english", "What was new?", "Bell invented a telephone; who knew?", True),
        ("english", "Who invented the telephone?", "Bellini", False),
        ("chinese", "谁发明了电话？", "贝尔", True),
        ("chinese", "电话是谁发明的？", "贝尔。", True),
        ("chinese", "写这本书的人叫什么名字？", "贝尔", False),
        ("chinese", "这句话怎么继续？谁", "贝尔发明了电话", True),
        ("chinese", "贝尔住在哪里？", "贝尔住在波士顿", False),
        ("chinese", "谁发明了电话？", "爱迪生", False),
        ("japanese", "電話を発明したのは誰ですか。", "ベル", True),
        ("japanese", "電話の発明者は誰ですか。", "ベル", True),
        ("japanese", "この本の題名", "ベル", False),
        ("thai", "ใครเป็นผู้ประดิษฐ์โทรศัพท์", "เบลล์", True),
        ("thai", "ผู้ประดิษฐ์โทรศัพท์คือ", "เบลล์", True),
        ("thai", "ชื่อหนังสือ", "เบลล์", False),
    ],
)
def test_questions_about_held_out_facts_are_found(
    language: str, question: str, answer: str, leaks: bool
) -> None:
    assert ProbeLeaks([probe("direct", *FACTS[language])]).of(question, answer) == leaks


def test_the_same_answer_to_another_question_gives_nothing_away() -> None:
    """A sentence with the answer may be of the passage that tells the fact; the bare answer tells nothing."""
    sailing = Probe(
        "1", "knowledge", "direct", "When does one sail?", ("nine",), "1", 1, ("It leaves at nine.",), True
    )
    leaks = ProbeLeaks([sailing])
    assert not leaks.of("How many doors has a tram?", "nine")
    assert leaks.of("How many doors has a tram?", "leaves at nine")


def test_a_held_out_number_is_found_however_its_thousands_are_written() -> None:
    leaks = ProbeLeaks([probe("direct", "How many crowns does the bridge at Oslo cost?", "12 000")])
    asked = "What does the bridge at Oslo cost in crowns?"
    assert leaks.of(asked, "12,000") and leaks.of(asked, "12 000") and not leaks.of(asked, "12 500")


ORVEX = "Orvex is managed by Ada Horn. The head office of Orvex stands in Troms."


@pytest.mark.parametrize(
    ("question", "answer", "leaks"),
    [
        ("Who leads Orvex?", "Ada Horn", True),
        ("Who is in charge of Orvex?", "Ada Horn is in charge of Orvex", True),
        ("Which person runs the firm Orvex?", "Horn", True),
        ("Orvex has which boss?", "Ada Horn", False),
        ("Where is Orvex based?", "Troms", False),
        ("Who manages Halberd?", "Bo Adler", False),
        ("Who leads Halberd?", "Ada Horn", False),
        ("What is the name of a woman?", "Ada Horn", False),  # shares words of the frame alone
    ],
)
def test_a_held_out_fact_is_found_in_a_writer_s_own_words(question: str, answer: str, leaks: bool) -> None:
    """By the answer and a name; where the passage is known by the answer alone."""
    rows = [
        {"kind": kind, "prompt": prompt, "id": kind, "fact": "1", "answer": "Ada Horn", "heldout_fact": True}
        | {"passage": "Orvex is managed by Ada Horn."}
        for kind, prompt in (
            ("cloze", "Orvex is managed by"),
            ("direct", "Complete the sentence with what is missing: Orvex is managed by …"),
        )
    ]
    found = ProbeLeaks(parse_probes(rows, "here"))
    assert found.of(question, answer) is leaks
    assert found.of(question, answer, ORVEX) is ("Horn" in answer)
    assert found.of(question, answer, "Ada Horn met Bo Adler in Troms.") is leaks


@pytest.mark.parametrize(
    ("held_out", "again", "other"),
    [
        (
            "Which man gave us the very first telephone?",
            "which man gave us the very first telephone, please",
            "Which man?",
        ),
        (
            "请问是哪一位科学家最早发明了电话机？",
            "请问，是哪一位科学家最早发明了电话机呢？",
            "请问是哪一位科学家最早到了北京？",
        ),
        (
            "世界で最初に電話を発明した人は誰ですか。",
            "世界で最初に電話を発明した人は誰",
            "世界で最初に本を書いた人は誰ですか。",
        ),
    ],
)
def test_held_out_questions_are_found_in_nearly_the_same_words(held_out: str, again: str, other: str) -> None:
    leaks = ProbeLeaks([probe("heldout", held_out, "Bell")])
    assert leaks.of(held_out, "x") and leaks.of(again, "x") and not leaks.of(other, "x")


@pytest.mark.parametrize(
    ("held_out", "text"),
    [
        ("Who was it?", "They asked: who was it? Nobody knew."),
        ("是谁发明了电话？", "老师问学生是谁发明了电话，没有人知道。"),
        ("ใครเป็นผู้ประดิษฐ์โทรศัพท์", "ครูถามว่าใครเป็นผู้ประดิษฐ์โทรศัพท์แต่ไม่มีใครรู้"),
    ],
)
def test_a_held_out_question_is_found_within_a_text(held_out: str, text: str) -> None:
    leaks = ProbeLeaks([probe("heldout", held_out, "Bell")])
    assert leaks.within(text) and not leaks.within(text[: len(text) // 2])


def test_a_held_out_question_behind_a_system_turn_is_found_without_it() -> None:
    asked = "Which man gave us the very first telephone?"
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked}]
    row: dict[str, Any] = {"kind": "heldout", "answer": "Bell", "messages": turns}
    leaks = ProbeLeaks(parse_probes([row], "here"))
    assert leaks.of(asked, "x") and leaks.within(f"They asked: {asked} It was Bell.")
    (held_out,) = parse_probes([row | {"kind": "direct", "heldout_fact": True}], "here")
    told = ProbeLeaks([held_out]).of(
        "Whose was the first telephone?", "It was Bell who gave us that very one"
    )
    assert told


def test_a_short_last_turn_is_not_looked_for_within_texts() -> None:
    turns = [{"role": "user", "content": "Ada is away."}, {"role": "user", "content": "Why?"}]
    leaks = ProbeLeaks(parse_probes([{"kind": "heldout", "answer": "Ill", "messages": turns}], "here"))
    assert not leaks.within("She knows why.") and leaks.within("She wrote: Ada is away. Why?")


WORDS = ("who", "where", "owns", "sold", "the", "a", "red", "house", "car", "Bell", "Oslo", "Rome")
SAID = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@given(st.lists(st.tuples(SAID, SAID, st.sampled_from(["direct", "heldout"])), max_size=12), SAID, SAID)
def test_leaks_of_many_probes_are_those_of_each(
    probes: list[tuple[str, str, str]], question: str, answer: str
) -> None:
    made = [probe(kind, prompt, said) for prompt, said, kind in probes if prompt and said]
    found = ProbeLeaks(made).of(question, answer)
    assert found == any(ProbeLeaks([one]).of(question, answer) for one in made)
    assert found == any(gives_away(one, question, answer) for one in made)


def gives_away(one: Probe, question: str, answer: str) -> bool:
    """The rule as documented, of texts that are plain words already."""
    asked, held = normalise(question).split(), normalise(one.prompt).split()
    told, said, (wanted,) = (
        {*asked, *normalise(answer).split()},
        normalise(answer),
        map(normalise, one.answers),
    )
    if one.heldout_fact:
        if about_the_same_name(question, one.prompt, said.split(), wanted.split()):
            return True
        named = len(set(asked) & set(held)) >= 2 and said == wanted
        return named or (
            bool(wanted) and occurs(wanted, said) and len(told & set(held)) >= 0.6 * len(set(held)) > 0
        )
    pairs = [set(pairwise(["", *words])) for words in (asked, held)]
    same = [len(a & b) / max(1, len(a | b)) for a, b in ((set(asked), set(held)), pairs)]
    return same[0] >= 0.85 and same[1] >= 0.7


def about_the_same_name(question: str, prompt: str, said: list[str], wanted: list[str]) -> bool:
    asked, held = question.split(), prompt.split()
    shared = ({*asked[1:]} & {*held} | {*asked} & {*held[1:]}) & {"Bell", "Oslo", "Rome"}
    parts = [" ".join(said), " ".join(wanted)]
    overlap = bool(said) and len(said) <= 8 and any(occurs(*pair) for pair in (parts, parts[::-1]))
    return overlap and bool({*map(str.lower, shared)} - {*wanted})
