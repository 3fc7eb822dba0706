"""Write the rows of a table whose cells are marked as titles or not, as wikis and HTML mark them.

Rows of titles are the head of those below, but for sums. What a cell says is repeated below where it takes
more rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipelines.corpus.as_markdown.heads import Parts
from pipelines.corpus.as_markdown.spans import Spanning, Spans, spanning

_VALUE = r"\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'|>]*))"
_ACROSS, _DOWN = (re.compile(rf"(?<![\w-]){name}{_VALUE}", re.I) for name in ("colspan", "rowspan"))


@dataclass
class Row:
    cells: list[Spanning] = field(default_factory=list)
    heads: int = 0  # of these

    @property
    def said(self) -> list[str]:
        return [cell.said for cell in self.cells]

    @property
    def has_titles(self) -> bool:
        """Return whether it consists of titles; one alone is that of a part of the table."""
        return 1 < len(self.cells) == self.heads

    @property
    def is_whole(self) -> bool:
        """Return whether no cell takes several columns."""
        return all(cell.across == 1 for cell in self.cells)


def written(rows: Iterable[Row], *, nests: bool = False) -> list[str]:
    """Return the lines of a table in Markdown; of one that nests another no titles are sure."""
    spans = Spans()
    parts = Parts()
    for row in rows:
        if not row.cells:
            continue
        goes_on = bool(spans.below)
        is_below = goes_on and parts.has_open_titles and len(row.cells) == row.heads
        is_head = row.has_titles or is_below
        found = spans.row(row.cells, titles=is_head)
        if not (is_head and parts.add_titles(row.cells, in_doubt=nests or goes_on)):
            parts.add(found if found and row.is_whole else row.said)
    return parts.written()


def cell_of(said: str, attributes: str) -> Spanning:
    """Return a cell that takes as many columns and rows as its attributes say."""
    return spanning(said, _value(_ACROSS, attributes), _value(_DOWN, attributes))


def _value(pattern: re.Pattern[str], attributes: str) -> str | None:
    found = pattern.search(attributes)
    return next(filter(None, found.groups()), "") if found else None
