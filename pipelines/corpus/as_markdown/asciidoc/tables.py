"""Read AsciiDoc's tables row by row."""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipelines.corpus.as_markdown.asciidoc.lines import is_remark
from pipelines.corpus.as_markdown.heads import titles_of
from pipelines.corpus.as_markdown.spans import MOST_COLUMNS, Spanning, Spans

MOST_REPEATED = 20  # times that a mark repeats a cell
_SPEC = r"(?:(?<!\S)(?:(\d{1,3})?(?:\.(\d{1,3}))?([+*]))?(?:[<^>](?:\.[<^>])?|\.[<^>])?([adehlmsv])?)?(?<!\\)"
_ESCAPED = re.compile(r"\\(?=[|!])")
_FORMAT = re.compile(r"\bformat\s*=\s*[\"']?([cdt])sv")
_SEPARATOR = re.compile(r"\bseparator\s*=\s*[\"']?(\\t|[^\s\"'])")
_SEPARATORS = {",": ",", ":": ":", "c": ",", "d": ":", "t": "\t"}
_COLS = re.compile(r"\bcols\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([^,\]\s]+))")
_OPTIONS = re.compile(r"(%[\w%-]+)|\bopt(?:ion)?s\s*=\s*(?:\"([^\"]*)\"|'([^']*)'|([\w-]+))")
_NAME = re.compile(r"[\w-]+")
_REPEATED = re.compile(r"(\d{1,3})\*")


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, and how many columns and rows it takes."""

    text: str
    across: int = 1
    down: int = 1
    is_page: bool = False  # written as a page of its own
    is_title: bool = False


def rows(
    lines: list[str], attributes: str, mark: str, write: Callable[[Cell], str]
) -> tuple[list[list[str]], bool]:
    """Return the rows of a table with what their cells say, and whether the first one holds titles."""
    titled = _is_titled(lines, attributes)
    lines = [line for line in lines if not is_remark(line)]
    form = _FORMAT.search(attributes)
    given = _SEPARATOR.search(attributes)
    between = _SEPARATORS.get(form[1] if form else mark)
    if between:
        return _separated(lines, given[1].replace("\\t", "\t") if given else between, write), titled
    mark = given[1] if given else mark
    columns = _columns(attributes) or [False] * max(1, _in_first_line(lines, mark))
    return _in_rows([*_cells(lines, mark)], columns[:MOST_COLUMNS], write, titled=titled)


def _is_titled(lines: list[str], attributes: str) -> bool:
    """Return whether the first row holds titles: as attributes say, else where an empty line follows it."""
    options = {name for given in _OPTIONS.findall(attributes) for name in _NAME.findall("".join(given))}
    if {"header", "noheader"} & options:
        return "header" in options
    return len(lines) > 1 and bool(lines[0].strip()) and not lines[1].strip()


def _separated(lines: list[str], between: str, write: Callable[[Cell], str]) -> list[list[str]]:
    """Return the rows of a table whose cells a character separates."""
    try:
        found = [*csv.reader((f"{line}\n" for line in lines), delimiter=between)]
    except csv.Error:
        found = [[line] for line in lines]
    return [[write(Cell(cell)) for cell in row[:MOST_COLUMNS]] for row in found if row]


def _columns(attributes: str) -> list[bool]:
    """Return, for each declared column, whether its cells are AsciiDoc; an empty list if no columns are
    declared."""
    found = _COLS.search(attributes)
    given = (found[1] or found[2] or found[3] or "").strip() if found else ""
    if given.isdecimal():
        return [False] * min(int(given), MOST_COLUMNS)
    columns: list[bool] = []
    for part in re.split(r"[,;]", given) if given else ():
        times = _REPEATED.match(part.strip())
        columns += [part.strip().endswith("a")] * (min(int(times[1]), MOST_COLUMNS) if times else 1)
    return columns


def _in_first_line(lines: list[str], mark: str) -> int:
    first = next((line for line in lines if line.strip()), "")
    return sum(cell.across for cell in _cells([first], mark))


def _cells(lines: list[str], mark: str) -> Iterator[Cell]:
    """Yield the cells of a table."""
    text = "\n".join(lines)
    end = 0
    now = [Cell("")]  # before the first mark
    for found in re.finditer(_SPEC + re.escape(mark), text):
        if end or text[: found.start()].strip():
            yield from _filled(now, text[end : found.start()])
        now = [_cell(found)] * (min(int(found[1] or 1), MOST_REPEATED) if found[3] == "*" else 1)
        end = found.end()
    yield from _filled(now, text[end:])


def _cell(found: re.Match[str]) -> Cell:
    spans = found[3] == "+"
    across = int(found[1] or 1) if spans else 1
    down = int(found[2] or 1) if spans else 1
    return Cell("", max(1, min(across, MOST_COLUMNS)), max(1, down), found[4] == "a", found[4] == "h")


def _filled(cells: list[Cell], text: str) -> Iterator[Cell]:
    said = _ESCAPED.sub("", text).strip()
    for cell in cells:
        yield replace(cell, text=said)


def _in_rows(
    cells: list[Cell], columns: list[bool], write: Callable[[Cell], str], *, titled: bool
) -> tuple[list[list[str]], bool]:
    """Put cells into rows, without empty ones; where a cell takes several columns the others are empty, where
    it takes several rows it is repeated. Join the titles of the first rows whose cells are all marked as
    such."""
    spans = Spans()
    found: list[list[str]] = []
    own: list[Spanning] = []  # cells of the open row
    heads: list[list[Spanning]] = []
    behind = 0  # number of the row behind these
    marked = True  # all cells so far are titles
    free = deque(range(len(columns)))  # its columns that have none
    for cell in cells:
        at = free[0]
        across = min(cell.across, len(columns) - at)
        page = replace(cell, is_page=cell.is_page or columns[at])
        own.append(Spanning(write(page), across, cell.down))
        marked = marked and (cell.is_title or (titled and not heads))
        while free and free[0] < at + across:
            free.popleft()
        if not free:
            found += _row(spans, own, titles=marked)
            if marked:
                heads.append(own)
                behind = len(found)
            own = []
            spans.pass_full_rows(len(columns))
            free.extend(column for column in range(len(columns)) if column not in spans.below)
    found += _row(spans, own, titles=titled and not found)
    if len(heads) <= titled or behind == len(found):
        return found, titled
    titles = titles_of(heads)
    return ([titles, *found[behind:]], True) if titles else (found, False)


def _row(spans: Spans, own: list[Spanning], *, titles: bool) -> list[list[str]]:
    row = spans.row(own, titles=titles) or [cell.said for cell in own]
    return [row] if any(row) else []
