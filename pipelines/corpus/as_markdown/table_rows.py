"""Split the lines of a table into rows of cells, by what separates its columns.

A quotation mark that opens a cell and is not closed as it should be is a character: it would take all rows
below into its cell.
"""

from __future__ import annotations

import csv
import re
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from itertools import islice, pairwise
from typing import Literal, NamedTuple

LONGEST_ROW = 2**22  # characters of a row, over all lines that it spans
MOST_LINES = MOST_CELLS = 2**16  # of a row
MOST_AHEAD = 16  # lines in which the columns' names are looked for below titles
DELIMITERS = ",;\t|"
NONE = "\x1f"  # separates the cells of a table of one column, as it is in no text
SEPARATOR = re.compile(r'"?sep=([\t !#-/:-@\[-`{-~])"?\s*', re.I)  # a first line for Excel names it
QUOTED = re.compile(r'"[^"]*"?')


class Opening(NamedTuple):
    """How a table begins."""

    header: str  # its line
    delimiter: str  # separates the columns
    before: int  # lines above the header
    is_named: bool  # the delimiter, by a line above


def opening_of(text_lines: Iterator[str]) -> Opening:
    """Read a table up to its header, past blank lines and the one that names what separates columns."""
    before = 0
    delimiter = ""
    for line in text_lines:
        named = None if delimiter else SEPARATOR.fullmatch(line)
        if named:
            delimiter = named[1]
        elif line.strip():
            return Opening(line, delimiter or _delimiter(line), before, bool(delimiter))
        before += 1
    return Opening("", delimiter or DELIMITERS[0], before, bool(delimiter))


class Rows:
    """The rows of a table; ends with csv.Error at a row that is too long, of which `line` is the last one."""

    def __init__(self, text_lines: Iterator[str]) -> None:
        csv.field_size_limit(LONGEST_ROW)
        opening = opening_of(text_lines)
        self._lines = _Lines(opening, text_lines)
        self._delimiter = opening.delimiter
        self.titles: list[str] = []  # lines of text above the columns' names
        if not opening.is_named and len(opening.header) <= LONGEST_ROW:
            self._look_below(opening.header)

    def _look_below(self, first: str) -> None:
        """Where the first line holds no separator, or text's commas, look for columns below: without any it
        is the name of the only one."""
        is_one = len(self._alone(first)) < 2
        if not is_one and first.count(self._delimiter) > first.count(f"{self._delimiter} "):
            return
        above, delimiter = _below_titles(self._lines.ahead())
        if delimiter:
            titles = (line.strip().strip('"') for line in islice(self._lines.given(), above))
            self.titles = list(filter(None, titles))
            self._lines.begin_row()
            self._delimiter = delimiter
        elif is_one and first.count('"') % 2 == 0:  # else the name goes on in the next line
            self._delimiter = NONE

    @property
    def line(self) -> int:
        """The number of the last line that was read, in the file."""
        return self._lines.number

    def __iter__(self) -> Iterator[list[str]]:
        while not (yield from self._sound_rows()):
            yield self._alone(self._lines.back_to_the_second())

    def _sound_rows(self) -> Generator[list[str], None, bool]:
        """Yield rows up to the first whose quotation marks are not those of cells; return whether none is."""
        lines = self._lines
        holds_no_tabs = self._delimiter == "\t"  # a cell, also one of several lines
        try:
            for row in _cells(lines.given(), self._delimiter, strict=True):
                if len(row) > MOST_CELLS:
                    lines.is_too_long = True
                    raise csv.Error(f"more than {MOST_CELLS:,} cells")
                if holds_no_tabs and len(lines.of_row) > 1 and any("\t" in cell for cell in row):
                    return False
                lines.begin_row()
                yield row
        except csv.Error:
            if lines.is_too_long and not (holds_no_tabs and len(lines.of_row) > 1):
                raise
            return False
        return True

    def _alone(self, line: str) -> list[str]:
        """Split a line by itself; a quotation mark without another is a character."""
        quoting: Literal[0, 3] = csv.QUOTE_NONE if line.count('"') % 2 else csv.QUOTE_MINIMAL
        return next(_cells([line], self._delimiter, quoting=quoting), [])


def _cells(
    lines: Iterable[str], delimiter: str, *, strict: bool = False, quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> Iterator[list[str]]:
    spaced = delimiter != " "  # a quotation may begin behind the space that follows a comma
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=spaced, strict=strict, quoting=quoting)


class _Lines:
    """The lines of a table from its header on, of which those of one row can be read anew."""

    def __init__(self, opening: Opening, rest: Iterator[str]) -> None:
        self._waiting = deque([opening.header])
        self._rest = rest
        self.number = opening.before  # of the last line, in the file
        self.is_too_long = False  # the row that is being read
        self.begin_row()

    def given(self) -> Iterator[str]:
        while (line := self._waiting.popleft() if self._waiting else next(self._rest, None)) is not None:
            self.number += 1
            self.of_row.append(line)
            self.size += len(line)
            if self.size > LONGEST_ROW or len(self.of_row) > MOST_LINES:
                self.is_too_long = True
                raise csv.Error(f"longer than {LONGEST_ROW:,} characters or {MOST_LINES:,} lines")
            yield line

    def begin_row(self) -> None:
        self.of_row: list[str] = []
        self.size = 0

    def back_to_the_second(self) -> str:
        """Go back to the second line of the row; return the first one."""
        first, *others = self.of_row
        self._waiting.extendleft(reversed(others))
        self.number -= len(others)
        self.is_too_long = False
        self.begin_row()
        return first

    def ahead(self) -> list[str]:
        """Return the next lines, some of them, without reading them."""
        while len(self._waiting) < MOST_AHEAD and sum(map(len, self._waiting)) < LONGEST_ROW:
            if (line := next(self._rest, None)) is None:
                break
            self._waiting.append(line)
        return list(self._waiting)


def _below_titles(ahead: list[str]) -> tuple[int, str]:
    """Return how many lines of text stand above the columns' names, and what separates these: of two rows as
    many stand in both, and more than in the first line. Text has spaces behind its commas, and numbers have
    digits around them."""
    filled = [(number, QUOTED.sub("", line)) for number, line in enumerate(ahead) if line.strip()]
    for (number, first), (_, second) in pairwise(filled):
        mark = _delimiter(first)
        between = re.compile(rf"{re.escape(mark)}(?! )")
        words = re.compile(rf"(?<!\d){between.pattern}|{between.pattern}(?!\d)")
        names = len(between.findall(first))
        if words.search(first) and ahead[0].count(mark) < names == len(between.findall(second)):
            return number, mark
    return 0, ""


def _delimiter(first: str) -> str:
    """Return what separates the columns' names most often; before a space, as in "Price, net", and inside
    quotes it counts only for want of it. Names hold commas, but no tabs."""
    outside = QUOTED.sub("", first)
    if "\t" in outside.strip():
        return "\t"

    def times(mark: str) -> tuple[int, int, int]:
        return outside.count(mark) - outside.count(f"{mark} "), outside.count(mark), first.count(mark)

    return max(DELIMITERS, key=times)
