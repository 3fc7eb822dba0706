"""Write what stands above or below its line: figures as Unicode has them, a term behind ^ or _."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter

RAISED, LOWERED = "raised", "lowered"  # text that does not stand on its line
_RAISED = str.maketrans("0123456789+-−–", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁻")
_LOWERED = str.maketrans("0123456789+-−–", "₀₁₂₃₄₅₆₇₈₉₊₋₋₋")
_FIGURES = re.compile(r"[+−–-]?[0-9]*(?:[,–-][0-9]+)*[+−–-]?")
# A single letter that may end a number or a short word is none: 2e, 1a, no, 5h, Mr, 1s
_VARIABLE = re.compile(r"[b-df-gi-np-qt-zA-Zα-ω]")
_TERM = re.compile(r"(?=-|\S*[\d+−])(?=\S*[^\W_])[\w.+/−–-]{1,20}")
_SUM = re.compile(r"\w{1,4}(?:\s*[+−–-]\s*\w{1,4})+")  # with spaces around its signs


def raised(text: str, *, lowered: bool = False) -> str:
    """Return figures as an exponent or an index, other terms as in 2^n, and words as they are, as in 1st."""
    said = text.strip()
    said = "".join(said.split()) if _SUM.fullmatch(said) else said
    behind = text[len(text.rstrip()) :]
    mark = "_" if lowered else "^"
    if _FIGURES.fullmatch(said):
        said = said.translate(_LOWERED if lowered else _RAISED)
    elif _VARIABLE.fullmatch(said):
        said = mark + said
    elif _TERM.fullmatch(said):
        said = mark + (said if said.isalnum() else f"({said})")
    else:
        return text
    return said + behind


def joined(parts: Iterable[tuple[str, str]]) -> str:
    """Return the parts of a line, each given behind where it stands, as one text."""
    said = []
    for place, texts in groupby(parts, itemgetter(0)):
        text = "".join(text for _, text in texts)
        said.append(raised(text, lowered=place == LOWERED) if place else text)
    return "".join(said)
