"""Every family through loading, sampling, training, saving and adapters, as docs/models.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.families import FAMILIES, Family
from tests.support.family_table import PAGE, tried

FAST = [family for family in FAMILIES if family.fast]
SLOW = [family for family in FAMILIES if not family.fast]


def check(family: Family, folder: Path) -> None:
    line = tried(family, folder).line()
    assert line in PAGE.read_text(encoding="utf-8").splitlines(), line


@pytest.mark.parametrize("family", FAST, ids=lambda family: family.name)
def test_a_family_does_what_the_page_says(family: Family, tmp_path: Path) -> None:
    check(family, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", SLOW, ids=lambda family: family.name)
def test_every_other_family_too(family: Family, tmp_path: Path) -> None:
    check(family, tmp_path)


def test_the_page_has_a_row_for_each_family_and_no_other() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[1:]] == [
        family.name for family in FAMILIES
    ]
