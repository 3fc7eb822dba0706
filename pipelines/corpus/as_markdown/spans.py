"""Repeat what a table's cell says in the rows below into which it goes on, so that a row has all its columns.

A row is as its table's file says or not at all: in doubt it stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from typing import NamedTuple

LONGEST = 80  # characters of a cell that is repeated; of a longer one the cells below are empty
MOST_COLUMNS = 100  # of a table in which cells are followed
MOST_ACROSS, MOST_DOWN = 1000, 65534  # columns and rows that HTML lets a cell take
_NUMBER = re.compile(r"\s*\+?0*([0-9]{0,6})")


class Spanning(NamedTuple):
    """What a cell says, and how many columns and rows it takes."""

    said: str
    across: int = 1
    down: int = 1


def repeated(said: str) -> str:
    """Return what a cell below says into which another one goes on."""
    return said if len(said) <= LONGEST else ""


def spanning(said: str, across: str | None, down: str | None) -> Spanning:
    """Read the numbers of columns and of rows as HTML does; 0 rows are all that follow."""
    return Spanning(said, min(_number(across) or 1, MOST_ACROSS), min(_number(down), MOST_DOWN) or MOST_DOWN)


def _number(written: str | None) -> int:
    found = _NUMBER.match(written or "")
    return int(found[1] or 0) if found and any(map(str.isdecimal, found[0])) else 1


class Spans:
    """The cells of a table's rows so far that go on below."""

    def __init__(self) -> None:
        self.below: dict[int, tuple[str, int]] = {}  # by column: what is said, and in how many more rows
        self.lost = False  # cells overlap, or there are too many: where later ones stand is not known
        self._apart = False  # a title is of several columns: nothing is repeated

    def row(self, cells: Sequence[Spanning], *, titles: bool = False) -> list[str] | None:
        """Return the next row with a cell in each column; None where that is in doubt.

        A cell across columns leaves the others empty, and nothing is repeated in its row or of it; titles are
        not repeated either, as they say nothing of a row.
        """
        above = self.below
        columns = None if self.lost else _columns(cells, above)
        if columns is None:
            self.lose()
            return None
        whole = all(cell.across == 1 for cell in cells)
        self._apart = self._apart or (titles and not whole)
        repeats = whole and not self._apart and any(cell.said for cell in cells)
        placed = {at: said if repeats else "" for at, (said, _) in above.items()}
        self.below = {at: (said, rows - 1) for at, (said, rows) in above.items() if rows > 1}
        for at, cell in zip(columns, cells, strict=True):
            taken = range(at, at + cell.across)
            placed |= dict.fromkeys(taken, "") | {at: cell.said}
            if cell.down > 1:
                said = "" if titles or cell.across > 1 else repeated(cell.said)
                self.below |= dict.fromkeys(taken, (said, cell.down - 1))
        return [placed[at] for at in range(len(placed))] if set(placed) == set(range(len(placed))) else None

    def lose(self) -> None:
        """Know nothing of the rows to come, as where rows or cells are hidden."""
        self.lost = True
        self.below = {}

    def pass_full_rows(self, columns: int) -> None:
        """Pass the rows that have no cells of their own, as cells from above take all columns."""
        if len(self.below) == columns:
            fewest = min(rows for _, rows in self.below.values())
            left = {at: (said, rows - fewest) for at, (said, rows) in self.below.items()}
            self.below = {at: (said, rows) for at, (said, rows) in left.items() if rows}


def _columns(cells: Sequence[Spanning], above: Container[int]) -> list[int] | None:
    """Return the first column of each cell; None where one meets a cell from above, or there are too many."""
    found: list[int] = []
    at = 0
    for cell in cells:
        while at in above:
            at += 1
        found.append(at)
        at += cell.across
        if at > MOST_COLUMNS or any(column in above for column in range(found[-1], at)):
            return None
    return found
