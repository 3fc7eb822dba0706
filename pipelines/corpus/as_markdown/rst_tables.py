"""Write reStructuredText's tables as Markdown does: those with titles, below which cells are of one column.

What else there is (cells across columns below the titles, code in cells, no titles) stays as it stands.
"""

from __future__ import annotations

import csv
import re
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise, takewhile

from pipelines.corpus.as_markdown.heads import joined, titles_of
from pipelines.corpus.as_markdown.parts import table
from pipelines.corpus.as_markdown.spans import MOST_COLUMNS, Spanning, repeated

_GRID = re.compile(r"[ \t]*\+(?:-+\+)+[ \t]*$")  # a border
_SIMPLE = re.compile(r"[ \t]*=+(?: +=+)+[ \t]*$")
_UNDERLINE = re.compile(r"[ \t]*(?:=+(?: +=+)+|-+(?: +-+)*)[ \t]*$")  # of a row of titles
_OPTION = re.compile(r"[ \t]*:([\w-]+):[ \t]*(.*)$")
_BEYOND = re.compile(r"[ \t]*\.\. |.*::[ \t]*$")  # what a cell of one line cannot hold
MOST_LINES = 2000  # of a simple table
LISTED, SEPARATED = "list-table", "csv-table"
Rows = list[list[str]]


def drawn(lines: Sequence[str], at: int) -> tuple[list[str], int] | None:
    """Return a table that is drawn from a line on, and the number of the line behind it."""
    if _GRID.match(lines[at]):
        end = at
        while end < len(lines) and lines[end].strip()[:1] in ("+", "|"):
            end += 1
        rows = _in_grid([line.strip() for line in lines[at:end]])
    elif _SIMPLE.match(lines[at]):
        borders = _borders(lines, at)
        end = borders[-1] + 1
        rows = _between_borders(lines, borders)
    else:
        return None
    return (_written(rows, lines[at]), end) if rows else None


def listed(kind: str, lines: Sequence[str]) -> list[str]:
    """Return the table of a directive, whose lines are given; nothing for one that stays as it stands."""
    head = [*takewhile(str.strip, lines[1:])]
    options = _options(head)
    body = lines[1 + len(head) :]
    if "file" in options or "url" in options or any(map(_BEYOND.match, body)):
        return []
    rows = _items(body) if kind == LISTED else _separated(body, options)
    titled = options.get("header-rows") == "1" or (kind == SEPARATED and "header" in options)
    return _written(rows, lines[0]) if titled and _is_even(rows) else []


def _options(lines: Sequence[str]) -> dict[str, str]:
    """Return a directive's options, which may go on in the next line."""
    options: dict[str, str] = {}
    name = ""
    for line in lines:
        if found := _OPTION.match(line):
            name = found[1]
            options[name] = found[2].strip()
        elif name:
            options[name] += f"\n{line.strip()}"
    return options


def _written(rows: Rows, first: str) -> list[str]:
    """Return a table as far to the right as its first line, between empty lines."""
    indent = first[: len(first) - len(first.lstrip())]
    return ["", *(indent + line for line in table(rows)), ""]


def _is_even(rows: Rows) -> bool:
    return len(rows) > 1 and len(rows[0]) > 1 and len(set(map(len, rows))) == 1


def _joined(parts: Sequence[str]) -> str:
    return " ".join(" ".join(parts).split())


# Drawn ---------------------------------------------------------------------------------------------------


def _in_grid(lines: Sequence[str]) -> Rows:
    """Return the rows of a grid, the first one with its titles; none without these, or in doubt."""
    below = [at for at, line in enumerate(lines) if set(line) == {"+", "="}]  # the titles
    if len(below) != 1 or any(len(line) != len(lines[0]) for line in lines):
        return []
    edges = [at for at, sign in enumerate(lines[below[0]]) if sign == "+"]
    if len(edges) > MOST_COLUMNS + 1:
        return []
    titles = joined(_grid_titles(lines[: below[0] + 1], edges))
    rows = _grid_rows(lines[below[0] :], edges)
    return [titles, *rows] if titles and rows else []


def _grid_rows(lines: Sequence[str], edges: Sequence[int]) -> Rows:
    """Return the rows below a grid's titles; none where a cell is of several columns, or more than a line can
    hold."""
    rules = {at: found for at, line in enumerate(lines) if any(found := _ruled(line, edges))}
    even = all(_is_even_at(edges, line, rules.get(at, ())) for at, line in enumerate(lines))
    whole = len(lines) > 1 and all(all(rules.get(at, [False])) for at in (0, len(lines) - 1))
    columns = [[line[left + 1 : right] for line in lines] for left, right in pairwise(edges)]
    if not (even and whole) or any(_BEYOND.match(piece) for pieces in columns for piece in pieces):
        return []
    ruled = zip(*rules.values(), strict=True)
    said = [
        _in_column(pieces, [*zip(rules, own, strict=True)])
        for pieces, own in zip(columns, ruled, strict=True)
    ]
    return [[*row] for row in zip(*said, strict=True)]


