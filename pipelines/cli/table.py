"""Print rows as a table, for every command: folded to a terminal's width, and whole where it is piped."""

from __future__ import annotations

import shutil
import sys
import textwrap
from itertools import zip_longest
from typing import Any

BETWEEN = "  "  # columns
NARROWEST = 12  # characters of a column whose words are broken


def table(rows: list[dict[str, Any]], columns: list[str] | None = None) -> str:
    """Format rows as aligned columns, those of the first row unless named; nothing is cut."""
    if not rows:
        return "nothing yet"
    columns = columns or list(rows[0])
    cells = [columns, *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    if sys.stdout and sys.stdout.isatty():
        words = [max(map(len, " ".join(texts).split(" "))) for texts in zip(*cells, strict=True)]
        widths = _folded(widths, words, shutil.get_terminal_size().columns)
    return "\n".join(line for texts in cells for line in _lines(texts, widths))


def _folded(widths: list[int], words: list[int], room: int) -> list[int]:
    """Narrow the widest columns until a line has room: to their longest word, then all but the first, which
    names the row, within words. The last column, of prose if any is, gives way after the others.

    Where even that is too wide, no column is folded: the terminal would break the lines once more."""
    room, last = room - len(BETWEEN) * (len(widths) - 1), len(widths) - 1
    for least in (words, [words[0], *(min(word, NARROWEST) for word in words[1:])]):
        narrow = list(widths)
        while sum(narrow) > room and (wide := [i for i, width in enumerate(narrow) if width > least[i]]):
            narrow[max(wide, key=lambda i: (i != last, narrow[i]))] -= 1
        if sum(narrow) <= room:
            return narrow
    return widths


def _lines(texts: list[str], widths: list[int]) -> list[str]:
    """Return the lines of a row: one, unless a text is wider than its column."""
    folded = [
        textwrap.wrap(text, width, break_on_hyphens=False) if len(text) > width else [text]
        for text, width in zip(texts, widths, strict=True)
    ]
    return [
        BETWEEN.join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in zip_longest(*folded, fillvalue="")
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:.3g}"
    return " ".join(str(value).split())
