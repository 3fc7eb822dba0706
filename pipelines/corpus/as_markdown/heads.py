"""Join the rows of titles above a table to one title a column, and tell such a row from one of sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count, dropwhile

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
    grid: dict[tuple[int, int], str] = {}
    for row, cell in ((row, cell) for row, cells in enumerate(rows) for cell in cells):
        first = next(column for column in count() if (row, column) not in grid)
        across, down = range(first, first + cell.across), range(row, row + cell.down)
        if across.stop > MOST_COLUMNS or down.stop > len(rows) or any((row, at) in grid for at in across):
            return []
        grid |= {(y, x): cell.said for y in down for x in across}
    return joined([[grid[place] for place in sorted(grid) if place[0] == row] for row in range(len(rows))])


def joined(grid: Sequence[Sequence[str]]) -> list[str]:
    """Return what rows of titles say of each column, from above; nothing of rows that are not as wide as one
    another."""
    if len(grid) > MOST or len(set(map(len, grid))) != 1:
        return []
    return [": ".join(dict.fromkeys(filter(None, column))) for column in zip(*grid, strict=True)]


class Part:
    """Rows of a wiki's table, below those of their titles, if any."""

    def __init__(self) -> None:
        self.heads: list[list[Spanning]] = []
        self.rows: list[list[str]] = []
        self.in_doubt = False  # a cell of the part before goes on in the titles

    def written(self) -> list[str]:
        """Return the part's lines behind an empty one."""
        titles = titles_of(self.heads) if self.rows and not self.in_doubt else []
        heads = [titles] if titles else [[cell.said for cell in cells] for cells in self.heads]
        return ["", *table([*heads, *self.rows], titled=bool(titles))]


def part_for_titles(parts: list[Part], cells: Sequence[str]) -> Part | None:
    """Return the part that a row marked as titles belongs above, a new one behind rows; nothing for sums."""
    if (parts[-1].heads or parts[-1].rows) and holds_figures(cells):
        return None
    if parts[-1].rows:
        parts.append(Part())
    return parts[-1]
