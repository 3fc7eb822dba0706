"""Two homes are compared question by question."""

from __future__ import annotations

import pytest

from benchmarks.outcomes.two_homes import table
from tests.support.eval_items import items


def test_the_difference_is_that_of_the_second_home() -> None:
    [row] = table({"ifeval a": items("pfff"), "only here": items("p")}, {"ifeval a": items("fppf")})
    assert (row["first"], row["second"], row["n"], row["answered otherwise"]) == ("0.250", "0.500", 4, 3)
    assert str(row["difference"]).startswith("+0.250 (-")


def test_other_questions_are_refused() -> None:
    with pytest.raises(SystemExit, match="other questions"):
        table({"ifeval a": items("pf")}, {"ifeval a": items("p")})
