r"""Compare two answers that are no numbers: words, formulas, signs, intervals.

**Paris!** is paris, x^{2} + 3 is x^2+3; x-1 is not x+1, C is not C++, (2,3) is not [2,3).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_PLAIN = str.maketrans("−–‐‑“”„«»「」『』《》‘’", "-" * 4 + '"' * 11 + "'" * 2)
_LAYOUT = re.compile(r"\\(?:left|right)(?![a-z])|\\[()\[\],;:! ]")  # of LaTeX, without a meaning
_FRACTION = re.compile(r"(?<![\w)}])\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_GROUP = re.compile(r"(?<=[A-Za-z}^_])\{([^{}]*)\}")  # LaTeX's; braces elsewhere are those of a set
_BEFORE = re.compile(  # the mark of a heading or an item
    r"""\s*(?:#{1,6}\s+|[-*•]\s+(?=["'*_`]{0,3}[^\W\d_]{2}))"""
)
_EMPHASIS = re.compile(r"""(?<![\w*])(\*{1,3}|_{1,3}|`{1,3}|["'])(?=\S)((?:(?!\1).)+)(?<=\S)\1(?![\w*])""")
_PROSE = re.compile(r"(?<=[^\W\d_]{2})-(?=[^\W\d_]{2})|(?<!\S):|:(?!\S)")  # "well-known", "so: yes"
_WORD = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2}|\b[A-Z]\b")  # behind one, "!" is no factorial
_ALONE = re.compile(r"\(\s*(\w+)\s*\)")  # "(B)" is B
_SYMBOL = re.compile(r"\d+(?:\.\d+)?|(?<!\w)\.\d+|[^\W\d]+|[^\w\s]")
_MEANING = {"Sm", "Ps", "Pe", "Pd", "Mn", "Mc"}  # Unicode's mathematical signs, brackets, dashes, accents
_OPERATORS = frozenset("*/^#%&@!:'\"")
_VALUE = re.compile(r"(-?) ?(\d{0,20}\.?\d{1,20})(?: / (\d{1,20}))?")
DEPTH = 3  # how many dresses, one within another, are taken off


def same_answer(given: str, wanted: str) -> bool:
    """Return whether two answers have the same words, numbers, operators, signs and brackets.

    Fractions compare by value. An empty answer is the same as none.
    """
    ours, theirs = _symbols(given), _symbols(wanted)
    value = _value(theirs)
    return bool(theirs) and (ours == theirs or (value is not None and _value(ours) == value))


def _symbols(text: str) -> list[str]:
    """Return what an answer consists of, without what only dresses it: case, white space, currencies,
    punctuation, Markdown, LaTeX's layout. Of an answer that is nothing else, return its characters."""
    found = _SYMBOL.findall(_undressed(text).lower())
    return [symbol for symbol in found if _means_something(symbol)] or list(text.strip())


def _undressed(text: str) -> str:
    text = _LAYOUT.sub(" ", _BEFORE.sub("", text.translate(_PLAIN), count=1))
    text = _FRACTION.sub(r"\1/\2", text)
    for _ in range(DEPTH):
        text = _EMPHASIS.sub(r"\2", _GROUP.sub(r"(\1)", text))
    text = text.replace("!", " ") if _WORD.search(text) else text
    return _ALONE.sub(r" \1 ", _PROSE.sub(" ", text))


def _means_something(symbol: str) -> bool:
    last = symbol[-1]  # a number may begin with its point
    return last.isalnum() or last == "_" or last in _OPERATORS or unicodedata.category(last) in _MEANING


def _value(symbols: list[str]) -> Fraction | None:
    """Return the value of a number or a fraction of two."""
    found = _VALUE.fullmatch(" ".join(symbols))
    divisor = int(found[3] or 1) if found else 0
    return Fraction(found[1] + found[2]) / divisor if found and divisor else None
