"""Go through a paragraph from left to right, into emphasis and links, and hold what is written of it."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass

from pipelines.corpus.as_markdown.parts import Search

MARKED = {"*": "**", "/": "*", "_": "_", "+": "~~", "=": "`", "~": "`"}
LONGEST = 1000  # characters between two marks of emphasis
_BEHIND = r"(?<=[^\s\u200b])(?<!\s=){}(?=[\s\-–—.,;:!?'\")}}\\\[\u200b]|\Z)"
_ENDS = {mark: re.compile(_BEHIND.format(re.escape(mark))) for mark in MARKED}
_CLOSES = {"[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Around:
    """What a mark or a link is around: where it ends, where the text goes on, and what is written there."""

    end: int
    after: int
    closing: str


class Reading:
    """A text, what is written of it, and the marks that are open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.done = 0  # what stands before is written
        self.begun = 0  # where the innermost part begins
        self._out: list[str] = []
        self._open = [Around(len(text), len(text), "")]
        self._search = Search(text)
        self._closing: dict[str, list[int]] = {}
        self._pairs: dict[str, dict[int, int]] = {}

    @property
    def limit(self) -> int:
        """Return where the innermost part ends."""
        return self._open[-1].end

    # What is written

    def put(self, start: int, after: int, said: str) -> int:
        """Write the text before `start` as it is, then what stands for the text up to `after`."""
        self._write(self.text[self.done : start])
        self._write(said)
        self.done = after
        return after

    def _write(self, said: str) -> None:
        if said:
            self._out.append(said)

    def drop(self, start: int, after: int) -> int:
        """Leave something out, and the spaces around it that set no words apart."""
        kept = self.text[self.done : start]
        following = self.text[after : min(after + 1, self.limit)]
        if not following or following.isspace() or following in ".,;:!?)]}":
            kept = kept.rstrip(" \t")
        self._write(kept)
        if not self._out or self._out[-1].endswith("\n"):
            while after < self.limit and self.text[after] in " \t":
                after += 1
        self.done = after
        return after

    def enter(self, start: int, begin: int, around: Around, opening: str) -> int:
        """Go on within a mark or a link."""
        self.put(start, begin, opening)
        self._open.append(around)
        self.begun = begin
        return begin

    def leave(self) -> int:
        """Go on behind the innermost part."""
        around = self._open.pop()
        return self.put(around.end, around.after, around.closing)

    @property
    def is_open(self) -> bool:
        return bool(self._open)

    def written(self) -> str:
        return "".join(self._out)

    # What stands where

    def find(self, mark: str, start: int) -> int | None:
        """Return where a mark stands next within the innermost part."""
        place = self._search.next(mark, start)
        return place if 0 <= place <= self.limit - len(mark) else None

    def pair(self, at: int) -> int | None:
        """Return where the bracket is closed that opens here."""
        opening = self.text[at : at + 1]
        if opening not in _CLOSES:
            return None
        if opening not in self._pairs:
            self._pairs[opening] = _pairs(self.text, opening)
        end = self._pairs[opening].get(at)
        return end if end is not None and end < self.limit else None

    def end(self, mark: str, first: int) -> int | None:
        """Return where emphasis ends, not before `first`."""
        if mark not in self._closing:
            self._closing[mark] = [found.start() for found in _ENDS[mark].finditer(self.text)]
        ends = self._closing[mark]
        number = bisect_left(ends, first)
        end = ends[number] if number < len(ends) else self.limit
        if end >= self.limit:
            end = self.limit - 1
            if end < first or self.text[end] != mark or self.text[end - 1].isspace():
                return None
        return end if end - first <= LONGEST else None


def _pairs(text: str, opening: str) -> dict[int, int]:
    """Return where brackets are closed, by where they open."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for found in re.finditer(re.escape(opening) + "|" + re.escape(_CLOSES[opening]), text):
        if found[0] == opening:
            opened.append(found.start())
        elif opened:
            pairs[opened.pop()] = found.start()
    return pairs
