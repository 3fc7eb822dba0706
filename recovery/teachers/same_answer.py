r"""Compare two answers that are no numbers: by words, operators, signs, and the brackets around formulas.

**Paris!** is paris, (B) is B., x^{2} + 3 is x^2+3 and y = x^2+3, 5cm is 5.0 cm; x-1 is not x+1, C is not C++,
(2,3) is not [2,3), 3, 5 cm is not 3.5 cm, Python 3.10 is not Python 3.1.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

_DASHES = str.maketrans("−–‐‑", "----")
_LAYOUT = re.compile(r"\\(?:left|right|text|mathrm|mathbf)(?![a-z])|\\[()\[\],;:! ]|\$")  # of LaTeX
_FRACTION = re.compile(r"(?<![\w)}])\\[dt]?frac\{(\d+)\}\{(\d+)\}")
_EXPONENT = re.compile(r"(?<=[\^_])\{([+-]?[^\W_]*)\}")
_BEFORE = re.compile(r"\A\s*(?:#{1,6}\s|[-*•]\s|>\s(?=\s*[^\W\d_]{2}))")  # a heading, an item, a quotation
_POWER = re.compile(r"(?<=[\w)\]}])(\s?)\*\*\1(?=[\w(\[{])")  # emphasis has a space on one side alone
_TIMES = re.compile(r"(?<=[\w)\]}])(\s?)\*\1(?=[\w(\[{])")
_PROSE = re.compile(r"[^\W\d_]{2}|\b[A-Z]\b")  # behind a word or an option, "!" is no factorial
_TOKEN = re.compile(  # a version or an address, a number, a word, a sign
    r"(?<![^\W_])(?:\d+(?:\.\d+){2,}|(?<!\.)\d+(?:\.\d+)?|(?<!\.)\.\d+)|[^\W_]+|[^\w\s]"
)
_NO_UNITS = ("and", "is", "or", "to")
_THOUSANDS = re.compile(r"(?<![\d.,(\[{])\d{1,3}(?:,\d{3})+(?![\d,])")
_NO_OPERATORS = "~|"  # roughly, or the edge of a table


def same_answer(given: str, wanted: str) -> bool:
    """Return whether two answers say the same; nothing is no answer."""
    ours, theirs = _symbols(given), _symbols(wanted)
    if _is_named(ours) != _is_named(theirs):
        ours, theirs = (side[2:] if _is_named(side) else side for side in (ours, theirs))
    return bool(theirs) and ours == theirs


def _is_named(symbols: Sequence[str]) -> bool:
    """Return whether an answer is one equation that begins with a letter: y = 2x + 1."""
    return symbols[1:2] == ["="] and len(symbols[0]) == 1 and symbols[0].isalpha() and symbols.count("=") == 1


def _symbols(text: str) -> list[str]:
    """Return an answer's words, operators and the brackets that group something, in order.

    Case, white space, punctuation, emphasis and LaTeX's layout are left out.
    """
    plain = _undressed(text)
    found = _TOKEN.findall(plain.lower())
    tokens = [_as_written_shortest(found, at) for at in range(len(found))]
    factorials = not _PROSE.search(plain)
    operators = [_operates(tokens, at, factorials) for at in range(len(tokens))]
    grouping = _grouping(tokens, operators)
    return [t for at, t in enumerate(tokens) if _is_word(t) or operators[at] or at in grouping]


def _as_written_shortest(tokens: Sequence[str], at: int) -> str:
    """Write a decimal without zeros that say nothing: 5 for 5.0, 0.5 for .5, 3.5 for the 3.50 of 3.50 cm.

    Without a unit the last zero may be part of a name: Python 3.10, section 2.10.
    """
    whole, _, decimals = tokens[at].partition(".")
    if not decimals.isdigit():
        return tokens[at]
    kept = decimals.rstrip("0")
    if kept and not _has_unit(tokens, at):
        kept = decimals
    return f"{whole or '0'}.{kept}" if kept else whole or "0"


def _has_unit(tokens: Sequence[str], at: int) -> bool:
    """Return whether a unit, and no name before, stands beside a number."""
    before, behind = ("", *tokens)[at], (*tokens, "")[at + 1]
    unit = (behind.isalpha() and behind not in _NO_UNITS) or (bool(behind) and behind in "%°$€£")
    return not before.isalpha() and (unit or (bool(before) and before in "$€£"))


def _undressed(text: str) -> str:
    text = unicodedata.normalize("NFC", text).translate(_DASHES)
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = _FRACTION.sub(r"\1/\2", _LAYOUT.sub(" ", _BEFORE.sub("", text, count=1)))
    return _TIMES.sub("×", _POWER.sub("^", _EXPONENT.sub(r"\1", text)))


def _is_word(token: str) -> bool:
    """Return whether a token is of letters or digits, or a mark that belongs to a letter."""
    return token[0].isalnum() or unicodedata.category(token[0]).startswith("M")


def _operates(tokens: Sequence[str], at: int, factorials: bool) -> bool:
    """Return whether a token is an operator or a sign, by its neighbours."""
    token = tokens[at]
    if token in "-/":
        return _stands_in_a_formula(tokens, at)
    if token in "#!":  # C#, n!
        return at > 0 and (token == "#" or factorials)
    arrow = "←" <= token <= "⇿"
    mathematical = unicodedata.category(token[0]) == "Sm" and token not in _NO_OPERATORS and not arrow
    return token == "^" or mathematical


def _stands_in_a_formula(tokens: Sequence[str], at: int) -> bool:
    """Return whether a hyphen or slash is a minus or a division: not in COVID-19, km/h, or at the end."""
    around = [*tokens[max(0, at - 1) : at], *tokens[at + 1 : at + 2]]
    behind = tokens[at + 1] if at + 1 < len(tokens) else "."
    formula = _is_word(behind) or behind in "([{\\" or unicodedata.category(behind[0]) == "Sm"
    return formula and not any(len(token) > 1 and token.isalpha() for token in around)


def _grouping(tokens: Sequence[str], operators: Sequence[bool]) -> set[int]:
    """Return the places of the brackets that group: around operators or, as an interval's, commas.

    Those around one word, and around a whole formula, say nothing.
    """
    inner = list(accumulate(map(int, operators), initial=0))
    commas = list(accumulate((int(token == ",") for token in tokens), initial=0))
    kept = (_is_word(token) or operators[at] for at, token in enumerate(tokens))
    said = list(accumulate(map(int, kept), initial=0))
    found: set[int] = set()
    opened: list[int] = []
    for at, token in enumerate(tokens):
        if token in "([{":
            opened.append(at)
        elif token in ")]}" and opened:
            first = opened.pop()
            whole = said[first] == 0 and said[at] == said[-1]
            if commas[at] > commas[first] or (inner[at] > inner[first] and not whole):
                found |= {first, at}
    return found
