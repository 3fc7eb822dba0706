"""Split a text into sentences: not behind "Dr.", "z. B." or the 3. of "3. Mai", and not between brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, pairwise

from pipelines.corpus.markup.parts import names

SPACED_STOPS = ".!?؟।۔။។։።፧"  # end a sentence where a space or a line follows
_CASED_STOPS = (".", "!", "?")  # of scripts with capitals: elsewhere a small letter may begin a sentence
UNSPACED_STOPS = "。！？．"  # end one whatever follows
_NUMBERED = "0-9A-Za-z０-９Ａ-Ｚａ-ｚ"  # what ． stands behind in ３．５, １．はじめに and Ｊ．Ｓｍｉｔｈ
_CLOSING = "[\"'”’“«)\\]]*(?:[ \u00a0\u202f]?»(?=\\s))?"  # in French a space comes before »
_END = re.compile(
    rf"(?<=[{SPACED_STOPS}])(?P<closing>{_CLOSING})\s+"
    rf"|(?<=[{UNSPACED_STOPS}])(?<![{_NUMBERED}]．)(?P<after>[”’」』）]*)|\n+"
)
# In Thai, Lao and Khmer a space divides phrases, and a sentence's end mostly looks no different.
_ENDLESS = "\u0e00-\u0eff\u1780-\u17ff"
_IS_ENDLESS = re.compile(rf"[{_ENDLESS}]")
# Not between a number and what it counts, nor before Thai's marks of repetition and abbreviation
_PAUSE = re.compile(rf"(?<=[^\d\s])\s+(?=[{_ENDLESS}])(?![\d\u0e46\u0e2f])")
LONGEST_RUN = 160  # characters of phrases that count as one sentence
_REMARK = 200  # characters of a line within which a bracket closes again
# "U.S." and "BGBl.": as often as not a name follows, and two sentences in one are better than half of one
_ABBREVIATED = re.compile(
    r"(?:[A-Z]\.){2,}|(?:[A-Z]\.-)+[A-Z]\.|(?=[^a-z]*[A-Z])(?=.*[a-z])[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{2,}\."
)
_OPENING = "(\"“„'‘[*_"
# What hardly ever ends a sentence; Inc., etc. and the like do so as often as not: there a small letter tells.
_SHORT = names(
    "dr. prof. mr. mrs. ms. mme. st. hr. sr. sra. vs. cf. bzw. ca. approx. e.g. i.e. z.b. d.h. u.a. vgl."
    " lt. i.s.d. i.s.v. i.v.m. inkl. mio. mrd."
    " fa. mlle. c.-à-d. éd. núm. ej. uu. avda. dña. ud. uds. pág. págs."  # French, Spanish
    " ул. им. рис. табл. стр. гл. ст. см. ср. напр. проф. акад. тыс. млн. млрд."
    " डॉ. प्रो. श्री. सुश्री. रु. कि.मी. ई.पू. พ.ศ. ค.ศ. ดร."
)
_BEHIND_P = "p. ex."  # in French; "ex." alone is English too, as is what "EE. UU." begins with
_TITLES = names("M. MM. Gen. Gov. Sen. Col. Capt. Rev.")  # written large, unlike metres and genera
_BEFORE_NUMBERS = names(
    "no. nos. nr. fig. eq. sec. art. abs. az. gem. s. kap. ziff. bd. vol. ch. pp. para. cl. al. jan. feb."
    " mar. apr. jun. jul. aug. sep. sept. oct. nov. dec."
    " figs. eqs. eqns. secs. sect. sects. ref. refs. chap. chaps. chs. tab. tabs. vols. arts. abb. anm. anl."
    " env."  # in French
)
_ARTICLES = names("article articles art. arts.")  # of French codes, before L. 123-4 and R. 421-1
_BOOKS = ("L.", "R.", "D.", "A.")
_IN_BOOK = re.compile(r"[LRDA]\. ?\d")
_ELIDED = re.compile(r"(?<!\w)[^\W\d_]{1,5}['’](?=\w{2})")  # l'art., dell’art., but not don't.
_DAY_AND_MONTH = re.compile(r"(?<!\d)\d{1,2}\. ?\d{1,2}\.\Z")  # in figures, before a year
_YEAR = re.compile(r"(?:1[5-9]|20)\d\d\b")
# Behind 「…。」: と, って and など go on; these words that begin with と do not.
_QUOTED = re.compile(r"[。！？．][」』]\Z")
_BEHIND_QUOTED = re.compile(r"と(?!ころ|ても|にかく|りあえず|うとう|き)|って|など")
# Before a German ordinal: im 19. Jahrhundert, der 2. Weltkrieg
_BEFORE_ORDINALS = names("im am der die das dem den des vom zum zur beim seit jeder jede jedes jedem jeden")
_MONTHS = names(
    "januar februar märz april mai juni juli august september oktober november dezember jan feb mär apr"
    " jun jul aug sep sept okt nov dez"
)


def sentences(text: str) -> list[str]:
    """Split a text at the ends of its sentences and lines; where a script marks none, between phrases."""
    found = []
    start = 0
    for match in _END.finditer(text):
        said = text[start : match.start()] + (match["closing"] or match["after"] or "")
        following = text[match.end() : match.end() + _REMARK]
        goes_on = match["closing"] is not None and _goes_on(said, match["closing"], following)
        if "\n" in match.group() or not (_is_open(said, following) or goes_on):
            found.append(said)
            start = match.end()
    parts = chain.from_iterable(map(_phrases, [*found, text[start:]]))
    return [part.strip() for part in parts if part.strip()]


def _phrases(said: str) -> Iterator[str]:
    """Yield a sentence as it is, but a long run without marked ends in parts of some phrases each."""
    start = 0
    if len(said) > LONGEST_RUN and 2 * len(_IS_ENDLESS.findall(said)) >= len(said):
        begin = [pause.end() for pause in _PAUSE.finditer(said)]
        for place, following in pairwise([*begin, len(said)]):
            if following - start > LONGEST_RUN:
                yield said[start:place]
                start = place
    yield said[start:]


def _is_open(said: str, following: str) -> bool:
    """Return whether a text goes on within a bracket that closes on the same line, or behind a quotation."""
    line = following.partition("\n")[0]
    if _QUOTED.search(said[-2:]) and _BEHIND_QUOTED.match(line):
        return True
    return any(_closes(said, line, opening, closing) for opening, closing in ("()", "（）"))


def _closes(said: str, line: str, opening: str, closing: str) -> bool:
    """Return whether a line closes a bracket that is open before it."""
    if said.rfind(opening) <= said.rfind(closing):
        return False
    inside, closed, _ = line.partition(closing)
    return bool(closed) and opening not in inside


def _goes_on(said: str, closing: str, following: str) -> bool:
    """Return whether a sentence goes on behind a stop: println! macros, (A, etc.) of it, “Who?” he said."""
    if said.removesuffix(closing).endswith(_CASED_STOPS) and begins_small(following):
        return True
    return not closing and said.endswith(".") and is_abbreviated(said, following[:40])


def begins_small(text: str) -> bool:
    """Return whether a text begins with a letter that would be a capital if a sentence began there."""
    first = text[:1]
    return first.islower() and not "\u10d0" <= first <= "\u10ff"  # Georgian has small letters alone


def _is_spanish_or_french(last: str, following: str) -> bool:
    """Return whether a word is abbreviated by what follows: EE. UU., av. J.-C."""
    is_spanish = last == "EE." and following.startswith("UU.")
    return is_spanish or (last in ("av.", "ap.") and following.startswith("J.-C"))


def _is_of_a_code(before: str, last: str, following: str) -> bool:
    """Return whether a word belongs to an article of a French code: art. L. 123-4."""
    if last in _BOOKS and following[:1].isdigit():
        return before.casefold() in _ARTICLES
    return last.casefold() in _ARTICLES and _IN_BOOK.match(following) is not None


def is_abbreviated(said: str, following: str) -> bool:
    """Return whether a text's last full stop belongs to an abbreviation, an initial or a day."""
    end = _ELIDED.sub("", said[-40:])
    before, last = ["", *(word.lstrip(_OPENING) for word in end.split()[-2:])][-2:]
    stem = last[:-1]
    abbreviated = last.casefold() in _SHORT or last in _TITLES
    if abbreviated or _ABBREVIATED.fullmatch(last) or _ABBREVIATED.fullmatch(last.rpartition("-")[2]):
        return True
    if f"{before} {last}".casefold() == _BEHIND_P or _is_spanish_or_french(last, following):
        return True
    if last.casefold() in _BEFORE_NUMBERS and following.lstrip("(§ ")[:1].isdigit():
        return True
    if _YEAR.match(following) and _DAY_AND_MONTH.search(said[-8:]):
        return True
    if stem.isdigit() and len(stem) <= 2:  # a day
        if before.casefold() in _BEFORE_ORDINALS:
            return True
        return following.partition(" ")[0].rstrip(".,").casefold() in _MONTHS
    if _is_of_a_code(before, last, following):
        return True
    if len(stem) == 1 and stem.isalpha():  # of "z. B." or "Jane Q. Miller", not of "vitamin C."
        caseless = stem.lower() == stem.upper()
        return stem.islower() or caseless or before[:1].isupper() or not before or _is_initial(before)
    return False


def _is_initial(word: str) -> bool:
    return len(word) == 2 and word[0].isalpha() and word[1] == "."
