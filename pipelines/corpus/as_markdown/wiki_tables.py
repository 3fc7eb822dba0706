"""Write a MediaWiki's table as Markdown does, with a head where its first rows consist of titles.

Later ones begin a table of their own, but for sums. What a cell says is repeated below where it takes more
rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pipelines.corpus.as_markdown.heads import Parts
from pipelines.corpus.as_markdown.spans import Spanning, Spans, spanning

_BETWEEN = {"|": re.compile(r"\|\|"), "!": re.compile(r"\|\||!!")}
_VALUE = r"\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'|]*))"
_ACROSS, _DOWN = (re.compile(rf"(?<![\w-]){name}{_VALUE}", re.I) for name in ("colspan", "rowspan"))
_ONLY_SETS = re.compile(r"(?:\s*[\w-]++\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=]+(?!\S)))+\s*")


@dataclass
class _Row:
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


class WikiTable:
    """The caption and the rows of a table, line by line."""

    def __init__(self) -> None:
        self._caption = ""
        self._rows = [_Row()]
        self._depth = 1  # of tables in one another
        self._nests = False

    def takes(self, line: str) -> bool:
        """Take a line: a new row, cells, or more of the last cell; return whether the table goes on."""
        row = self._rows[-1]
        if line.startswith("|}"):
            self._depth -= 1
        elif line.startswith("{|"):
            self._depth += 1
            self._nests = True
        elif line.startswith("|-"):
            self._rows.append(_Row())
        elif line.startswith("|+") and not self._rows[0].cells:
            self._caption = _cell(line[2:]).said
        elif line.startswith(("|", "!")):
            cells = [_cell(said) for said in _BETWEEN[line[0]].split(line[1:].removeprefix("+"))]
            row.cells += cells
            row.heads += len(cells) if line[0] == "!" else 0
        elif row.cells and line.strip():
            last = row.cells[-1]
            row.cells[-1] = last._replace(said=f"{last.said} {line.strip()}".strip())
        return self._depth > 0

    def written(self) -> list[str]:
        """Return the table's lines, below its caption."""
        spans = Spans()
        parts = Parts()
        for row in self._rows:
            if not row.cells:
                continue
            goes_on = bool(spans.below)
            is_below = goes_on and parts.has_open_titles and len(row.cells) == row.heads
            is_head = row.has_titles or is_below
            found = spans.row(row.cells, titles=is_head)
            if not (is_head and parts.add_titles(row.cells, in_doubt=self._nests or goes_on)):
                parts.add(found if found and row.is_whole else row.said)
        caption = ["", self._caption] if self._caption else []
        return [*caption, *parts.written()]


def _cell(written: str) -> Spanning:
    """Return what a cell says, without its attributes."""
    attributes, bar, said = written.partition("|")
    is_set = bar and "=" in attributes and "[" not in attributes
    if not is_set or not (said or _ONLY_SETS.fullmatch(attributes)):
        return Spanning(written.strip())
    return spanning(said.strip(), _value(_ACROSS, attributes), _value(_DOWN, attributes))


def _value(pattern: re.Pattern[str], attributes: str) -> str | None:
    found = pattern.search(attributes)
    return next(filter(None, found.groups()), "") if found else None
