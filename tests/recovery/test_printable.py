"""What documents, models and servers wrote reaches a terminal as text and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.printable import HIDDEN, JOINERS, one_line, printable, printable_json
from tests.support.hostile import PAYLOADS

ATTACKS = (
    "\x1b]0;new title\x07",
    "\x1b]52;c;aGFybQ==\x07",
    "\x1b[8mhidden\x1b[0m",
    "\x9b31mred",
    "over\rwritten",
    "back\x08\x08space",
    "\u202etxt.exe",
    "\u2066\u2069",
)


@pytest.mark.parametrize("text", [*ATTACKS, *PAYLOADS], ids=ascii)
def test_no_character_that_a_terminal_obeys_is_left(text: str) -> None:
    shown = printable(text)
    assert not any((ord(one) < 32 and one not in "\t\n") or 127 <= ord(one) < 160 for one in shown)
    assert not set(shown) & set("\u202e\u2066\u2067\u2069\u200b\ufeff")


@given(st.text())
def test_a_quotation_is_one_short_printable_line(text: str) -> None:
    shown = one_line(text, 20)
    assert len(shown) <= 20
    assert len(shown.splitlines()) <= 1
    assert HIDDEN.search(shown.translate(dict.fromkeys(map(ord, JOINERS)))) is None


@given(st.text())
def test_a_json_document_says_the_same_and_is_printable(text: str) -> None:
    document = json.dumps({"x": text, text: [text]}, ensure_ascii=False)
    shown = printable_json(document)
    assert json.loads(shown) == json.loads(document)
    assert HIDDEN.search(shown) is None
