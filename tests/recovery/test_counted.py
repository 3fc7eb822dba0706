"""A number with its noun."""

from __future__ import annotations

from recovery.counted import counted


def test_one_is_singular_and_thousands_are_set_apart() -> None:
    assert [counted(n, "step") for n in (0, 1, 2, 2000)] == ["0 steps", "1 step", "2 steps", "2,000 steps"]
