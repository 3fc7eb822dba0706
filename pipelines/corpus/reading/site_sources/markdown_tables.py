"""Write the tables that Markdown holds as HTML in bars, a row on a line.

A table by which a page is laid out stays as it is: one with code, headings, paragraphs or another table in
its cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pipelines.corpus.as_markdown import marked_rows
from pipelines.corpus.as_markdown.marked_rows import Row, cell_of
from pipelines.corpus.markup.page_rows import LONGEST_ROW
from pipelines.corpus.markup.parts import names
from pipelines.corpus.reading.site_sources.markdown_parts import Kind, Part

_CELLS = names("td th")
_AROUND = names("thead tbody tfoot tr")  # cells
_QUOTED = re.compile(r"\n[ \t]*>")
_LAYOUT = re.compile(r"\n[ \t]*\n|^[ \t]*(?:#|```|~~~)", re.M)

Read = Callable[[Sequence[Part]], str]


def table_at(parts: Sequence[Part], at: int, read: Read) -> tuple[list[str], int] | None:
    """Return the lines of the table that begins with a part, and the number of the part behind it; None where
    none does that is read by its rows."""
    if _name(parts[at]) != "table" or parts[at].closing:
        return None
    end = next((n for n in range(at + 1, len(parts)) if _name(parts[n]) == "table"), None)
    if end is None or not parts[end].closing:
        return None
    inside = parts[at + 1 : end]
    lines = [] if any(_QUOTED.search(part.text) for part in inside) else _lines(inside, read)
    return (lines, end + 1) if lines else None


def _name(part: Part) -> str:
    """Return the name of an element; none of a component's, as of <Table>."""
    is_element = part.kind is Kind.TAG and (part.name.islower() or part.name.isupper())
    return part.name.lower() if is_element else ""


def _lines(parts: Sequence[Part], read: Read) -> list[str]:
    """Return the lines of a table below its caption; none of one that lays a page out."""
    around: list[Part] = []
    cells: list[list[tuple[Part, list[Part]]]] = [[]]  # of each row
    held = around
    for part in parts:
        name = _name(part)
        if name == "tr" and not part.closing:
            cells.append([])
        if name in _CELLS and not part.closing:
            held = []
            cells[-1].append((part, held))
        elif name in _CELLS or name in _AROUND:
            held = around
        else:
            held.append(part)
    said = [[(tag, read(inside).strip()) for tag, inside in row] for row in cells]
    if max(map(len, said)) < 2 or any(map(_lays_out, said)):
        return []
    above = read(around).strip()
    return [*([above, ""] if above else []), *marked_rows.written(map(_row, said))[1:]]


def _lays_out(row: Sequence[tuple[Part, str]]) -> bool:
    return sum(len(said) for _, said in row) > LONGEST_ROW or any(_LAYOUT.search(said) for _, said in row)


def _row(cells: Sequence[tuple[Part, str]]) -> Row:
    row = [cell_of(" ".join(said.replace("\\|", "|").split()), tag.text) for tag, said in cells]
    return Row(row, sum(_name(tag) == "th" for tag, _ in cells))
