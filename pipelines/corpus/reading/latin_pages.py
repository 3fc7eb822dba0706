"""Tell apart the code pages of Latin letters: the right one gives letters that one language writes.

The same bytes are "São" in one page and "Săo" in another, both letters, so statistics that count odd
characters tie. But what writes ă writes no ç, which the same text holds.
"""

from __future__ import annotations

import re
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
)
ALL = tuple(letters for _, languages in PAGES for letters in languages)
MARKS = "«»“”„’–—…€§°\u00a0"  # written in any language
OTHER_SCRIPT = re.compile("[\u0370-\u1cff\u2e80-\ud7ff\uf900-\uffdc]")
FOREIGN = re.compile("[A-Za-z]?[^\x00-\x7f]+[A-Za-z]?")  # with the plain letters that it touches
WHOLLY = 0.99  # of what is not ASCII has to fit before another script is doubted


def likeliest(data: bytes, guess: str) -> str:
    """Return the page in which most of the data is one language's letters; the guess where none is better.

    A guess that reads the data in another script than Latin stands, unless that breaks up Latin words.
    """
    guessed = data.decode(guess, "replace")
    others = [found[0] for found in FOREIGN.finditer(guessed) if OTHER_SCRIPT.search(found[0])]
    if not all(run[0].isascii() or run[-1].isascii() for run in others):
        return guess
    best, most = guess, WHOLLY if others else 0.0
    for page, languages in (*PAGES, (guess, ALL)):
        share = _share(data.decode(page, "replace"), languages)
        if share > most:
            best, most = page, share
    return best


def _share(text: str, languages: tuple[str, ...]) -> float:
    """Return the share of what is not ASCII that the language writes which suits best."""
    counts = Counter(c for c in text if not c.isascii())
    known = (sum(counts[c] for c in {*letters, *letters.upper(), *MARKS}) for letters in languages)
    return max(known) / max(1, counts.total())
