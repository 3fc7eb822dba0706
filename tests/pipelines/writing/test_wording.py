"""A writer's own words pass where they ask about one passage and tell what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.corpus.entities import Entities
from pipelines.corpus.general_words import GeneralWords, general_words
from pipelines.writing.augment import augment
from pipelines.writing.filters import probe_flaw, question_flaw
from pipelines.writing.protocol import Text
from pipelines.writing.wording import Wording

PASSAGES = (
    "Pictures in a LaTeX paper are left out, and their captions stay below the paragraph that shows them.",
    "An archive is unpacked in memory. One that grows to more than 200 times its size is skipped.",
    "Subtitles become a transcript without numbers and times; a new line begins with another speaker.",
    "Each row of a spreadsheet becomes a line, every value with the name of its column in front of it.",
)
NAMES = Entities({("spreadsheet",): 1.0, ("latex",): 1.0, ("archive",): 1.0, ("subtitles",): 1.0})


def english() -> GeneralWords:
    found = general_words([" ".join(PASSAGES)])
    assert found is not None and found.language == "en"
    return found


@pytest.fixture(scope="module")
def wording() -> Wording:
    return Wording(PASSAGES, english())


@pytest.mark.parametrize(
    ("question", "own"),
    [
        ("Where are captions in somebody's paper?", 0),
        ("When does the speaker's change begin another line of the transcript?", 2),
        ("How is the row of a spreadsheet written?", 3),
        ("What happens to it then?", None),  # ordinary words only
        ("Which one is skipped?", None),  # one word that tells something
        ("What do whales eat in the ocean?", None),  # words of no passage
    ],
)
def test_a_question_tells_the_passage_that_it_finds_first(
    wording: Wording, question: str, own: int | None
) -> None:
    found = [number for number, text in enumerate(PASSAGES) if wording.tells_its_passage(question, text)]
    assert found == ([] if own is None else [own])


@pytest.mark.parametrize(
    ("answer", "supported"),
    [
        ("They are left out.", True),
        ("It shows them there, and only the captions stay.", True),
        ("They are not left out.", False),  # its opposite
        ("Their caption stays.", True),  # an ending apart
        ("They are omitted.", False),  # a word of neither, though it means the same
        ("The 3 captions stay.", False),  # a number of neither
        ("In a paper.", False),  # what was asked, and ordinary words
        ("Yes.", False),
    ],
)
def test_an_answer_brings_what_its_passage_says(wording: Wording, answer: str, supported: bool) -> None:
    assert wording.supports(answer, "What becomes of the pictures in a paper?", PASSAGES[0]) is supported


FOREIGN = ("zebra", "quantised", "Kopenhagen", "47", "v2", "brzl")


@given(
    st.lists(st.sampled_from(("they", "are", "captions", "out", "stay")), max_size=6),
    st.sampled_from(FOREIGN),
    st.integers(0, 6),
)
def test_one_word_that_stands_nowhere_refuses_an_answer(said: list[str], foreign: str, at: int) -> None:
    answer = " ".join([*said[:at], foreign, *said[at:]])
    assert not Wording(PASSAGES, english()).supports(answer, "What becomes of pictures?", PASSAGES[0])


def test_without_a_language_s_words_only_the_passage_s_own_pass() -> None:
    blind = Wording(PASSAGES, None)
    assert not blind.tells_its_passage("What remains of the pictures in a paper?", PASSAGES[0])
    assert not blind.supports("They are left out.", "What becomes of pictures?", PASSAGES[0])


def test_a_question_without_an_entity_passes_only_by_its_words(wording: Wording) -> None:
    asked = ("What stays below the paragraph in a paper?", "Their captions.", PASSAGES[0], NAMES)
    assert question_flaw(*asked, Wording([], None)) == "names nothing"
    assert question_flaw(*asked, wording) is None
    vague = ("What is written then?", "Their captions stay.", PASSAGES[0], NAMES)
    assert question_flaw(*vague, wording) == "names nothing"


@pytest.mark.parametrize(
    ("question", "answer", "flaw"),
    [
        ("How long should it stay in there?", "40 minutes", "names nothing"),
        ("What is the temperature?", "180 degrees", "names nothing"),
        ("How many minutes does a cake bake?", "40 minutes", None),
        ("At how many degrees is a cake baked?", "180 degrees", None),
    ],
)
def test_a_question_about_a_passage_without_names_passes_only_by_its_words(
    question: str, answer: str, flaw: str | None
) -> None:
    """Any passed."""
    baked = "Bake the cake for 40 minutes at 180 degrees until a skewer comes out clean. Then let it cool."
    of_all = Wording([baked, *PASSAGES], general_words([baked, *PASSAGES]))
    assert question_flaw(question, answer, baked, NAMES, of_all) == flaw
    assert probe_flaw(question, answer, baked, NAMES, of_all) == flaw


def test_paragraphs_that_speak_to_the_reader_are_no_part_of_a_text(wording: Wording) -> None:
    """They were trained on where the rest names the subject."""
    retold = "A LaTeX paper loses its pictures.\n\nIts captions stay."
    for before, after in (("Sure, here you are!\n\n", ""), ("", "\n\nLet me know if you want it shorter!")):
        assert wording.without_chatter(before + retold + after, PASSAGES[0]) == retold
    assert wording.without_chatter("So be it!", PASSAGES[0]) == "So be it!"
    assert Wording(PASSAGES, None).without_chatter("Sure!\n\nPictures.", "") == "Sure!\n\nPictures."


class Strong:
    """Asks about pictures in words of its own, rightly, wrongly and vaguely."""

    name, at_once, together = "strong", 4, False

    def write(self, requests: Sequence[str]) -> Sequence[tuple[int, Text]]:
        said = (
            "Q: What becomes of pictures in a LaTeX paper?\nA: They are left out there.\n"
            "Q: And what happens to the captions of a LaTeX paper?\nA: They are translated.\n"
        )
        return [(place, Text(said if "LaTeX" in text else "")) for place, text in enumerate(requests)]


def test_augmentation_keeps_what_a_writer_says_in_its_own_words(tmp_path: Path) -> None:
    found = augment(PASSAGES, Strong(), tmp_path, kinds=["qa"])
    assert [row["response"] for row in found.rows] == ["They are left out there."]
    assert found.refused["not supported"] == 1
