"""Write what several languages have as Markdown does: code, tables; hold what is written; find marks."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKS = str.maketrans("", "", "\ufdd0\ufdd1")  # around the number of a text that is held
DEEPEST = 4  # texts that are held within one another
_MARK = re.compile("\ufdd0(\\d{1,9})\ufdd1")
RUN = re.compile("`+")  # of backticks


def without_marks(text: str) -> str:
    """Return a page without the characters that mark what is held."""
    return text.translate(_MARKS)


class Held:
    """Texts that are written already, and the marks that stand for them meanwhile."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def hold(self, text: str) -> str:
        """Return the mark that stands for a text from now on."""
        self._texts.append(text)
        return f"\ufdd0{len(self._texts) - 1}\ufdd1"

    def restored(self, text: str) -> str:
        """Return a text with what its marks stand for, which may hold marks in turn."""
        for _ in range(DEEPEST):
            text, changed = _MARK.subn(lambda mark: self._texts[int(mark[1])], text)
            if not changed:
                break
        return text

    def clear(self) -> None:
        self._texts.clear()


class Search:
    """Finds where marks stand next in a text, in linear time: what is not there is searched for once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str, int] = {}  # where each mark was found last

    def next(self, mark: str, start: int) -> int:
        """Return where a mark stands next, or -1; later calls start no earlier."""
        known = self._next.get(mark)
        if known is None or -1 < known < start:
            known = self._next[mark] = self._text.find(mark, start)
        return known


def code_in_line(code: str) -> str:
    """Return code between backticks, more of them than it has itself."""
    bars = "`" * (1 + max(map(len, RUN.findall(code)), default=0))
    pad = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{bars}{pad}{code}{pad}{bars}"


def fenced(code: str, language: str = "") -> str:
    """Return code between fences that it does not hold; nothing for none."""
    if not code.strip():
        return ""
    fence = "`" * (1 + max([2, *map(len, RUN.findall(code))]))
    return f"{fence}{language}\n{code.strip(chr(10))}\n{fence}"


def table(rows: Sequence[Sequence[str]], *, titled: bool = True) -> list[str]:
    """Return the lines of a table, without empty rows, the first one as its head if the table has titles."""
    kept = [[cell.replace("|", "\\|") for cell in cells] for cells in rows if any(cells)]
    lines = [f"| {' | '.join(cells)} |" for cells in kept]
    return [*lines[:1], "|" + "---|" * len(kept[0]), *lines[1:]] if kept and titled else lines
