"""A share of tokenised documents: four stretches, each in the middle of its quarter, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipelines.corpus.document_sample import sample, stretches
from pipelines.corpus.token_file import Tokens


@pytest.mark.parametrize(
    ("total", "share", "found"),
    [
        (100, 0.2, [(10, 15), (35, 40), (60, 65), (85, 90)]),  # of 25 tokens the five in the middle
        (7, 0.5, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (8, 0.9, [(0, 8)]),  # stretches of two leave nothing between them
        (5, 1.0, [(0, 5)]),  # stretches of one would leave a token out
        (3, 0.1, [(0, 3)]),  # fewer tokens than stretches
    ],
)
def test_where_stretches_lie(total: int, share: float, found: list[tuple[int, int]]) -> None:
    assert stretches(total, share) == found


def below_80(ids: Sequence[int]) -> str:
    """Spell ids as numbers, the last ones as white space."""
    return " ".join(str(number) if number < 80 else " " for number in ids)


def test_documents_are_cut_where_a_stretch_begins_or_ends_and_blank_ones_do_not_count() -> None:
    ends = (12, 40, 61, 100)
    spans = zip((0, *ends), ends, strict=False)
    tokens = Tokens.of((range(begin, end), [True] * (end - begin)) for begin, end in spans)
    texts, taken = sample(tokens, 0.2, below_80)
    assert texts == ["10 11", "12 13 14", "35 36 37 38 39", "60", "61 62 63 64"]
    assert taken == 2 + 3 + 5 + 1 + 4
    whole, count = sample(tokens, 1.0, below_80)
    assert [text.split()[0] for text in whole] == ["0", "12", "40", "61"] and count == 100
