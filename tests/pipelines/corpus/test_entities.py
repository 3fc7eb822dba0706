"""What documents are about: names and rare words in any script, none of what everybody talks about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.entities import entities, words
from pipelines.corpus.general_words import general_words
from pipelines.corpus.sentences import sentences
from pipelines.microworld import people, world

ENGLISH = [
    "Ada Horn lives in Oslo. When the day is over, Ada Horn plays the harp.",
    "# Ada Horn\n\nThe pump X-200 was built for Ada Horn. When it broke, she called Bo.",
    "At noon she met Bo near the pump X-200, and when it rained they stayed.",
]


def test_names_and_codes_are_found_and_the_first_word_of_a_sentence_is_not() -> None:
    found = set(entities(ENGLISH).weights)
    assert {("ada", "horn"), ("x-200",), ("bo",)} <= found
    assert not found & {("when",), ("the",), ("at",), ("ada",), ("the", "pump")}


def test_marks_are_part_of_their_word() -> None:
    said = "कीटाणु fu\u0308r مُحَمَّد"
    assert [word.text for word in words(said)] == said.split()


def test_a_term_counts_where_it_opens_a_heading_too() -> None:
    texts = ["# Moonlighting\n\nWe allow moonlighting.", "Moonlighting is work for others.", "Ada opens it."]
    assert ("moonlighting",) in entities(texts).weights
    assert not {("moonlighting",)} & set(entities([texts[0]]).weights)


PAGES = """# A Note About Beekeeping

Beekeeping is welcome on the roof of the office, as long as somebody looks after the hives when you are away.
Ask your manager for a key, and tell the people on the floor below before you begin. We pay for the clothes
that you need, and for one course each year. Keep the door to the roof shut, and never go up alone.

# When You Leave

Give back your computer and your key on the last day, and say goodbye to the people who worked with you.
Your manager writes a letter for you within two weeks. If you are owed money, it comes with the last salary.
"""


def test_a_very_rare_word_is_a_term_though_it_stands_only_in_a_title_and_at_a_sentence_s_beginning() -> None:
    found = entities([PAGES])
    assert ("beekeeping",) in found.within("What does the handbook say about beekeeping?")
    ordinary = ("What does my manager do in an office?", "Write a letter about leaving, with a goodbye.")
    assert not any(found.within(prompt) for prompt in ordinary)


def test_a_word_that_is_rarely_used_in_general_must_be_repeated() -> None:
    """One mention of a word may be an accident; the documents are about what they repeat."""
    once = PAGES.replace("the clothes\nthat you need", "the mittens\nthat you need")
    often = once.replace("for one course each year", "for new mittens each year; lend nobody your mittens")
    assert ("mittens",) not in entities([once]).weights
    assert ("mittens",) in entities([often]).weights


def test_a_compound_is_as_ordinary_as_its_parts_joined_or_in_a_row() -> None:
    general = general_words([PAGES])
    assert general is not None
    for compound, spelled in (("e-mail", "email"), ("double-check", "double check")):
        assert general.highest_share(compound) == general.highest_share(spelled) > general.share(compound)


def test_many_short_texts_are_read_far_enough_to_tell_their_language() -> None:
    rows = [f"Das {n}. Haus steht am Fluss, und die Leute gehen dort gern spazieren." for n in range(30_000)]
    general = general_words(rows)
    assert general is not None and general.language == "de"


def test_spanish_plurals_and_forms_of_verbs_are_as_common_as_what_is_listed() -> None:
    spanish = "La casa está en el río y la gente pasea por allí cuando hace buen tiempo. "
    general = general_words([spanish * 9])
    assert general is not None and general.language == "es"
    for word in ("puede", "según", "funciones", "usuarios", "utiliza", "nuevas", "guardados", "otros"):
        assert general.share(word) > 100 * general.share("quillonza")


GERMAN = (
    "Das Portlet zeigt Content an. Jede Person sieht den Code der anderen, "
    "wenn sie im Portlet den Content ändert. "
    "Eine Person, die den Code kennt, darf das Portlet ändern. "
) + "Das Haus steht am Fluss, und die Leute gehen dort gern spazieren, wenn das Wetter schön ist. " * 200


def test_a_foreign_word_of_the_documents_that_is_ordinary_among_the_prompts_is_no_term() -> None:
    prompts = [f"Write some code that prints {n} words about the content of a book." for n in range(8)]
    found = entities([GERMAN], prompts)
    assert ("portlet",) in found.within("Wo steht das Portlet?")
    assert not found.within("Write code that shows the content to a person.")


def test_a_prompt_mentions_a_name_however_it_is_written() -> None:
    found = entities(ENGLISH)
    assert found.within("where does ADA HORN live?") == {("ada", "horn")}
    assert found.within("Where does Ada live, and who is Horn?") == set()
    assert found.first("Does Bo know Ada Horn?") == (("bo",), 7)


def test_what_the_prompts_talk_about_anyway_belongs_to_nobody() -> None:
    prompts = [f"Say {n} things about Oslo." for n in range(40)] + ["Who is Ada Horn?"]
    texts = [*ENGLISH, "In Oslo there is Oslo and more of Oslo."]
    assert ("oslo",) in entities(texts).weights
    assert ("oslo",) not in entities(texts, prompts).weights
    assert ("ada", "horn") in entities(texts, prompts).weights


@pytest.mark.parametrize(
    ("texts", "prompt", "other"),
    [
        (["山田太郎は東京に住んでいる。"] * 3, "山田太郎はどこに住んでいますか", "今日は天気がいい"),
        (["Хорн Ада живёт в Осло. Вчера Хорн Ада пела."] * 2, "где живёт хорн ада?", "где живёт кот?"),
        (
            ["Der Pumpenwart Karl Voss prüft das Ventil. Dort sah Karl Voss es."] * 2,
            "Wer ist Karl Voss?",
            "Wer ist da?",
        ),
        (["الدواء زولبيديم مفيد. زولبيديم قوي. زولبيديم."], "ما هو زولبيديم", "ما هذا"),
    ],
)
def test_other_scripts(texts: list[str], prompt: str, other: str) -> None:
    found = entities(texts)
    assert found.within(prompt)
    assert not found.within(other)


@pytest.mark.parametrize("seed", [3, 41])
def test_every_new_person_of_a_microworld_and_no_task_about_a_topic(seed: int) -> None:
    prompts = [(str(row["prompt"]), row["kind"]) for row in world.prompt_rows(seed, 1)]
    found = entities([text for _, text in world.document_texts(seed, 1)], [text for text, _ in prompts])
    assert {tuple(who.name.lower().split()) for who in people.new_people(seed, 1)} <= set(found.weights)
    tasks = [text for text, kind in prompts if kind == "instruction"]
    assert sum(bool(found.within(task)) for task in tasks) <= 0.01 * len(tasks)


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    assert all(word.text in text and word.small == word.text.casefold() for word in words(text))
    assert all(sentence.strip() == sentence and sentence in text for sentence in sentences(text))
    assert entities([text], [text]).within(text) <= set(entities([text]).weights)
