"""Write the formulas of a page of HTML, which are MathML, on their line: 10⁶, x_1, 1/(2n), √(x).

A formula that no line shows, as a matrix or a sum with limits, is a part left out.
"""

from __future__ import annotations

import re
from itertools import pairwise

from pipelines.corpus.markup.parts import LEFT_OUT
from pipelines.corpus.markup.raised import raised

_LAID_OUT = {
    "msup": 2,
    "msub": 2,
    "msubsup": 3,
    "mfrac": 2,
    "msqrt": 0,
}  # of how many parts, 0: of any number
_SHOWN_BY_NO_LINE = ("mroot", "munder", "mover", "munderover", "mmultiscripts", "mtable", "mfenced")
_HOLDING = frozenset(("math", *_LAID_OUT, *_SHOWN_BY_NO_LINE))
ELEMENTS = _HOLDING | {"mi", "mn", "mo", "ms", "mtext", "mspace", "mrow", "mstyle", "mpadded", "menclose"}
DEEPEST = 50  # elements in each other: a formula that is deeper is a part left out
_OF = re.compile(r"\u2061(?=\w)")  # between a function and what it is of: sin x
_UNSEEN = re.compile("[\u2061-\u2064]")
_ONE_TERM = re.compile(r"\d+(?:[.,]\d+)?|\w?")


class Formulas:
    """The open elements of formulas, whose text stands among the parts of a line."""

    def __init__(self) -> None:
        # Of each: how deep it stands, its first part, and the first parts of what it holds
        self._open: list[tuple[int, int, list[int]]] = []
        self._is_left_out = False

    def begin(self, tag: str, depth: int, at: int) -> None:
        """Note an element that begins so deep in the page, with the part of this number."""
        if self._open and self._open[-1][0] == depth - 1:
            self._open[-1][2].append(at)
        if tag in _HOLDING:
            self._open.append((depth, at, []))

    def end(self, tag: str, parts: list[str]) -> None:
        """Write the element that ends here in place of its parts."""
        if tag not in _HOLDING or not self._open:
            return
        _, first, held = self._open.pop()
        if len(self._open) > DEEPEST:
            self._is_left_out = True
            return
        if any(begin > end for begin, end in pairwise([first, *held, len(parts)])):
            return  # a block of the page has begun within it
        if tag == "math":
            whole = LEFT_OUT if self._is_left_out else _UNSEEN.sub("", _OF.sub(" ", "".join(parts[first:])))
            self._is_left_out = self._is_left_out and bool(self._open)
        else:
            said = ["".join(parts[at:end]).strip() for at, end in pairwise([*held, len(parts)])]
            fits = tag in _LAID_OUT and _LAID_OUT[tag] in (0, len(said))
            self._is_left_out = self._is_left_out or not fits
            whole = _on_line(tag, said) if fits else "".join(said)
        parts[first:] = [whole]


def _on_line(tag: str, said: list[str]) -> str:
    if tag == "mfrac":
        return "/".join(half if _ONE_TERM.fullmatch(half) else f"({half})" for half in said)
    if tag == "msqrt":
        return f"√({''.join(said)})"
    lowered = [_apart(said[1], lowered=True)] if tag != "msup" else []
    return "".join((said[0], *lowered, *([_apart(said[-1])] if tag != "msub" else [])))


def _apart(text: str, *, lowered: bool = False) -> str:
    """Return an exponent or an index; a letter or a word is marked as such too, unlike in text."""
    said = raised(text, lowered=lowered)
    if said != text or not any(map(str.isalnum, text)):
        return said
    return ("_" if lowered else "^") + (text if text.isalnum() else f"({text})")
