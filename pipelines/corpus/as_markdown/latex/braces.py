"""Say where braces and options of a text end, after one pass over it."""

from __future__ import annotations

import re
from functools import cached_property

LONGEST_OPTION = 400  # characters
_BRACES = re.compile(r"\\[\s\S]|%[^\n]*+|[{}]")
_BRACKETS = re.compile(r"\\[\s\S]|[{}\]]")


class Braces:
    """The braces of a text; comments and escaped ones do not count."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def _ends(self) -> dict[int, int]:
        ends: dict[int, int] = {}
        opened: list[int] = []
        for mark in _BRACES.finditer(self.text):
            if mark[0] == "{":
                opened.append(mark.start())
            elif mark[0] == "}" and opened:
                ends[opened.pop()] = mark.end()
        return ends

    def end(self, at: int) -> int:
        """Return where the braces end that begin at a place, 0 where none begin or nothing closes them."""
        return self._ends.get(at, 0) if self.text[at : at + 1] == "{" else 0

    def option_end(self, at: int) -> int:
        """Return where the option ends that begins at a place, 0 where none does; it may hold braces."""
        if self.text[at : at + 1] != "[":
            return 0
        last = at + LONGEST_OPTION
        while at < last and (mark := _BRACKETS.search(self.text, at + 1, last)):
            if mark[0] == "]":
                return mark.end()
            if mark[0] == "}":
                return 0
            end = self.end(mark.start()) or last if mark[0] == "{" else mark.end()
            at = end - 1
        return 0
