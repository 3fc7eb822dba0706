"""Read tables whose columns have titles: what each row's key has in each other column.

A cell becomes a sentence that needs no table around it: "Option: timeout; Default: 30". No sentence is made
of what a guess would answer (a column of yes and no), nor of rows that are not as wide as their titles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipelines.corpus.markup.lines import plain

FEWEST_ROWS = 2  # of a single one it cannot be told what a guess would answer
FEWEST_COLUMNS = 2  # the key, and what is said of it
THREE_WAYS = 3  # values: a column of yes and no has fewer
GUESSED = 1 / 4  # share of a column's cells from which on their value may be guessed
SAYING = 4  # words: a cell of fewer is a name or figures
LONGEST_KEY = 80  # characters of the cell that says what a row is about
ROW = re.compile(r"\s*\|")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_RULE = frozenset("|:- \t")  # the characters of the line below the titles
_NOTES = re.compile(r"(?:[\s,\\]*[(\[][#^]?[\w-]{1,8}[)\]]_?)+")  # their marks alone: (1), (3)
_ENDS = tuple(".!?…。！？")


Split = Callable[[str], list[str]]  # into sentences


class Cell(NamedTuple):
    """What a row's key has in a column, and the lines that say so, as they stand: the titles and the row."""

    said: str
    lines: tuple[str, str]


def cells(line: str) -> list[str]:
    """Return the cells of a row, a bar within one without its backslash."""
    return [cell.replace("\\|", "|") for cell in _BETWEEN_CELLS.split(line)]


def taken_out(text: str, split: Split) -> tuple[str, list[Cell]]:
    """Return a text without what its tables say, and that; each row begins with a bar."""
    lines = text.split("\n")
    found: list[Cell] = []
    for titles, rows in _tables(lines):
        found += _Table.of(lines, titles, rows).taken_out(lines, split)
    return ("\n".join(lines), found) if found else (text, found)


def _tables(lines: Sequence[str]) -> Iterator[tuple[int, range]]:
    """Yield the number of the line with a table's titles, and those of its rows, up to a further rule: that
    is one between rows, or in doubt has titles above it too."""
    rules = [at for at, line in enumerate(lines) if at and is_rule(line) and ROW.match(lines[at - 1])]
    end = -1
    for at, following in pairwise([*rules, len(lines) + 1]):
        goes_on = end >= at - 1
        end = at + 1
        while end < following - 1 and ROW.match(lines[end]):
            end += 1
        if not goes_on:
            yield at - 1, range(at + 1, end)


def is_rule(line: str) -> bool:
    """Return whether a line stands below a table's titles."""
    return "-" in line and _RULE.issuperset(line) and bool(ROW.match(line))


class _Table(NamedTuple):
    titles: list[str]
    rows: Mapping[int, list[str]]  # by the numbers of their lines, each as wide as the titles
    line: str  # of the titles
    at: int  # its number

    @classmethod
    def of(cls, lines: Sequence[str], titles: int, rows: range) -> _Table:
        """Read a table; of a page's, whose lines end without a bar, the rule is as wide as the rows and wider
        than the titles where empty ones before are left out."""
        outer = lines[titles + 1].rstrip().endswith("|")
        read = {at: _plain_cells(lines[at], outer) for at in rows}
        named = [cell.strip(" :").replace(": ", ", ") for cell in _plain_cells(lines[titles], outer)]
        width = len(cells(_bare(lines[titles + 1])))
        widths = Counter(map(len, read.values()))
        if not outer and widths and widths.most_common(1)[0][0] == width:
            named = [""] * (width - len(named)) + named
        fitting = {at: row for at, row in read.items() if len(row) == len(named)}
        return cls(named, fitting, _bare(lines[titles]), titles)

    def taken_out(self, lines: list[str], split: Split) -> list[Cell]:
        """Return what the rows say, and leave in their lines what else there is."""
        columns = range(self._counts_up(), len(self.titles))
        if len(self.rows) < FEWEST_ROWS or len(columns) < FEWEST_COLUMNS:
            return []
        key = columns[self._is_group(columns[0]) and self._tells_apart(columns[1])]
        once = Counter(row[key].casefold() for row in self.rows.values())
        others = [at for at in columns if at != key]
        asked = {at: self._worth_asking(at) for at in others if self._is_titled(at)}
        found: list[Cell] = []
        for number, row in self.rows.items():
            if once[row[key].casefold()] == 1 and _is_key(row[key]):
                told = {at: split(row[at]) for at in others if row[at].casefold() in asked.get(at, ())}
                kept = [row[at] for at in others if at not in told and self._reads_alone(at, row[at])]
                found += self._said(key, number, told, lines, kept)
        lines[self.at] = "" if found else lines[self.at]
        return found

    def _said(
        self, key: int, number: int, told: Mapping[int, list[str]], lines: list[str], kept: list[str]
    ) -> Iterator[Cell]:
        """Yield what the cells of a row say; other cells, and sentences behind a cell's first, stay in its
        line."""
        name = self.rows[number][key]
        about = f"{self.titles[key]}: {name}" if self.titles[key] else name
        where = (self.line, _bare(lines[number]))
        if told:
            lines[number] = "\n\n".join(["", *(" ".join(said[1:]) for said in told.values()), *kept, ""])
        for at, said in told.items():
            yield Cell(f"{about}; {self.titles[at]}: {said[0]}", where)

    def _counts_up(self) -> bool:
        """Return whether the first column only numbers the rows."""
        numbers = [row[0].rstrip(".") for row in self.rows.values()]
        return numbers == [str(number) for number in range(1, len(numbers) + 1)]

    def _is_group(self, at: int) -> bool:
        """Return whether a column says of several rows each what kind they are of."""
        return 2 * len({row[at].casefold() for row in self.rows.values()}) <= len(self.rows)

    def _tells_apart(self, at: int) -> bool:
        column = [row[at].casefold() for row in self.rows.values()]
        return len(set(column)) == len(column) and all(map(_is_key, column))

    def _is_titled(self, at: int) -> bool:
        """Return whether a column has a title of its own."""
        return bool(self.titles[at]) and self.titles.count(self.titles[at]) == 1

    def _reads_alone(self, at: int, cell: str) -> bool:
        """Return whether a cell that is not asked about says something by itself."""
        return cell.endswith(_ENDS) or not (self._is_titled(at) or len(cell.split()) < SAYING)

    def _worth_asking(self, at: int) -> set[str]:
        """Return the values of a column that no guess would find."""
        values = Counter(row[at].casefold() for row in self.rows.values() if _says_something(row[at]))
        if len(values) < THREE_WAYS <= values.total():
            return set()
        for value, times in values.most_common():
            if times == 1 or times <= GUESSED * values.total():
                break
            del values[value]  # and what is then the commonest of the others
        return set(values)


def _plain_cells(line: str, outer: bool) -> list[str]:
    """Return the cells of a row as they read; without outer bars a last one stands before an empty cell."""
    bare = _bare(line) if outer else line.strip().removeprefix("|")
    return [" ".join(plain(cell).split()) for cell in cells(bare)]


def _bare(line: str) -> str:
    """Return a row without its outer bars."""
    line = line.strip().removeprefix("|")
    return (line if line.endswith("\\|") else line.removesuffix("|")).strip()


def _says_something(cell: str) -> bool:
    return any(map(str.isalnum, cell)) and not _NOTES.fullmatch(cell)


def _is_key(cell: str) -> bool:
    """Return whether a cell can say what its row is about."""
    return len(cell) <= LONGEST_KEY and any(map(str.isalnum, cell)) and not cell.endswith(_ENDS)
