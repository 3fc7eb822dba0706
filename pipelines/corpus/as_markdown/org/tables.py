"""Write the rows of a table as Markdown does, one above a rule as its head."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import dropwhile

from pipelines.corpus.as_markdown.parts import table as written_table

_COOKIE = re.compile(r"<(?:[lrc]?\d+|[lrc])>")  # a column's width and side
_UNSEEN = frozenset(("/", "!", "$", "_", "^"))  # what marks a row that only formulas use
_MARKS = _UNSEEN | {"", "#", "*"}


def rows(lines: list[str], written: Callable[[str], str]) -> list[str]:
    """Return rows without rules, and without what only Org reads in them; the first one as titles where a
    rule parts it from the others."""
    table = [None if line.lstrip().startswith("|-") else _cells(line) for line in lines]
    firsts = {cells[0] for cells in table if cells}
    if firsts <= _MARKS and firsts - {""}:
        table = [cells and cells[1:] for cells in table if not cells or cells[0] not in _UNSEEN]
    table = [cells for cells in table if cells is None or (any(cells) and not _only_sets(cells))]
    table = [*dropwhile(lambda cells: cells is None, table)]
    titled = table[1:2] == [None] and any(table[2:])
    return written_table([[written(cell) for cell in cells] for cells in table if cells], titled=titled)


def _cells(line: str) -> list[str]:
    said = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in said.split("|")]


def _only_sets(cells: list[str]) -> bool:
    """Return whether a row only says how wide columns are, or which ones are a group."""
    if cells[0] == "/":
        return all(cell in ("", "<", ">", "<>") or _COOKIE.fullmatch(cell) for cell in cells[1:])
    return all(not cell or _COOKIE.fullmatch(cell) for cell in cells)
