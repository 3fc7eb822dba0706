r"""Read the number that an answer states: 1,200.50, 1/2, 2 1/2, \frac12, 3 \times 10^4, $18, 50 %, x = 5.

A part of a formula (3x, 2^5, \sqrt{2}, x > 5) and one of several numbers (2, 3) are not stated numbers. A
number that a date or a clause leads to is no part of a list: July 4, 1776; in 2010, 35 students.
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction

_REWRITTEN = tuple(  # LaTeX and typography as plain text
    (re.compile(pattern), text)
    for pattern, text in (
        ("−", "-"),
        (r"\{,\}|,\\!", ","),
        (r"(?<=\d)(?:\\[,; ]|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))", ","),
        (r"\\(?=[%$])|\\!", ""),
        (r"\^\{?\\circ\}?|\\degree(?![a-z])", ""),
        (r"\\(?:(?:display|text|script)style|left|right|[bB]igg?[lr]?)(?![A-Za-z])\s?", ""),
        (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|mbox|fbox|underline)\s?\{([^{}]*)\}", r" \1 "),
        (r"(?<=\d)\\[dt]?frac\{(\d+)\}\{(\d+)\}", r" \1/\2"),
        (r"(?<![\w)}])\\[dt]?frac\{(-?)(\d+)\}\{(\d+)\}", r"\1\2/\3"),
        (r"(?<![\w)}])\\[dt]?frac(\d)(\d)", r"\1/\2"),
    )
)
_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_POWER = r"\s?(?:\\times|\\cdot|[×·*])\s?10\^(?:\{-?\d{1,3}\}|-?\d{1,3})"
NUMBER = re.compile(  # not inside a word of Latin letters: other scripts write numbers without spaces
    rf"""(?<![A-Za-z0-9_.]) -?[$€£]?-?
    (?: (?<!/)\d{{1,9}}\ \d{{1,9}}/\d{{1,9}}(?![/\d])
      | {_DECIMAL}{_POWER}(?!\d)
      | (?<!/)\d+/\d+(?![/.,]?\d)
      | {_DECIMAL}(?:[eE][-+]?\d{{1,3}}(?!\w)|(?!\d))
    ) | (?<![A-Za-z0-9_.])-?\.\d+""",
    re.VERBOSE,
)
_NAME = re.compile(r"\A\s*[$(]*\s*[^\W\d_]\w{0,2}\s?=")  # x = 5
_INDIAN = re.compile(r"-?\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?")
_SPACED = re.compile(r"(?<=\d)\s(?=\d{3}(?!\d|\s?/))")  # of a reference, which holds nothing else
_LONGEST = 400  # digits that are compared
_TAG = re.compile(r"</?[A-Za-z][\w-]{0,20}>|<(?=[-+$€£\d.,/ ]{1,40}>)|(?<=\d)>(?!\s?[\w(\\])")
_MODULUS = re.compile(r"\\pmod\s?(?:\{[^{}]*\}|\d+)")
_HEDGES = re.compile(
    r"(?:[\W_]|\b(?:about|approximately|roughly|exactly|only|just|simply|then|thus)\b)*", re.I
)
_LISTING = r"(?: \s*[,;&] | \s*,?\s*\b(?:and|or|to)\b )"
_WORD = r"[\ \u00a0-]+(?!(?:and|or|to|both|respectively)\b)[^\W\d_]+"
_CLAUSE = rf"\s*,(?:\s*and\b)?\s*[$€£]?{_DECIMAL}%?{_WORD}{_WORD}"  # ", and 5 of them"
_GOES_ON = re.compile(  # behind a number: another one, or the rest of a formula
    rf"""(?!{_CLAUSE}) \s*[)\]]? (?: {_LISTING} | \s*: | \s*[-–±/] ) \s*[-+$€£(]*\.?\d
    | \s*[-+]\s*(?:[b-hj-zB-HJ-Z]\b|\\[a-z]|\(|\d) | \s*[×·÷^√²³] | \*[\w(\\] | \s\*\s
    | \s?\\(?!(?:q?quad|hspace|hfill|implies|because|checkmark|blacksquare|square|end)(?![a-z]))[a-z]
    | [({{]\s*[\w\\] | [abinrxyzπθ](?!\w)""",
    re.VERBOSE,
)
_SEVERAL = re.compile(rf"\d[)\]%]?{_LISTING}\s*[-$€£(\[]*\Z", re.VERBOSE)
_MANY = re.compile(  # three or more
    rf"\d[)\]%]?{_LISTING}\s+-?[$€£]?{_DECIMAL}[)\]%]?{_LISTING}\s*[-$€£(\[]*\Z", re.VERBOSE
)
_DATE = re.compile(
    r"""\b(?:Jan|Feb|Mar|Apr|May|June?|July?|Aug|Sept?|Oct|Nov|Dec)[a-z]{0,6}\.?
    \s\d{1,2}(?:st|nd|rd|th)?,\s(?:\d{4},\s)?\Z""",
    re.VERBOSE,
)
_WORKED_OUT = re.compile(  # 40*2, or 80
    r"""[\d)] (?: \s?[*×·÷+]\s? | \s?\\(?:times|cdot|div)\s? | \s[-/]\s )
    [$€£]?[\d.]+\$?,\s*or\s+[$€£]?\Z""",
    re.VERBOSE,
)
_AFTER_COMMA = re.compile(r",(?:\s*and\b)?\s*[$€£]?\Z")
_COUNTED = re.compile(rf"%?{_WORD}")
_OPERATOR = (  # of LaTeX
    r"\\(?:sqrt|times|cdot|ast|div|[dt]?frac|[dt]?binom|pm|mp|bmod|mod|log|ln|lg|exp|(?:arc)?(?:sin|cos|tan)h?"
    r"|cot|sec|csc|min|max|gcd|lcm|lim|sum|prod|int|l[et]|g[et]|[lgn]eq|[lg]eqslant|ne|to|in|notin|cup|cap"
    r"|alpha|beta|gamma|delta|epsilon|theta|lambda|mu|pi|rho|sigma|tau|phi|varphi|omega|infty)"
)
_PART_OF = re.compile(  # before a number
    rf"""(?: \^\s?\{{? | [\w}}\]]\{{ | [√±×·÷<>≤≥≠] | {_OPERATOR}(?:_(?:\w|\{{[^{{}}]*\}}))?\s?\{{?
    | \w_ | \w[*/(] | \s\*\s | (?:\b[^\W\d_]|[\d)])\s?-
    | \w\+ | [\w)\]}}]\s*\+\s | (?:[\d)\]}}]|(?<![^\W\d_])[^\W\d_])\s*\+ )
    \s*[-+$€£]?\Z""",
    re.VERBOSE,
)
_SEEN = 32  # characters looked at before a number


def plain(text: str) -> str:
    """Write minus signs, thousands, fractions, units and degrees of LaTeX as in plain text."""
    for pattern, written in _REWRITTEN:
        text = pattern.sub(written, text)
    return text


def value(text: str) -> Fraction | None:
    """Return the value of a plain text that is one number, with or without a name (x = 5); else None."""
    whole = _NAME.sub("", text, count=1).strip(" \t\r\n$€£%*_`\"'").rstrip(".,;:! ").lstrip("+")
    whole = _SPACED.sub("", whole)
    if not (NUMBER.fullmatch(whole) or _INDIAN.fullmatch(whole)) or len(whole) > _LONGEST:
        return None
    return _computed(re.sub(r"[,$€£]", "", whole))


def _computed(number: str) -> Fraction | None:
    """Return the value of a number without thousands and currency; None where it divides by 0."""
    sign = -1 if number.startswith("-") else 1
    body, _, power = re.sub(r"\s?(?:\\times|\\cdot|[×·*])\s?10\^", "e", number.lstrip("-")).partition("e")
    whole, _, fraction = body.rpartition(" ")
    above, _, below = fraction.partition("/")
    if below and not int(below):
        return None
    amount = Fraction(above) / int(below or 1) + int(whole or 0)
    return sign * amount * Fraction(10) ** int(power.strip("{}") or 0)


def stated(text: str) -> str | None:
    """Return the number that a marked answer states; None if it holds none, "" where it is no single number.

    It is the result of an equation, else a leading number ("10 apples, not 12"), else the last one ("the sum
    of 5 and 3, which is 8").
    """
    sentence = _TAG.sub(" ", re.split(r"[.!?](?:\s|$)", text, maxsplit=1)[0])
    sentence = _MODULUS.sub(" ", sentence)
    numbers = [*NUMBER.finditer(sentence.rpartition("=")[2])] or [*NUMBER.finditer(sentence)]
    if not numbers:
        return None
    leads = _HEDGES.fullmatch(numbers[0].string[: numbers[0].start()])
    chosen = numbers[0] if leads else numbers[-1]
    before = chosen.string[: chosen.start()][-_SEEN:]
    in_formula = _PART_OF.search(before) or _GOES_ON.match(chosen.string, chosen.end())
    return "" if in_formula or _is_one_of_several(chosen) else chosen.group()


def last(text: str) -> str | None:
    """Return a text's last number; None if it has none, or if it is one of several (2, 3)."""
    found = next(iter(deque(NUMBER.finditer(text), maxlen=1)), None)
    return None if found is None or _is_one_of_several(found) else found.group()


def _is_one_of_several(number: re.Match[str]) -> bool:
    """Return whether a number goes on a list: not a date, nor behind a comma what a word counts."""
    before = number.string[max(0, number.start() - _SEEN) : number.start()]
    if not _SEVERAL.search(before) or _DATE.search(before) or _WORKED_OUT.search(before):
        return False
    counted = _AFTER_COMMA.search(before) and _COUNTED.match(number.string, number.end())
    return not counted or bool(_MANY.search(before))
