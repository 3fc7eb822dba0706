"""Words that differ are marked, in bounded time whatever the texts are."""

from __future__ import annotations

import time

import pytest

from dashboard import word_difference
from dashboard.word_difference import LONGEST, compared, marked
from db.redact import HIDDEN


def test_words_that_the_other_lacks_are_marked() -> None:
    assert marked("a red, big cat", "a big cat", "ins") == "a <ins>red, </ins>big cat"
    assert marked("same", "same", "ins") == "same"
    assert marked("<b>", "x", "ins") == "<ins>&lt;b&gt;</ins>"
    assert "(500 more characters)" in marked("a" * 1000, "a", "ins", 500)
    long = "word " * 400 + "end"
    assert "<ins>new</ins>" in marked(long.replace("end", "new"), long, "ins")


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("کتاب می‌خواهم", "کتاب می‌خوانم", "کتاب <ins>می‌خواهم</ins>"),
        ("की माँ", "का माँ", "<ins>की</ins> माँ"),
        ("so 👨‍👩‍👧 it is", "so 👨‍👩‍👦 it is", "so <ins>👨‍👩‍👧</ins> it is"),
        ("cafe\u0301 au lait", "cafe au lait", "<ins>cafe\u0301</ins> au lait"),
        ("a\u200cb", "a b", "<ins>a‹200C›b</ins>"),  # joins nothing here
    ],
)
def test_no_word_is_cut_at_what_joins_it(one: str, other: str, shown: str) -> None:
    assert marked(one, other, "ins") == shown


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("👩" + "\u200d👩" * 800, "👩" + "\u200d👩" * 799),
        ("\u200d" * 3000, "\u200d" * 2999),
        ("a b " * 750, "b a " * 750),
        ("no no no, " * 300, "no no, no " * 300),
        ("a " * 1500, "a " * 1499 + "b"),
        (" ".join(f"w{i % 40}" for i in range(900)), " ".join(f"w{i * 7 % 40}" for i in range(900))),
    ],
)
def test_looping_answers_take_bounded_time(one: str, other: str) -> None:
    """Ten such answers took 257 seconds."""
    word_difference._both.cache_clear()
    begun = time.process_time()
    for number in range(10):
        shown = marked(f"{number} {one}", f"{number} {other}", "ins", 100_000)
    assert time.process_time() - begun < 3
    assert "not compared word by word" in shown or "<ins>" in shown


def test_a_key_is_hidden_before_its_words_are_compared() -> None:
    shown = marked("use sk-abcdefgh12345678 now", "use it now", "ins")
    assert "sk" not in shown and HIDDEN in shown.replace("</ins>", "").replace("<ins>", "")


def test_both_sides_of_a_pair_are_compared_once() -> None:
    word_difference._both.cache_clear()
    one, other = "a red, big cat", "a big dog"
    assert compared(one, other) == (
        (True, "a "),
        (False, "red, "),
        (True, "big "),
        (False, "cat"),
        (True, ""),
    )
    theirs = compared(other, one)
    assert theirs is not None and "".join(words for _, words in theirs) == other
    assert word_difference._both.cache_info().misses == 1


def test_what_is_remembered_is_small() -> None:
    word_difference._both.cache_clear()
    assert compared("a" * (LONGEST + 1), "b") is None
    assert word_difference._both.cache_info().currsize == 0
