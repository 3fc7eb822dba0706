"""Find what documents are about: names, codes and terms, in any language.

A name is a run of capitalised words or of words with digits, of which at least one is never written small.
A term is a word that the documents use far more often than the language in general, spoken or written, and
too often for an accident (by the log-likelihood ratio G²: the rarer the word, the fewer mentions are enough);
where general frequencies are not known, and in scripts without spaces, a word concentrated in few documents.
Entities that are common among the prompts too are dropped, and weighed down by tf-idf.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from evals.answer_matching import MARKS
from pipelines.corpus.general_words import GeneralWords, general_words
from pipelines.corpus.segments import IS_UNSPACED, unspaced_words
from pipelines.corpus.text_sample import TextSample
from recovery.unspaced_scripts import UNSPACED

# In scripts without spaces every character is a word: segmentation depends on what stands around a name.
_LETTERS = rf"(?:(?![{UNSPACED}])[^\W_][{MARKS}]*)+"
_WORD = re.compile(rf"[{UNSPACED}]|{_LETTERS}(?:['’.\-_\u200c\u200d]{_LETTERS})*")
_SCHEME = re.compile(r"https?(?=://)")  # of a link, which names nothing
_CODE = re.compile(r"[a-z][A-Z]|\w_\w")  # camelCase and snake_case
_OPENS = re.compile(r"[.!?:;\n#*>|\"“(\[-]")

MOST_CHARACTERS = 5_000_000  # of the documents, drawn evenly: what they are about shows in part of them
MOST_WORDS = 5  # of a name
MOST_KNOWN = 200_000  # candidates kept while reading, and at the end a quarter of them
NAME_SHARE = 0.05  # of the prompts: entities that more of them mention are common
FEWEST_COMMON = 8  # prompts; an entity that fewer of them mention is never common
TERM_SHARE = 0.01  # the same for terms that the documents do not use far more often than the prompts
TERM_LETTERS = 5  # of a term, at least
# G² of a term's mentions, at least: that of three at a hundred times the general frequency
TERM_EXCESS = 21.6
TERM_TIMES = 3  # a term occurs so often, at least, where general frequencies are not known
UNSPACED_LETTERS, UNSPACED_LONGEST = 3, 8  # of a term in a script without spaces
TERM_DOCUMENTS = 0.05  # of the documents hold a term, at most, where general frequencies are not known
# How many times more frequent in the documents: a term than in general, a name of one word than in general, a
# term than in the prompts.
TERM_KEYNESS, NAME_KEYNESS, PROMPT_KEYNESS = 100.0, 10.0, 10.0

Term = tuple[str, ...]


class Word(NamedTuple):
    text: str
    small: str
    opens: bool  # in a place where any word would be capitalised
    joined: bool  # nothing but one space, or nothing at all, since the word before
    named: bool  # written as a name is: with a capital, or with a digit among letters
    at: int = 0  # where it begins

    @property
    def unspaced(self) -> bool:
        return bool(IS_UNSPACED.match(self.text))


def words(text: str) -> list[Word]:
    """Return the words of a text in order, with how each is written."""
    found = []
    end = 0
    in_heading = False
    for match in _matches(text):
        word = match.group()
        between = text[end : match.start()]
        if end == 0 or "\n" in between:
            in_heading = between.rpartition("\n")[2].startswith("#")
        opens = end == 0 or in_heading or (between != " " and bool(_OPENS.search(between)))
        joined = between in (" ", "") and end > 0
        found.append(Word(word, word.casefold(), opens, joined, _named(word), match.start()))
        end = match.end()
    return found


def _matches(text: str) -> Iterator[re.Match[str]]:
    """Yield the places of all words; equally long blanks take the place of links' schemes."""
    return _WORD.finditer(_SCHEME.sub(lambda scheme: " " * len(scheme.group()), text))


def _named(word: str) -> bool:
    if word.isalpha():
        return len(word) > 1 and (word[0].isupper() or bool(_CODE.search(word)))
    return "_" in word or (any(map(str.isalpha, word)) and (word[0].isupper() or any(map(str.isdigit, word))))


def spelled(text: str) -> list[str]:
    """Return a text's words in the form in which entities are compared."""
    return [match.group().casefold() for match in _matches(text)]