def _grid_titles(lines: Sequence[str], edges: Sequence[int]) -> Rows:
    """Return the rows of a grid's titles, one across columns in each of these; none where their borders do
    not fit."""
    columns = [*pairwise(edges)]
    rows: Rows = []
    parts: list[list[str]] = [[] for _ in columns]
    for line in lines:
        crossed = [at for at in edges if line[at] in "|+"]
        if edges[0] not in crossed or edges[-1] not in crossed:
            return []
        ruled = [set(line[left + 1 : right]) in ({"-"}, {"="}) for left, right in columns]
        if any(ruled):
            rows.append([_joined(own) if done else "" for own, done in zip(parts, ruled, strict=True)])
            parts = [[] if done else own for own, done in zip(parts, ruled, strict=True)]
        for own, (left, right), done in zip(parts, columns, ruled, strict=True):
            begin, end = crossed[bisect(crossed, left) - 1], crossed[bisect(crossed, right - 1)]
            own += [] if done or not rows else [line[begin + 1 : end]]
    return rows[1:]


def _ruled(line: str, edges: Sequence[int]) -> list[bool]:
    """Return for each column whether a rule crosses it."""
    return [
        line[left] == line[right] == "+" and set(line[left + 1 : right]) in ({"-"}, {"="})
        for left, right in pairwise(edges)
    ]


def _is_even_at(edges: Sequence[int], line: str, ruled: Sequence[bool]) -> bool:
    """Return whether a line has crossings where its rules begin and end, and bars at the other edges."""
    crossed = {edges[at + side] for at, is_ruled in enumerate(ruled) if is_ruled for side in (0, 1)}
    return all(line[at] == ("+" if at in crossed else "|") for at in edges)


def _in_column(pieces: Sequence[str], rules: Sequence[tuple[int, bool]]) -> list[str]:
    """Return what a column says in each row: below a rule a cell's text, else what the cell above says."""
    ends = [at for at, is_ruled in rules if is_ruled]
    said: list[str] = []
    text = ""
    for at, is_ruled in rules[:-1]:
        if is_ruled:
            text = _joined(pieces[at + 1 : ends[bisect(ends, at)]])
        said.append(text if is_ruled else repeated(text))
    return said


def _borders(lines: Sequence[str], at: int) -> list[int]:
    """Return the lines of a simple table's borders: three where it has titles."""
    found = [at]
    for end in range(at + 1, min(len(lines), at + MOST_LINES)):
        if lines[end].strip() == lines[at].strip():
            found.append(end)
            last = end + 1 == len(lines) or not lines[end + 1].strip()
            if len(found) == 3 or last:
                break
    return found


def _between_borders(lines: Sequence[str], borders: Sequence[int]) -> Rows:
    """Return the rows of a simple table; none where a cell goes on into the next column."""
    if len(borders) != 3:
        return []
    spans = [found.span() for found in re.finditer("=+", lines[borders[0]])]
    titles = titles_of(_simple_titles(lines[borders[0] + 1 : borders[1] + 1], spans))
    rows: Rows = []
    for line in lines[borders[1] + 1 : borders[2]]:
        cells = _in_columns([line], spans)
        if not cells or _BEYOND.match(line):
            return []
        if cells[0] or not rows:
            rows.append(cells)
        else:
            rows[-1] = [_joined(both) for both in zip(rows[-1], cells, strict=True)]
    rows = [row for row in rows if any(row)]
    return [titles, *rows] if titles and rows else []


def _simple_titles(lines: Sequence[str], columns: Sequence[tuple[int, int]]) -> list[list[Spanning]]:
    """Return the rows of a simple table's titles, each above its underline; none where one of these does not
    fit the columns."""
    rows: list[list[Spanning]] = []
    own: list[str] = []
    for line in lines:
        if not _UNDERLINE.match(line):
            own.append(line)
            continue
        under = [found.span() for found in re.finditer("[=-]+", line)]
        across = [_columns_over(columns, *span) for span in under]
        said = _in_columns(own, under)
        if not said or 0 in across or sum(across) != len(columns):
            return []
        rows.append([Spanning(*cell) for cell in zip(said, across, strict=True)])
        own = []
    return rows


def _columns_over(columns: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    """Return how many columns a part of an underline is below; 0 where it begins or ends within one."""
    found = [column for column in columns if begin <= column[0] and column[1] <= end]
    return len(found) if found and (found[0][0], found[-1][1]) == (begin, end) else 0


def _in_columns(lines: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Return what stands in each column; nothing where something stands between two."""
    between = [(0, spans[0][0]), *((end, begin) for (_, end), (begin, _) in pairwise(spans))]
    if any(line[end:begin].strip() for line in lines for end, begin in between):
        return []
    ends = [*(end for _, end in spans[:-1]), None]
    return [_joined([line[begin:end] for line in lines]) for (begin, _), end in zip(spans, ends, strict=True)]


# In directives -------------------------------------------------------------------------------------------


def _items(lines: Sequence[str]) -> Rows:
    """Return the rows of a list of lists."""
    rows: list[list[list[str]]] = []
    for line in lines:
        said = line.strip()
        if said.startswith("* -"):
            rows.append([[said[3:]]])
            indent = line.index("*") + 2
        elif rows and (said == "-" or said.startswith("- ")) and line.index("-") == indent:
            rows[-1].append([said[1:]])
        elif rows:
            rows[-1][-1].append(said)
        elif said:
            return []
    return [[_joined(cell) for cell in row] for row in rows]


def _separated(lines: Sequence[str], options: dict[str, str]) -> Rows:
    between = options.get("delim", ",")
    said = "\n".join([options.get("header", ""), *lines]).splitlines(keepends=True)
    said = [line.lstrip() for line in said if line.strip()]
    if len(between) != 1:
        return []
    try:
        rows = [*csv.reader(said, delimiter=between, skipinitialspace=True)]
    except csv.Error:
        return []
    return [[_joined([cell]) for cell in row] for row in rows]
