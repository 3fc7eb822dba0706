"""Tell apart the code pages of Latin letters: the right one gives letters that one language writes.

The same bytes are "São" in one page and "Săo" in another, both letters, so statistics that count odd
characters tie. But what writes ă writes no ç, which the same text holds. Signs such as £ and • count as well,
and both only where they stand as in text: £5 but not POŁUDNIE, a capital at a word's beginning but not DonÕt.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

# For each page the letters beyond a-z of languages written in it; the first page wins a tie.
WESTERN = (
    "äöüß",  # German
    "àâæçéèêëîïôœùûüÿ",  # French
    "áéíñóúü¿¡",  # Spanish
    "àáâãçéêíóôõúü",  # Portuguese
    "àèéìíîòóù",  # Italian
    "áàéèëêïíöóüúû",  # Dutch
    "àçéèíïòóúü·",  # Catalan
    "äåöéšž",  # Swedish, Finnish
    "æøåéèêóòôäöü",  # Danish, Norwegian
)
CENTRAL = (
    "ąćęłńóśźż",  # Polish
    "áčďéěíňóřšťúůýž",  # Czech
    "áäčďéíĺľňóôŕšťúýž",  # Slovak
    "áéíóöőúüű",  # Hungarian
    "čćđšž",  # Croatian, Slovenian
    "ăâîşţ",  # Romanian
)
TURKISH = ("çğıöşüâîûİ",)
BALTIC = ("ąčęėįšųūž", "āčēģīķļņšūž", "äõöüšž")  # Lithuanian, Latvian, Estonian
ICELANDIC = ("áæðéíóöúýþ",)  # behind Turkish, whose ğ, ı and ş are the same bytes as ð, ý and þ
VIETNAMESE = ("ăâđêôơưàáéèíóòúùý\u0300\u0301\u0303\u0309\u0323",)
PAGES = (
    ("cp1252", WESTERN),
    ("cp1250", CENTRAL),
    ("iso8859_2", CENTRAL),
    ("cp1254", TURKISH),
    ("cp1257", BALTIC),
    ("cp1252", ICELANDIC),
    ("cp1258", VIETNAMESE),
    ("iso8859_15", WESTERN),  # differs from cp1252 in €, Œ, Š and Ž
    ("mac_roman", WESTERN),  # of older Macintosh computers
    ("cp850", WESTERN),  # of DOS
)
ALL = tuple(letters for _, languages in PAGES for letters in languages)
ANYWHERE = "’‘–—·\u00a0\u00ad"  # signs of any language that may stand between two letters
APART = "©®™§¶†‡•…°‰“”„‚‹›«»€£¢±×÷µ¼½¾²"  # that have a letter on one side at most
BEHIND_NONE = "„‚£¼½¾±"  # of these, have none before them
# What may follow some of these directly: letters of Central European pages, as the same bytes, begin words.
NAME, UNITS = r"[A-Z][a-z]", r"(?:in|ft|yd|lb|oz|cup|tsp|tbsp|[cdkm]?m|k?g|h)s?\b"
FOLLOWED_BY = {
    sign: re.compile(pattern)
    for signs, pattern in (
        ("£", rf"(?:[mk]|[mbt]n)\b|{NAME}"),
        ("©®", NAME),
        ("¶", r"[A-Z]"),
        ("µ", r"(?:[mgsl]|mol|rad|bar|sec)\b|[A-Z]"),
        ("¼½¾", UNITS),
    )
    for sign in signs
}
PAIRED = {"«": "»", "»": "«", "¿": "?", "¡": "!"}
PAIR = 500  # characters at most between two marks of a pair
UNIT = re.compile(r"(?:\b[cdkm]?m|\b(?:ft|in|yd)|\d)\Z")  # before ¹ and ³
ALONE = "àáâéèêíóòôåöøæőįù"  # letters that are words
OTHER_SCRIPT = re.compile("[\u0370-\u1cff\u2e80-\ud7ff\uf900-\uffdc]")
FOREIGN = re.compile("[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")  # with the plain letters that it touches
WHOLLY = 0.99  # of what is not ASCII has to fit before another script is doubted


def likeliest(data: bytes, guess: str) -> str:
    """Return the page in which most of the data is one language's letters; the guess where none is better.

    A guess that reads the data in another script than Latin stands, unless that breaks up Latin words, or
    gives single characters only, as signs among Latin words are.
    """
    guessed = data.decode(guess, "replace")
    others = [found[0] for found in FOREIGN.finditer(guessed) if OTHER_SCRIPT.search(found[0])]
    breaks_up = all(run[0].isascii() or run[-1].isascii() for run in others)
    if not breaks_up and any(len(OTHER_SCRIPT.findall(run)) > 1 for run in others):
        return guess
    best, most = guess, WHOLLY if others else 0.0
    for page, languages in (*PAGES, (guess, ALL)):
        share = _share(data.decode(page, "replace"), languages)
        if share > most:
            best, most = page, share
    return best


def _share(text: str, languages: tuple[str, ...]) -> float:
    """Return the share of what is not ASCII that the language writes which suits best."""
    signs, letters = 0, Counter[str]()
    total = 0
    for at, c in enumerate(text):
        if c.isascii():
            continue
        total += 1
        if _is_sign(text, at):
            signs += 1
        elif _opens_question(text, at) if c in "¿¡" else _is_letter(c) and _reads_as_letter(text, at):
            letters[c] += 1
    known = (sum(letters[c] for c in {*language, *language.upper()}) for language in languages)
    return (signs + max(known)) / max(1, total)


def _is_letter(c: str) -> bool:
    return c.isalpha() or bool(c and unicodedata.combining(c))


def _is_sign(text: str, at: int) -> bool:
    """Return whether a sign stands where it would in a text of any language."""
    c, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if c in ANYWHERE:
        return True
    if c in APART:
        return _stands_apart(text, at)
    if c in "¹³":
        return bool(UNIT.search(text[max(0, at - 4) : at])) and not _is_letter(after)
    if c in "ªº":
        return before.isdigit() or (c == "º" and before in ("n", "N"))
    return c == "¥" and (before.isdigit() or after.isdigit())


def _stands_apart(text: str, at: int) -> bool:
    """Return whether a sign touches letters as signs do only, not as other pages' letters do: £ukasz."""
    c, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    ends, begins = _is_letter(before), _is_letter(after)
    if ends and (begins or c in BEHIND_NONE):
        return False
    if c in PAIRED and (ends or begins):
        return PAIRED[c] in text[max(0, at - PAIR) : at + PAIR]
    if begins and c in FOLLOWED_BY and not before.isdigit():
        return FOLLOWED_BY[c].match(text, at + 1) is not None
    return True


def _opens_question(text: str, at: int) -> bool:
    """Return whether a Spanish mark opens what another closes: no ż as in Ksi±¿ka."""
    return not _is_letter(text[at - 1 : at]) and PAIRED[text[at]] in text[at : at + PAIR]


def _reads_as_letter(text: str, at: int) -> bool:
    """Return whether a letter stands where it would in a word: no capital behind a small letter or before
    one within a word, none between figures, and none by itself that is no word."""
    c, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if before.isdigit() and after.isdigit():
        return False
    if not (_is_letter(before) or _is_letter(after)):
        begun = text[max(0, at - 2) : at].rstrip(" ")[-1:]
        within = c.isupper() and (begun == "," or (begun.isalnum() and not begun.isupper()))
        return after == "." or (c.lower() in ALONE and not within)
    if c.isupper() and _is_letter(before):
        return not before.islower() and not after.islower()
    return c.isupper() or not after.isupper()
