"""Read AsciiDoc's tables row by row."""

from __future__ import annotations

import csv
import re
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
    found = _Rows(columns[:MOST_COLUMNS], titled=titled)
    for cell in _cells(lines, mark):
        found.add(cell, write)
    return found.written()


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


class _Rows:
    """Rows of a table, without empty ones; where a cell takes several columns the others are empty, where it
    takes several rows it is repeated."""

    def __init__(self, columns: list[bool], *, titled: bool) -> None:
        self._columns = columns  # of each, whether its cells are AsciiDoc
        self._titled = titled
        self._spans = Spans()
        self._rows: list[list[str]] = []
        self._open: list[Spanning] = []  # cells of the last row
        self._free = [*range(len(columns))]  # its columns that have none
        self._only_titles = True  # all cells so far are marked as such
        self._heads: list[list[Spanning]] = []  # the first rows, which consist of titles
        self._behind = 0  # number of the row behind these

    def add(self, cell: Cell, write: Callable[[Cell], str]) -> None:
        """Add the next cell, which may be the last one of its row."""
        at = self._free[0]
        across = min(cell.across, len(self._columns) - at)
        said = write(replace(cell, is_page=cell.is_page or self._columns[at]))
        self._open.append(Spanning(said, across, cell.down))
        is_title = cell.is_title or (self._titled and not self._heads)
        self._only_titles = self._only_titles and is_title
        self._free = [column for column in self._free if column >= at + across]
        if not self._free:
            self._end_row(titles=self._only_titles)

    def _end_row(self, *, titles: bool) -> None:
        row = self._spans.row(self._open, titles=titles) or [cell.said for cell in self._open]
        self._rows += [row] if any(row) else []
        if titles:
            self._heads.append(self._open)
            self._behind = len(self._rows)
        self._open = []
        self._spans.pass_full_rows(len(self._columns))
        self._free = [column for column in range(len(self._columns)) if column not in self._spans.below]

    def written(self) -> tuple[list[list[str]], bool]:
        """Return the rows, and whether the first one holds titles: those of several rows of titles joined."""
        if self._open:
            self._end_row(titles=self._titled and not self._rows)
        if len(self._heads) <= self._titled or self._behind == len(self._rows):
            return self._rows, self._titled
        titles = titles_of(self._heads)
        return ([titles, *self._rows[self._behind :]], True) if titles else (self._rows, False)