def beginnings(text: str) -> list[int]:
    """Return where the words of a text begin."""
    return [match.start() for match in _matches(text)]


def as_written(text: str, term: Term, end: int) -> str:
    """Return a mention that ends there as the text writes it."""
    begun = [at for at in beginnings(text) if at < end]
    return text[begun[-len(term)] : end]


class Entities:
    """Entities with their weights."""

    def __init__(self, weights: dict[Term, float]) -> None:
        self.weights = weights
        self.longest = max(map(len, weights), default=0)

    def __len__(self) -> int:
        return len(self.weights)

    def mentions(self, text: str) -> Iterator[tuple[Term, int]]:
        """Yield every mention (the longest at its place) in order, with the end of it."""
        matches = list(_matches(text))
        said = [match.group().casefold() for match in matches]
        for start in range(len(said)):
            for length in range(min(self.longest, len(said) - start), 0, -1):
                term = tuple(said[start : start + length])
                if term in self.weights:
                    yield term, matches[start + length - 1].end()
                    break

    def first(self, text: str) -> tuple[Term, int] | None:
        """Return the entity that a text mentions first (the longest there) and the end of that mention."""
        return next(self.mentions(text), None)

    def within(self, text: str) -> set[Term]:
        """Return the entities that a text mentions, whatever their case."""
        said = spelled(text)
        found = set()
        for start in range(len(said)):
            for length in range(1, min(self.longest, len(said) - start) + 1):
                term = tuple(said[start : start + length])
                if term in self.weights:
                    found.add(term)
        return found


def entities(texts: Sequence[str], background: Sequence[str] = ()) -> Entities:
    """Return what the texts are about and the background (the prompts) is not."""
    sampled = sample(texts)
    read = [words(text) for text in sampled]
    written = _Written.of(read)  # not of the prompts: people type names small
    names, terms, documents = Counter[Term](), Counter[Term](), Counter[Term]()
    for text, text_words in zip(sampled, read, strict=True):
        names.update(_names(text_words, written))
        candidates = [*_terms(text_words, written), *_unspaced_terms(text)]
        terms.update(candidates)
        documents.update([*dict.fromkeys(candidates)])  # in a fixed order, which decides ties
        for counter in (names, terms, documents):
            _prune(counter)
    own = _Own(general_of(sampled, background), sum(map(len, read)), documents, len(read))
    kept_terms = {term: n for term, n in terms.items() if own.has_term(term, n)}
    kept_names = {}
    for name, times in names.items():
        repeated = times > 1 or len(name) > 1 or name[0] in written.codes
        if repeated and not written.opened(name, names) and own.has_name(name, times):
            kept_names[name] = times
    return _weighed(kept_names, kept_terms, own, background)


def general_of(texts: list[str], background: Sequence[str]) -> GeneralWords | None:
    """Return the word counts of the texts' language and the background's: "code" in German is ordinary in
    English prompts."""
    own = general_words(texts)
    return own and own.and_those_of(general_words(list(background)))


@dataclass(frozen=True)
class _Own:
    """Decides whether a word belongs to the documents or to the language in general."""

    general: GeneralWords | None
    words: int  # of the documents
    documents: Counter[Term]  # that hold a term
    count: int  # of all documents

    def has_term(self, term: Term, times: int) -> bool:
        if self.general is not None and len(term) == 1:
            expected = self.general.highest_share(term[0]) * self.words
            return times >= TERM_KEYNESS * expected and _excess(times, expected) >= TERM_EXCESS
        most = max(TERM_TIMES, TERM_DOCUMENTS * self.count)
        return times >= TERM_TIMES and self.documents[term] <= most

    def has_name(self, name: Term, times: int) -> bool:
        """Return whether it is a name here, not ordinary words: three words and more always are, and two that
        rarely follow each other elsewhere."""
        if self.general is None:
            return True
        return times / self.words >= NAME_KEYNESS * self.general.highest_share(" ".join(name))


def _excess(times: int, expected: float) -> float:
    """Return the log-likelihood ratio G² of a Poisson count above the expected one."""
    return 2 * (times * math.log(times / expected) - (times - expected))


def sample(texts: Iterable[str], most: int = MOST_CHARACTERS) -> list[str]:
    """Return all texts, or some of a larger corpus, drawn evenly, in their order: about `most` characters."""
    return TextSample.of(texts, most).texts()


