"""Rows that are all too long are told before one by one is left out, with the same error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.prompts.lengths import Limit, fitting, require_fitting
from pipelines.prompts.prompt_sources import Prompt
from recovery.errors import InputError


def row(letters: int) -> Prompt:
    return Prompt([{"role": "user", "content": "a" * letters}])


def limit(most: int, seen: list[Prompt] | None = None) -> Limit:
    def letters(row: Prompt, most: float) -> int:
        if seen is not None:
            seen.append(row)
        return len(row.text)

    return Limit(most, f"have more than {most} letters", letters)


def left_by_all(rows: list[Prompt], limits: list[Limit]) -> list[Prompt]:
    stage: Any = SimpleNamespace(say=lambda line: None)
    for one in limits:
        rows = fitting(rows, one, stage, "prompts")
    return rows


@pytest.mark.parametrize("order", [(7, 5, 4), (4, 5, 7), (7, 4, 4)])
def test_the_limit_that_leaves_none_is_named(order: tuple[int, ...]) -> None:
    rows, limits = [row(5), row(6), row(8)], [limit(most) for most in order]
    with pytest.raises(InputError) as at_once:
        require_fitting(rows, limits, "prompts")
    with pytest.raises(InputError) as one_by_one:
        left_by_all(rows, limits)
    assert str(at_once.value).partition(";")[0] == str(one_by_one.value).partition(";")[0]


def test_no_more_rows_are_looked_at_than_up_to_one_that_fits() -> None:
    seen: list[Prompt] = []
    rows = [row(5), row(3), row(2)]
    require_fitting(rows, [limit(4, seen), limit(3)], "prompts")
    assert seen == rows[:2]
    require_fitting([], [limit(4)], "prompts")
