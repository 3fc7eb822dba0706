"""Split a text into sentences: not behind "Dr.", "z. B." or the 3. of "3. Mai"."""

from __future__ import annotations

import re

_END = re.compile(r"(?<=[.!?؟।])(?P<closing>[\"'”’)\]]*)\s+|(?<=[。！？])|\n+")
_OPENING = "(\"“„'‘[*_"
# What hardly ever ends a sentence; Inc., etc. and the like do so as often as not: there a small letter tells.
_SHORT = frozenset(
    (
        "dr.",
        "prof.",
        "mr.",
        "mrs.",
        "ms.",
        "mme.",
        "st.",
        "hr.",
        "sr.",
        "sra.",
        "vs.",
        "cf.",
        "bzw.",
        "ca.",
        "approx.",
        "e.g.",
        "i.e.",
        "z.b.",
        "d.h.",
        "u.a.",
    )
)
_BEFORE_NUMBERS = frozenset(
    (
        "no.",
        "nos.",
        "nr.",
        "fig.",
        "eq.",
        "sec.",
        "art.",
        "abs.",
        "kap.",
        "ziff.",
        "bd.",
        "vol.",
        "ch.",
        "pp.",
    )
)
_MONTHS = frozenset(
    (
        "januar",
        "februar",
        "märz",
        "april",
        "mai",
        "juni",
        "juli",
        "august",
        "september",
        "oktober",
        "november",
        "dezember",
        "jan",
        "feb",
        "mär",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "okt",
        "nov",
        "dez",
    )
)


def sentences(text: str) -> list[str]:
    """Split a text at the ends of its sentences and lines."""
    found = []
    start = 0
    for match in _END.finditer(text):
        closing = match["closing"] or ""
        said = text[start : match.start()] + closing
        if closing or "\n" in match.group() or not _goes_on(said, text[match.end() : match.end() + 40]):
            found.append(said)
            start = match.end()
    return [piece.strip() for piece in [*found, text[start:]] if piece.strip()]


def _goes_on(said: str, following: str) -> bool:
    """Return whether the full stop behind which a text goes on ends no sentence."""
    if not said.endswith("."):
        return False
    before, last = ["", *(word.lstrip(_OPENING) for word in said[-40:].split()[-2:])][-2:]
    stem = last[:-1]
    if following[:1].islower() or last.casefold() in _SHORT:
        return True
    if last.casefold() in _BEFORE_NUMBERS:
        return following[:1].isdigit()
    if stem.isdigit() and len(stem) <= 2:  # a day
        return following.partition(" ")[0].rstrip(".,").casefold() in _MONTHS
    if len(stem) == 1 and stem.isalpha():  # of "z. B." or "Jane Q. Miller", not of "vitamin C."
        return stem.islower() or before[:1].isupper() or not before or _is_initial(before)
    return False


def _is_initial(word: str) -> bool:
    return len(word) == 2 and word[0].isalpha() and word[1] == "."
