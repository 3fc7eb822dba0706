"""Numbers as the dashboard writes them, each by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from dashboard.number_format import alike, number


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (math.inf, "–"),
        (0.0, "0"),
        (0.00123456, "0.001235"),
        (3e-7, "3.0e−07"),
        (9999.4, "9999"),
        (9999.7, "10 k"),
        (12_345.0, "12.35 k"),
        (-12_345.0, "−12.35 k"),
        (999_960.0, "1 M"),
        (2.5e9, "2.5 G"),
    ],
)
def test_a_number_has_four_digits_and_a_unit(value: float | None, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("ticks", "words"),
    [
        ([0, 500_000, 1_000_000], ["0", "0.5 M", "1 M"]),
        ([-20_000, 0, 5000], ["−20 k", "0", "5 k"]),
        ([0, 9000], ["0", "9000"]),
        ([], []),
    ],
)
def test_the_ticks_of_an_axis_have_the_unit_of_the_largest(ticks: Sequence[float], words: list[str]) -> None:
    assert list(map(alike(ticks), ticks)) == words
