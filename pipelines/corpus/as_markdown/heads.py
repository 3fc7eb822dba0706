"""Join the rows of titles above a table to one title a column, and tell such a row from one of sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, count, dropwhile

from pipelines.corpus.as_markdown.parts import table
from pipelines.corpus.as_markdown.spans import MOST_COLUMNS, Spanning

MOST = 3  # rows of titles: a table of more consists of such rows
# But years, dates and times, which are titles of columns too
_DATE = r"(?:1[5-9]|20)\d\d(?:[-/–]\d{1,4}){0,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}|\d{1,2}:\d\d"
_FIGURES = re.compile(rf"\W*+(?!(?:{_DATE})\W*$)\d(?:[\d\W]*|(?:[\d\W]*\d)? [^\W\d_]{{1,3}})")


def holds_figures(cells: Sequence[str]) -> bool:
    """Return whether cells hold numbers, as a row of sums does: marked like titles, it says nothing of the
    rows below."""
    return any(_FIGURES.fullmatch(cell) for cell in cells)


def titles_of(rows: Sequence[Sequence[Spanning]]) -> list[str]:
    """Return the title of each column, a group's before its own; none where it is in doubt of which column
    one is. A title above all columns says nothing of one."""
    rows = [*dropwhile(lambda cells: len(cells) < 2, rows)]
    if len(rows) > MOST:
        return []
    if len(rows) == 1:
        return [cell.said for cell in rows[0]] if all(cell.across == 1 for cell in rows[0]) else []
    grid: list[dict[int, str]] = [{} for _ in rows]  # what each row says, by column
    for at, cells in enumerate(rows):
        for cell in cells:
            if not _is_placed(cell, grid[at:]):
                return []
    return joined([[row[column] for column in sorted(row)] for row in grid])


def _is_placed(cell: Spanning, rows: Sequence[dict[int, str]]) -> bool:
    """Put a cell into all rows and columns that it takes, from the first that is free in the first row on;
    return whether there is room for it."""
    first = next(column for column in count() if column not in rows[0])
    columns = range(first, first + cell.across)
    if columns.stop > MOST_COLUMNS or cell.down > len(rows) or not rows[0].keys().isdisjoint(columns):
        return False
    for row in rows[: cell.down]:
        row.update(dict.fromkeys(columns, cell.said))
    return True


def joined(grid: Sequence[Sequence[str]]) -> list[str]:
    """Return what rows of titles say of each column, from above; nothing of rows that are not as wide as one
    another."""
    if len(grid) > MOST or len(set(map(len, grid))) != 1:
        return []
    return [": ".join(dict.fromkeys(filter(None, column))) for column in zip(*grid, strict=True)]


@dataclass
class _Part:
    heads: list[list[Spanning]] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    in_doubt: bool = False  # of which columns its titles are

    def written(self) -> list[str]:
        """Return the part's lines behind an empty one."""
        titles = titles_of(self.heads) if self.rows and not self.in_doubt else []
        heads = [titles] if titles else [[cell.said for cell in cells] for cells in self.heads]
        return ["", *table([*heads, *self.rows], titled=bool(titles))]


class Parts:
    """A wiki's table in parts: rows below those of their titles, if any."""

    def __init__(self) -> None:
        self._parts = [_Part()]

    @property
    def has_open_titles(self) -> bool:
        """Return whether the last row is one of titles."""
        return bool(self._parts[-1].heads) and not self._parts[-1].rows

    def add(self, row: list[str]) -> None:
        self._parts[-1].rows.append(row)

    def add_titles(self, cells: list[Spanning], *, in_doubt: bool) -> bool:
        """Add a row marked as titles, behind rows in a part of its own; return False for one of sums."""
        part = self._parts[-1]
        if (part.heads or part.rows) and holds_figures([cell.said for cell in cells]):
            return False
        if part.rows:
            part = _Part()
            self._parts.append(part)
        part.in_doubt = part.in_doubt or (in_doubt and not part.heads)
        part.heads.append(cells)
        return True

    def written(self) -> list[str]:
        return [*chain.from_iterable(part.written() for part in self._parts)]
