"""Look up how frequent words are in a language in general, so that ordinary words are told from terms.

The counts are those of pyspellchecker's dictionaries, where there is one of the documents' language.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

LANGUAGES = frozenset(("ar", "de", "en", "es", "eu", "fa", "fr", "it", "lv", "nl", "pt", "ru"))
DETECTED_FROM = 20_000  # characters from which the language is detected
FEWEST_WORDS = 50  # of a text whose language is detected


@dataclass(frozen=True)
class GeneralWords:
    """Word counts of a language."""

    counts: dict[str, int]
    total: int

    def share(self, word: str) -> float:
        """Return a word's share of all words; an unknown one is taken for one that occurs once."""
        return max(1, self.counts.get(word, 0)) / self.total


def general_words(texts: list[str]) -> GeneralWords | None:
    """Return the word counts of the texts' language; None for a language without them or too little text."""
    from langdetect import DetectorFactory, LangDetectException, detect

    room = max(1, DETECTED_FROM // max(1, len(texts)))
    beginnings = " ".join(text[:room] for text in texts)[:DETECTED_FROM]
    if len(beginnings.split()) < FEWEST_WORDS:
        return None
    DetectorFactory.seed = 0  # else it draws anew at every call
    try:
        language = detect(beginnings)
    except LangDetectException:
        return None
    return _counts(language) if language in LANGUAGES else None


@lru_cache(maxsize=2)
def _counts(language: str) -> GeneralWords:
    from spellchecker import SpellChecker

    frequency = SpellChecker(language=language, distance=1).word_frequency
    return GeneralWords(dict(frequency.dictionary), int(frequency.total_words))
