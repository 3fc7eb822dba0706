"""Write the formulas of a page of HTML, which are MathML, on their line: 10⁶, x_1, 1/(2n), √(x).

A formula that no line shows, as a matrix or a sum with limits, is a part left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

from pipelines.corpus.markup.parts import LEFT_OUT, names
from pipelines.corpus.markup.raised import raised

# Of how many parts; 0: of any number
_LAID_OUT = {"msup": 2, "msub": 2, "msubsup": 3, "mfrac": 2, "msqrt": 0}
_SHOWN_BY_NO_LINE = names(
    "mroot munder mover munderover mmultiscripts mtable mfenced maction mlongdiv mstack"
)
_MAY_STAND_APART = ("mi", "mo", "mspace")  # from letters beside it: log n, a mod b
_HOLDING = frozenset(("math", *_LAID_OUT, *_SHOWN_BY_NO_LINE, *_MAY_STAND_APART))
ELEMENTS = _HOLDING | {"mn", "ms", "mtext", "mrow", "mstyle", "mpadded", "menclose"}
_PREFIXES = names("m mml svg")
DEEPEST = 50  # elements in each other: a formula that is deeper is a part left out
_OF = "\u2061"  # between a function and what it is of: sin x; here also around 1/2 and behind e^x
_BESIDE_WORDS = "\u2063"
_TIMES = "\u2062\u2064"  # and plus
_GAP = re.compile(r"(?<=[\w)′])[\u2061-\u2064]+(?=[^\W⁰¹²³⁴-⁹₀-₉]|√)")
_UNSEEN = re.compile("[\u2061-\u2064]")
_WORD = re.compile(r"[^\W\d_]{2,}")
_ONE_TERM = re.compile(r"\d+(?:[.,]\d+)?|\w?")
_NO_BAR = re.compile(r"0+(?:\.0*)?[a-z%]*")
_ENDS_APART = re.compile(rf"[{_OF}⁰¹²³⁴-⁹]$")


def unprefixed(tag: str) -> str:
    """Return an element's name without the prefix that books and articles give to those of formulas."""
    prefix, _, name = tag.rpartition(":")
    return name if prefix in _PREFIXES else tag


class Formulas:
    """The open elements of formulas, whose text stands among the parts of a line."""

    def __init__(self) -> None:
        # Of each: how deep it stands, its first part, and the first parts of what it holds
        self._open: list[tuple[int, int, list[int]]] = []
        self._is_left_out = False

    def begin(self, tag: str, attributes: Mapping[str, str], depth: int, at: int) -> None:
        """Note an element that begins so deep in the page, with the part of this number."""
        if self._open and _NO_BAR.fullmatch(attributes.get("linethickness") or ""):
            self._is_left_out = True  # n over k is no fraction
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
        whole = self._written(tag, first, held, parts)
        parts[first:] = [whole if self._open else _seen(whole)]

    def _written(self, tag: str, first: int, held: list[int], parts: list[str]) -> str:
        whole = "".join(parts[first:])
        if tag == "math":
            whole = LEFT_OUT if self._is_left_out else whole
            self._is_left_out = self._is_left_out and bool(self._open)
        elif tag in _LAID_OUT or tag in _SHOWN_BY_NO_LINE:
            said = ["".join(parts[at:end]).strip() for at, end in pairwise([*held, len(parts)])]
            fits = tag in _LAID_OUT and _LAID_OUT[tag] in (0, len(said))
            self._is_left_out = self._is_left_out or not fits
            whole = _on_line(tag, said) if fits else "".join(said)
        elif tag == "mspace" or _WORD.fullmatch(whole.strip()):
            whole = f"{_BESIDE_WORDS}{whole}{_BESIDE_WORDS}"
        return whole


def _seen(text: str) -> str:
    """Return text with spaces instead of what stands between terms unseen."""
    return _UNSEEN.sub("", _GAP.sub(lambda gap: " " if gap[0].strip(_TIMES) else "", text))


def _on_line(tag: str, said: list[str]) -> str:
    if tag == "mfrac":
        halves = map(_seen, said)
        whole = "/".join(half if _ONE_TERM.fullmatch(half) else f"({half})" for half in halves)
        return f"{_OF}{whole}{_OF}"
    if tag == "msqrt":
        return f"√({_seen(''.join(said))})"
    lowered = [_apart(said[1], lowered=True)] if tag != "msup" else []
    return "".join((_base(said[0]), *lowered, *([_apart(said[-1])] if tag != "msub" else [])))


def _base(text: str) -> str:
    """Return what has an exponent or an index: in brackets if it is a fraction or has one itself."""
    return f"({_seen(text)})" if _ENDS_APART.search(text) else _UNSEEN.sub("", text)


def _apart(text: str, *, lowered: bool = False) -> str:
    """Return an exponent or an index; a letter or a word is marked as such too, unlike in text."""
    text = _seen(text)
    said = raised(text, lowered=lowered)
    if _ENDS_APART.search(text) or (said == text and any(map(str.isalnum, text))):
        is_term = text.isalnum() and not _ENDS_APART.search(text)
        said = ("_" if lowered else "^") + (text if is_term else f"({text})")
    return said + _OF if said.startswith(("_", "^")) and not said.endswith(")") else said
