"""Match a response with the answers that count, whatever its case, accents, punctuation and articles.

Signs count: -18 is not 18, C++ is not C, and €5 is not $5.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

# Scripts written without spaces: there, whole words can't be told and the answer only has to occur. A number
# or a Latin word among them is a word of its own.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_BORDER = re.compile(rf"(?<=[{_NO_SPACES}])(?=[^\s{_NO_SPACES}])|(?<=[^\s{_NO_SPACES}])(?=[{_NO_SPACES}])")
# Left out: accents, the points of Arabic and Hebrew, hamza and madda (many write أحمد as احمد), Arabic's
# lengthening line, joiners, variants of signs.
_ACCENTS = re.compile(
    "[\u0300-\u036f\u064b-\u0655\u0670\u0640\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u200c\u200d\u20d0-\u20ff\ufe00-\ufe0f]"
)
# In Persian, where some write a space.
_HALF_SPACE = re.compile("(?<=[\u0600-\u06ff])\u200c(?=[\u0600-\u06ff])")
# Other marks are part of their word, as vowels of Hindi, Tamil and Thai are; Python's \w leaves them out.
MARKS = "".join(mark for mark in map(chr, range(0x10000)) if unicodedata.category(mark)[0] == "M")
# Trademarks, and what is not seen: soft hyphens, and the marks between words of Khmer, Lao and Burmese.
_LEFT_OUT = str.maketrans("", "", "™℠\u00ad\u200b\u2060")
# Unicode takes these letters apart into no letter and accent.
_PLAIN_LETTERS = str.maketrans({"œ": "oe", "æ": "ae", "ø": "o", "ł": "l", "đ": "d", "ı": "i"})
_OTHER_DIGIT = re.compile(r"(?![0-9])\d")
_MIXED_FRACTION = re.compile("(?<=\\d)(?=[¼-¾⅐-⅞])")  # 1½
_DOTTED = re.compile(  # 1.234,56 and 1.500.000, not 1.500, which may be either
    r"(?<![\d.,])\d{1,3}(?:(?:\.\d{3})+(?=,\d\d?(?!\d))|(?:\.\d{3}){2,}(?!\d|\.\d))"
)
# A unit that stands right behind its number
_UNIT = re.compile(r"(?<=\d)(?=(?:[kKMGT]i?[Bb]|[kMG]?Hz|[mkc]m|[mk]g|ms|[ap]m|[AP]M)(?![^\W_]))")
_LIST_MARK = re.compile(r"^[ \t]*\d{1,3}[.)][ \t]+(?=\S)", re.MULTILINE)
_THIN_SPACES = re.compile("(?<=\\d)['’\u00a0\u2009\u202f](?=\\d{3}(?!\\d))")  # 1'500
_SPACED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)")  # 12 000
_THOUSANDS = re.compile(r"(?<=\d)(?<!\b0),(?=\d{3}(?!\d))")  # 1,500, not 0,125
_DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d\d?(?!\d))|(?<=\b0),(?=\d)")
_BARE_DECIMAL = re.compile(r"(?<![\w.])\.(?=\d+(?!\w|\.\d))")  # .05, not ..5, 1.5 or .7z
_HALF_OF_DAY = re.compile(r"(?<=\d)\s?([ap])\.\s?m\b\.?", re.IGNORECASE)  # 5 p.m.
# Marks that change what is meant: a minus that opens a number, where no range ends (10-12, 20%-30%), and the
# signs at the end of C++, F# or A+, not those between words (Ctrl+C).
_MINUS = rf"(?:(?<![^\W_])|(?<=[{_NO_SPACES}]))(?<![-\u2212\u2013%‰°′″€)\]])[-\u2212\u2013](?=\d)"
_SIGNS = r"(?<=[^\W\d_])(?:[+#]{2,}|[+#](?![^\W_]))"
_NOT_WORD = rf"(?<!\d)\.|\.(?!\d)|[^\w.{MARKS}]|_"
_MARK = re.compile(f"(?P<minus>{_MINUS})|(?P<signs>{_SIGNS})|{_NOT_WORD}")
_ARTICLES = {"a", "an", "the"}
_CURRENCY = re.compile("[$¢-¥֏؋߾߿৲৳৻૱௹฿៛\u20a0-\u20c0\ua838\ufdfc﹩＄￠￡￥￦]")
_NUMBER = r"\d(?:[\d.,'’\u00a0\u202f\u2013-]{0,30}\d)?"  # bounded: a loop may write thousands
_AMOUNT = re.compile(rf"{_CURRENCY.pattern}\s?{_NUMBER}|{_NUMBER}\s?{_CURRENCY.pattern}")
# The A of "Hall A is closed", "Hall A (north)", "A) Oslo", "A - Oslo", of a table's cell or a paragraph is a
# name and no article; it is kept as a letter of its own.
_NAMED_A = re.compile(
    r"(?<=[^\W_] )A(?=\s+[^\W\d_A-Z]|\s+\()|(?<![^\W_])A(?=[)\]]|[,;:!?*_\"'”’»](?![^\W_]))"
    r"|(?<![^\W_])A(?=\s*\||\s+[-–—]\s|[ \t]*\n\s*\n)"
)
_DOTTED_A = re.compile(r"(?<![^\W_])A(?=\.(?![^\W_]))")  # of "A. Oslo", and of "A. Milne"
_LETTER_A = "\u1d00"


@lru_cache(maxsize=1024)  # a passage is asked for the answers of many questions, an answer of many models
def normalise(text: str) -> str:
    """Strip case, accents, punctuation, articles and thousands separators; keep decimal points and signs."""
    text = _BARE_DECIMAL.sub("0.", _HALF_OF_DAY.sub(r" \1m", text.translate(_LEFT_OUT)))
    text = _UNIT.sub(" ", text)
    spaced = _MIXED_FRACTION.sub(" ", _HALF_SPACE.sub(" ", _THIN_SPACES.sub("", text)))
    spaced = _DOTTED.sub(lambda number: number[0].replace(".", ""), _in_ascii_digits(spaced))
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", spaced))
    plain = _NAMED_A.sub(_LETTER_A, unicodedata.normalize("NFKC", plain)).casefold()
    plain = _DECIMAL_COMMA.sub(".", _THOUSANDS.sub("", plain.translate(_PLAIN_LETTERS)))
    words = _MARK.sub(_spaced, _BORDER.sub(" ", plain)).split()
    if words[-1:] == ["a"]:  # no word follows to which an article could belong
        words[-1] = _LETTER_A
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def _in_ascii_digits(text: str) -> str:
    """Write the digits of other scripts as 0 to 9."""
    return _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)


def _spaced(mark: re.Match[str]) -> str:
    """Return a space for a mark; a minus stays before its number, other signs behind their letter."""
    return " -" if mark["minus"] else f"{mark['signs'] or ''} "


def matches(response: str, answers: Iterable[str], strict: bool = False) -> bool:
    """Return whether an answer equals the response (strict), or occurs in it as whole words (lenient)."""
    for said, wanted in _by_currency(response, answers):
        named = (form == answer if strict else occurs(answer, form) for form in said for answer in wanted)
        if any(named):
            return True
    return False


def occurs(answer: str, said: str) -> bool:
    """Return whether a normalised text contains a normalised answer as whole words."""
    return answer in said and _whole(answer).search(said) is not None


def _whole(answer: str) -> re.Pattern[str]:
    """Match an answer whose ends, where they are not of a script without spaces, are ends of words."""
    begins = "" if _UNSPACED.match(answer) else r"(?<!\S)"
    ends = "" if _UNSPACED.match(answer[-1]) else r"(?!\S)"
    return re.compile(f"{begins}{re.escape(answer)}{ends}")


def mentions(response: str, answers: Iterable[str], other_than: Iterable[str]) -> bool:
    """Match leniently, but never inside a longer other answer: "New York" does not name York."""
    others = _forms_of_all(other_than)
    for said, wanted in _by_currency(response, answers):
        for other in others:
            if any(other != answer and occurs(answer, other) for answer in wanted):
                said = [_without(other, form) for form in said]
        if any(occurs(answer, form) for form in said for answer in wanted):
            return True
    return False


def _by_currency(response: str, answers: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield what a response says, and the answers of one currency to look for in it, in their normal forms.

    For answers with a sign, amounts with another one say nothing: €5 is not $5. One without a sign may be it.
    """
    response = _without_list_marks(response)
    groups: dict[frozenset[str], list[str]] = {}
    for answer in answers:
        groups.setdefault(frozenset(_CURRENCY.findall(answer)), []).append(answer)
    for signs, group in groups.items():
        yield forms(_without_other_amounts(response, signs)), _forms_of_all(group)


def _without_other_amounts(response: str, signs: frozenset[str]) -> str:
    if not signs:
        return response
    return _AMOUNT.sub(lambda amount: amount[0] if signs & set(amount[0]) else " ", response)


def forms(text: str) -> list[str]:
    """Return the normal form of a text, and others where it may be read otherwise: 12 000 as one number or as
    two, the A of "A." as a letter or as an initial."""
    read = (text, _DOTTED_A.sub(_LETTER_A, text))
    joined = (_SPACED_THOUSANDS.sub(lambda number: number[0].replace(" ", ""), one) for one in read)
    return [normalise(one) for one in dict.fromkeys((*read, *joined))]  # mostly one


def _forms_of_all(answers: Iterable[str]) -> list[str]:
    return [form for answer in answers for form in forms(_without_list_marks(answer)) if form]


def _without_list_marks(text: str) -> str:
    """Take the numbers off a list, which answer nothing; of one line alone ("3. Mai 2020") it stays."""
    several = len(_LIST_MARK.findall(text)) > 1
    return _LIST_MARK.sub("", text) if several else text


def _without(answer: str, said: str) -> str:
    """Replace a normalised answer in a normalised text by a mark that is no word."""
    return _whole(answer).sub("|", said)
