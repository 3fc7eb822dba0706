"""JSON of strangers: every fault is a ValueError, every text can be encoded."""

from __future__ import annotations

import pytest

from recovery.errors import InputError
from recovery.untrusted_json import parse, parse_object


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "1" * 5000, "{", b"\xff", ""])
def test_every_fault_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_half_characters_are_replaced_and_halves_joined_at_any_depth() -> None:
    assert parse('"half \\ud83d of a face"') == "half � of a face"
    assert parse(b'[{"\\uDC00": ["\\ud83d\\ude00"]}, 1, null]') == [{"�": ["😀"]}, 1, None]


def test_an_object_is_asked_for() -> None:
    assert parse_object("{}") == {}
    with pytest.raises(ValueError, match="not an object"):
        parse_object("[]")


def test_an_error_is_one_line() -> None:
    assert str(InputError("Invalid data\n  at\tbyte 3\n")) == "Invalid data at byte 3"
    assert str(InputError("two  spaces")) == "two  spaces"
