"""Look up how frequent words are in a language in general, so that ordinary words are told from terms.

The counts are those of pyspellchecker's dictionaries, from films' subtitles, where there is one of the
documents' language; for English also those of the web, which wordsegment ships: speech knows few of the words
that are ordinary in writing (reviews, tasks, implementation).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from pipelines.corpus.markup.parts import names

# Languages with counts, each with the name of its stemmer, if it has one.
LANGUAGES = {
    "ar": "arabic",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "eu": None,
    "fa": None,
    "fr": "french",
    "it": "italian",
    "lv": None,
    "nl": "dutch",
    "pt": "portuguese",
    "ru": "russian",
}
# There the dictionary counts a noun only where it is written small: "Jahr" 176 times of 124 million words. So
# how rare a word is cannot be told, only whether it is known: then it is taken for a common noun.
NOUNS_CAPITALISED = frozenset(("de",))
COMMON_NOUN = 1e-4
# The list of Spanish has singulars and infinitives, and few other forms; these are irregular.
SPANISH_FORMS = names(
    "era eran es está están estaba estaban estuvo fue fueron ha había habían habrá han hay haya hace"
    " hacen haga hizo hubo sea sean será serán sería sido son va van vamos voy vaya iba da dan dé dice"
    " dicen diga dijo dicho hecho puede pueden puedes podrá podrán podría podrían pudo tiene tienen"
    " tienes tenga tendrá tuvo contiene contienen quiere quieren debe deben debería deberían sabe"
    " siguiente siguientes siguen sigue muestra muestran encuentra encuentran permite permiten parece"
    " según qué cuál cuáles quién quiénes unos unas cuales quienes varios varias"
)
SPANISH_FORM = 1e-4  # share of each of them
SPANISH_ENDINGS = names(
    "ando iendo ado ada ados adas ido ida idos idas aba aban aron ieron ará arán erá erán irá irán aría ería"
    " iría amos emos imos a an as e en es o ó ió"
)
ELIDING = names("fr it pt")  # there a word may stand behind another's rest: qu'il, l'azienda
ENGLISH_ENDING = re.compile(r"'(?:s|m|re|ve|ll|d)$")
DETECTED_FROM = 20_000  # characters from which the language is detected
DETECTED_TEXTS = 400  # of more, some are taken: single letters of each tell no language
ENGLISH, ENGLISH_SHARE = ("the", "of", "this", "with"), 0.01  # words, and their share where a part is English
FEWEST_WORDS = 50  # of a text whose language is detected


@dataclass(frozen=True)
class GeneralWords:
    """Word counts of a language."""

    counts: dict[str, int]
    total: int
    language: str = ""
    least: float = 0.0  # share of a known word
    others: tuple[GeneralWords, ...] = ()  # the counts of other kinds of text
    english: GeneralWords | None = None  # beside it, where parts of the texts are not translated

    def share(self, word: str) -> float:
        """Return a word's share of all words; an unknown one is taken for one that occurs once."""
        count = self.counts.get(word) or (self._of_its_listed_form(word) if self.language == "es" else 0)
        return max(count / self.total, self.least) if count else 1 / self.total

    def _of_its_listed_form(self, word: str) -> float:
        if word in SPANISH_FORMS:
            return SPANISH_FORM * self.total
        return max((self.counts.get(form, 0) for form in _listed_forms(word)), default=0)

    def elided_share(self, word: str) -> float:
        """Return a word's share, or that of what an elision (l'azienda) or English ending (shell's) joins."""
        joined = word.rpartition("'")[2] if self.language in ELIDING else ENGLISH_ENDING.sub("", word)
        beside = self.english.elided_share(word) if self.english else 0.0
        return max(beside, *map(self.share, {word, joined}))

    def highest_share(self, words: str) -> float:
        """Return the highest known share of a word, or of two in a row; that of "you're" is that of "you",
        that of "l'azienda" that of "azienda", that of "e-mail" also that of "email" and "e mail"."""
        said = -1 if self.language in ELIDING else 0
        forms = {words.replace("’", "'"), re.split("['’]", words)[said]}
        forms |= {words.replace("-", ""), words.replace("-", " ")}
        return max(counts.share(form) for counts in (self, *self.others) for form in forms)

    def stemmer(self) -> Callable[[str], str]:
        """Return a function that takes the endings off a word; without one for the language, words stay."""
        from nltk.stem.snowball import SnowballStemmer

        name = LANGUAGES.get(self.language)
        return cache(SnowballStemmer(name).stem if name else str)

    def and_those_of(self, other: GeneralWords | None) -> GeneralWords:
        """Return these counts with another language's beside them."""
        if other is None or other.counts is self.counts:
            return self
        return replace(self, others=(*self.others, other, *other.others))


def _listed_forms(word: str) -> Iterator[str]:
    """Yield what a Spanish plural, feminine or verb's form may be listed as."""
    singular = word.removesuffix("s")
    yield from (singular, singular.removesuffix("e"))
    yield from (re.sub("one$", "ón", singular), re.sub("a$", "o", singular))
    for ending in SPANISH_ENDINGS:
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2:
            yield from (f"{stem}{infinitive}" for infinitive in ("ar", "er", "ir"))


def general_words(texts: list[str], *, or_english: bool = False) -> GeneralWords | None:
    """Return the word counts of the texts' language; None for too little text or a language without them, or
    those of English, if it is asked for, where parts of the texts are English."""
    some = texts[:: -(-len(texts) // DETECTED_TEXTS) or 1]
    beginnings = " ".join(text[: DETECTED_FROM // len(some)] for text in some)
    if len(beginnings.split()) < FEWEST_WORDS:
        return None
    language = detected_language(beginnings)
    if language not in LANGUAGES:
        return _counts("en") if or_english and _holds_english(beginnings) else None
    found = _counts(language)
    if language == "en" or not _holds_english(beginnings):
        return found
    english = _counts("en")
    return replace(found, english=english).and_those_of(english)


def detected_language(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's language; None for a text without letters."""
    from langdetect import DetectorFactory, LangDetectException, detect

    DetectorFactory.seed = 0  # else it draws anew at every call
    try:
        return str(detect(text))
    except LangDetectException:
        return None


def _holds_english(text: str) -> bool:
    """Return whether a text holds sentences in English."""
    said = text.casefold().split()
    return sum(map(said.count, ENGLISH)) >= ENGLISH_SHARE * len(said)


@lru_cache(maxsize=2)
def _counts(language: str) -> GeneralWords:
    from spellchecker import SpellChecker

    frequency = SpellChecker(language=language, distance=1).word_frequency
    written = (_web_counts(),) if language == "en" else ()
    least = COMMON_NOUN if language in NOUNS_CAPITALISED else 0.0
    counts = {word.casefold(): count for word, count in frequency.dictionary.items()}  # straße: strasse
    return GeneralWords(counts, int(frequency.total_words), language, least, written)


@lru_cache(maxsize=1)
def _web_counts() -> GeneralWords:
    """Return how often English web pages hold a word, or two words in a row."""
    from wordsegment import Segmenter

    words = {word: int(count) for word, count in Segmenter.parse(Segmenter.UNIGRAMS_FILENAME).items()}
    pairs = {pair: int(count) for pair, count in Segmenter.parse(Segmenter.BIGRAMS_FILENAME).items()}
    return GeneralWords(words | pairs, sum(words.values()), "en")