def _weighed(
    names: dict[Term, int], terms: dict[Term, int], own: _Own, background: Sequence[str]
) -> Entities:
    """Weigh by tf-idf against the background; drop what is common there, keep the heaviest."""
    candidates = Entities({term: float(n) for term, n in {**terms, **names}.items()})
    mentioned = Counter(term for text in background for term in candidates.within(text))
    prompt_words = sum(len(spelled(text)) for text in background)
    weights = {}
    for term, times in candidates.weights.items():
        frequent = times * prompt_words >= PROMPT_KEYNESS * own.words * mentioned[term]
        share = NAME_SHARE if term in names or (own.general and frequent) else TERM_SHARE
        if mentioned[term] <= max(FEWEST_COMMON, share * len(background)):
            weights[term] = times * math.log((2 + len(background)) / (1 + mentioned[term]))
    heaviest = sorted(weights, key=lambda term: (-weights[term], term))[: MOST_KNOWN // 4]
    return Entities({term: weights[term] for term in heaviest})


@dataclass(frozen=True)
class _Written:
    """How the documents write words where nothing requires a capital."""

    small: frozenset[str]  # somewhere without a capital
    named: frozenset[str]  # somewhere with a capital in the middle of a sentence
    codes: frozenset[str]  # as identifiers are: a single mention is enough

    @classmethod
    def of(cls, texts: Sequence[list[Word]]) -> _Written:
        words = [word for text in texts for word in text]
        return cls(
            frozenset(word.small for word in words if not word.named),
            frozenset(word.small for word in words if word.named and not word.opens),
            frozenset(word.small for word in words if _CODE.search(word.text)),
        )

    def opened(self, term: Term, names: Counter[Term]) -> bool:
        """Return whether a name is another name behind a sentence's first word: Since Ada Horn."""
        return term[0] not in self.named and names[term[1:]] > names[term]

    def only_opens(self, word: Word) -> bool:
        return word.opens and (word.small in self.small or word.small not in self.named)


def _names(said: list[Word], written: _Written) -> Iterator[Term]:
    """Yield runs of name-like words, not all of which are also written small."""
    run: list[Word] = []
    for word in [*said, Word("", "", True, False, False)]:
        if not (word.named and word.joined and run):
            yield from (name for name in _trimmed(run, written) if not written.small.issuperset(name))
            run = []
        if word.named:
            run.append(word)


def _trimmed(run: list[Word], written: _Written) -> Iterator[Term]:
    """Yield a run, and the run without its first word where that may only open the sentence."""
    if run and len(run) <= MOST_WORDS:
        term = tuple(word.small for word in run)
        doubtful = written.only_opens(run[0])
        if not doubtful or (len(run) > 1 and run[0].small not in written.small):
            yield term
        if doubtful and len(run) > 1:
            yield term[1:]


def _terms(said: list[Word], written: _Written) -> Iterator[Term]:
    """Yield long words written small, or with a capital only where any word would have one.

    In scripts without spaces, yield four characters in a row.
    """
    for at, word in enumerate(said):
        if word.unspaced:
            four = said[at : at + 4]
            if len(four) == 4 and all(w.unspaced and (w.joined or w is word) for w in four):
                yield tuple(w.small for w in four)
            continue
        is_small = not word.named or written.only_opens(word)
        if is_small and len(word.text) >= TERM_LETTERS and not word.text.isdigit():
            yield (word.small,)


def _unspaced_terms(text: str) -> Iterator[Term]:
    """Yield words of scripts without spaces, alone and in pairs, by their characters."""
    found = unspaced_words(text)
    for (at, word), (next_at, following) in pairwise([*found, (-1, "")]):
        pair = word + following if at + len(word) == next_at else ""
        for candidate in (word, pair):
            if UNSPACED_LETTERS <= len(candidate) <= UNSPACED_LONGEST:
                yield tuple(candidate)


def _prune(counter: Counter[Term]) -> None:
    """Bound the memory of a huge corpus's counts: drop the smallest."""
    if len(counter) > MOST_KNOWN:
        for term, _ in counter.most_common()[MOST_KNOWN // 2 :]:
            del counter[term]
