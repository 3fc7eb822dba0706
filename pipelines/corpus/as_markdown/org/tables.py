"""Write the rows of a table as Markdown does, the first one as its head."""

from __future__ import annotations

import re
from collections.abc import Callable

from pipelines.corpus.as_markdown.parts import table as written_table

_COOKIE = re.compile(r"<(?:[lrc]?\d+|[lrc])>")  # a column's width and side
_UNSEEN = frozenset(("/", "!", "$", "_", "^"))  # what marks a row that only formulas use
_MARKS = _UNSEEN | {"", "#", "*"}


def rows(lines: list[str], written: Callable[[str], str]) -> list[str]:
    """Return rows without rules, and without what only Org reads in them."""
    table = [_cells(line) for line in lines if not line.lstrip().startswith("|-")]
    firsts = {cells[0] for cells in table}
    if firsts <= _MARKS and firsts - {""}:
        table = [cells[1:] for cells in table if cells[0] not in _UNSEEN]
    table = [cells for cells in table if any(cells) and not _only_sets(cells)]
    return written_table([[written(cell) for cell in cells] for cells in table])


def _cells(line: str) -> list[str]:
    said = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip() for cell in said.split("|")]


def _only_sets(cells: list[str]) -> bool:
    """Return whether a row only says how wide columns are, or which ones are a group."""
    if cells[0] == "/":
        return all(cell in ("", "<", ">", "<>") or _COOKIE.fullmatch(cell) for cell in cells[1:])
    return all(not cell or _COOKIE.fullmatch(cell) for cell in cells)
