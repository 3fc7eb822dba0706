"""Write a MediaWiki's table as Markdown does, with a head where its first rows consist of titles.

Later ones begin a table of their own, but for sums. What a cell says is repeated below where it takes more
rows.
"""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown import marked_rows
from pipelines.corpus.as_markdown.marked_rows import Row, cell_of
from pipelines.corpus.as_markdown.spans import Spanning

_BETWEEN = {"|": re.compile(r"\|\|"), "!": re.compile(r"\|\||!!")}
_ONLY_SETS = re.compile(r"(?:\s*[\w-]++\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'=]+(?!\S)))+\s*")


class WikiTable:
    """The caption and the rows of a table, line by line."""

    def __init__(self) -> None:
        self._caption = ""
        self._rows = [Row()]
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
            self._rows.append(Row())
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
        caption = ["", self._caption] if self._caption else []
        return [*caption, *marked_rows.written(self._rows, nests=self._nests)]


def _cell(written: str) -> Spanning:
    """Return what a cell says, without its attributes."""
    attributes, bar, said = written.partition("|")
    is_set = bar and "=" in attributes and "[" not in attributes
    if not is_set or not (said or _ONLY_SETS.fullmatch(attributes)):
        return Spanning(written.strip())
    return cell_of(said.strip(), attributes)
