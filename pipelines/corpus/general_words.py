"""Look up how frequent words are in a language in general, so that ordinary words are told from terms.

The counts are those of pyspellchecker's dictionaries, from films' subtitles, where there is one of the
documents' language; for English also those of the web, which wordsegment ships: speech knows few of the words
that are ordinary in writing (reviews, tasks, implementation).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

LANGUAGES = frozenset(("ar", "de", "en", "es", "eu", "fa", "fr", "it", "lv", "nl", "pt", "ru"))
DETECTED_FROM = 20_000  # characters from which the language is detected
FEWEST_WORDS = 50  # of a text whose language is detected


@dataclass(frozen=True)
class GeneralWords:
    """Word counts of a language."""

    counts: dict[str, int]
    total: int
    others: tuple[GeneralWords, ...] = ()  # the counts of other kinds of text

    def share(self, word: str) -> float:
        """Return a word's share of all words; an unknown one is taken for one that occurs once."""
        return max(1, self.counts.get(word, 0)) / self.total

    def highest_share(self, words: str) -> float:
        """Return the highest known share of a word, or of two in a row; that of "you're" is that of "you",
        that of "e-mail" also that of "email" and "e mail"."""
        forms = {words.replace("’", "'"), re.split("['’]", words)[0]}
        forms |= {words.replace("-", ""), words.replace("-", " ")}
        return max(counts.share(form) for counts in (self, *self.others) for form in forms)

    def and_those_of(self, other: GeneralWords | None) -> GeneralWords:
        """Return these counts with another language's beside them."""
        if other is None or other.counts is self.counts:
            return self
        return replace(self, others=(*self.others, other, *other.others))


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
    written = (_web_counts(),) if language == "en" else ()
    return GeneralWords(dict(frequency.dictionary), int(frequency.total_words), written)


@lru_cache(maxsize=1)
def _web_counts() -> GeneralWords:
    """Return how often English web pages hold a word, or two words in a row."""
    from wordsegment import Segmenter

    words = {word: int(count) for word, count in Segmenter.parse(Segmenter.UNIGRAMS_FILENAME).items()}
    pairs = {pair: int(count) for pair, count in Segmenter.parse(Segmenter.BIGRAMS_FILENAME).items()}
    return GeneralWords(words | pairs, sum(words.values()))
