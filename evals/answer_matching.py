"""Match a response with the answers that count, whatever its case, accents, punctuation and articles.

Signs count: -18 is not 18, and C++ is not C.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

# Scripts written without spaces: there, whole words can't be told and the answer only has to occur.
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff"
_UNSPACED = re.compile(f"[{_NO_SPACES}]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
# Marks that change what is meant: a minus that opens a number, where no range ends (10-12, 20%-30%), and the
# signs at the end of C++, F# or A+, not those between words (Ctrl+C).
_MINUS = rf"(?:(?<![^\W_])|(?<=[{_NO_SPACES}]))(?<![-\u2212%‰°′″€)\]])[-\u2212](?=\d)"
_SIGNS = r"(?<=[^\W\d_])(?:[+#]{2,}|[+#](?![^\W_]))"
_NOT_WORD = r"(?<!\d)\.|\.(?!\d)|[^\w.]|_"
_MARK = re.compile(f"(?P<minus>{_MINUS})|(?P<signs>{_SIGNS})|{_NOT_WORD}")
_ARTICLES = {"a", "an", "the"}


def normalise(text: str) -> str:
    """Strip case, accents, punctuation, articles and thousands separators; keep decimal points and signs."""
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKC", plain).casefold())
    words = _MARK.sub(_spaced, plain).split()
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def _spaced(mark: re.Match[str]) -> str:
    """Return a space for a mark; a minus stays before its number, other signs behind their letter."""
    return " -" if mark["minus"] else f"{mark['signs'] or ''} "


def matches(response: str, answers: Iterable[str], strict: bool = False) -> bool:
    """Return whether an answer equals the response (strict), or occurs in it as whole words (lenient)."""
    said = normalise(response)
    wanted = [answer for answer in map(normalise, answers) if answer]
    if strict:
        return said in wanted
    return any(_occurs(answer, said) for answer in wanted)


def _occurs(answer: str, said: str) -> bool:
    """Return whether a normalised text contains a normalised answer as whole words."""
    return answer in said if _UNSPACED.search(answer) else f" {answer} " in f" {said} "


def mentions(response: str, answers: Iterable[str], other_than: Iterable[str]) -> bool:
    """Match leniently, but never inside a longer other answer: "New York" does not name York."""
    wanted = [answer for answer in map(normalise, answers) if answer]
    said = normalise(response)
    for other in map(normalise, other_than):
        if any(other != answer and _occurs(answer, other) for answer in wanted):
            said = _without(other, said)
    return any(_occurs(answer, said) for answer in wanted)


def _without(answer: str, said: str) -> str:
    """Replace a normalised answer in a normalised text by a mark that is no word."""
    if _UNSPACED.search(answer):
        return said.replace(answer, "|")
    return re.sub(rf"(?<!\S){re.escape(answer)}(?!\S)", "|", said)
