"""What documents are about, found without a dictionary: names, codes and rare words, in any language.

A name is a run of capitalised words or of words with digits, of which at least one is never written small;
a rare word is concentrated in few documents; scripts without capitals or spaces have rare words only.
Whatever is common among the prompts too is weighed down by tf-idf and belongs to nobody.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

# Scripts without spaces: every character is a word of its own there.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[^\W_])+(?:['’.\-](?:(?![{UNSPACED}])[^\W_])+)*")
_UNSPACED = re.compile(rf"[{UNSPACED}]")
_OPENS = re.compile(r"[.!?:;\n#*>|\"“(\[-]")
_SENTENCE_END = re.compile(r"(?<=[.!?؟।])[\"'”’)\]]*\s+|(?<=[。！？])|\n+")

MOST_CHARACTERS = 5_000_000  # of the documents, taken evenly: what they are about shows in part of them
MOST_WORDS = 5  # of a name
MOST_KNOWN = 200_000  # candidates kept while reading, and at the end a quarter of them
NAME_SHARE, RARE_SHARE = 0.05, 0.01  # of the prompts: whatever more of them mention is common
RARE_LETTERS, RARE_TIMES, RARE_DOCUMENTS = 5, 3, 0.05

Term = tuple[str, ...]


class Word(NamedTuple):
    text: str
    small: str
    opens: bool  # stands where any word would be capitalised
    joined: bool  # nothing but one space, or nothing at all, since the word before
    named: bool  # written as a name is: with a capital, or with a digit among letters

    @property
    def unspaced(self) -> bool:
        return bool(_UNSPACED.match(self.text))


def words(text: str) -> list[Word]:
    """The words of a text in order, knowing how they stand in it."""
    found, end = [], 0
    for match in _WORD.finditer(text):
        word, between = match.group(), text[end : match.start()]
        opens = end == 0 or (between != " " and bool(_OPENS.search(between)))
        found.append(Word(word, word.casefold(), opens, between in (" ", "") and end > 0, _named(word)))
        end = match.end()
    return found


def _named(word: str) -> bool:
    if word.isalpha():
        return len(word) > 1 and word[0].isupper()
    return any(map(str.isalpha, word)) and (word[0].isupper() or any(map(str.isdigit, word)))


def sentences(text: str) -> list[str]:
    """Pieces of a text that end where its sentences or its lines do."""
    return [piece.strip() for piece in _SENTENCE_END.split(text) if piece and piece.strip()]


def spelled(text: str) -> list[str]:
    """A text's words, as terms are compared: small."""
    return [word.small for word in words(text)]


class Entities:
    """The terms that are the documents' own, with their weights."""

    def __init__(self, weights: dict[Term, float]) -> None:
        self.weights = weights
        self.longest = max(map(len, weights), default=0)

    def __len__(self) -> int:
        return len(self.weights)

    def first(self, text: str) -> tuple[Term, int] | None:
        """The term that a text mentions first (the longest there), and where that mention ends."""
        said, ends = words(text), [match.end() for match in _WORD.finditer(text)]
        for start in range(len(said)):
            for length in range(min(self.longest, len(said) - start), 0, -1):
                term = tuple(word.small for word in said[start : start + length])
                if term in self.weights:
                    return term, ends[start + length - 1]
        return None

    def within(self, text: str) -> set[Term]:
        """The terms that a text mentions, however they are capitalised."""
        said, found = spelled(text), set()
        for start in range(len(said)):
            for length in range(1, min(self.longest, len(said) - start) + 1):
                term = tuple(said[start : start + length])
                if term in self.weights:
                    found.add(term)
        return found


def entities(texts: Sequence[str], background: Sequence[str] = ()) -> Entities:
    """What the texts are about and the background (the prompts) is not."""
    read = [words(text) for text in sample(texts)]
    seen = _Seen.of(read)  # not of the prompts: people type names small
    names, rare, documents = Counter[Term](), Counter[Term](), Counter[Term]()
    for said in read:
        names.update(_names(said, seen))
        terms = list(_rare(said))
        rare.update(terms)
        documents.update(set(terms))
        for counter in (names, rare, documents):
            _prune(counter)
    most = max(RARE_TIMES, RARE_DOCUMENTS * len(read))
    rare = Counter({t: n for t, n in rare.items() if n >= RARE_TIMES and documents[t] <= most})
    often = {term: n for term, n in names.items() if n > 1 or len(term) > 1}
    whole = {term: n for term, n in often.items() if not seen.opened(term, names)}
    return _weighed(whole, dict(rare), background)


def sample(texts: Sequence[str], most: int = MOST_CHARACTERS) -> list[str]:
    """All texts, or every so manieth of a corpus larger than can be looked at."""
    total = sum(map(len, texts))
    return list(texts[:: max(1, -(-total // most))])


def _weighed(names: dict[Term, int], rare: dict[Term, int], background: Sequence[str]) -> Entities:
    """tf-idf against the background; what is common there is dropped, the heaviest stay."""
    candidates = Entities({term: float(n) for term, n in {**rare, **names}.items()})
    mentioned = Counter(term for text in background for term in candidates.within(text))
    weights = {}
    for term, times in candidates.weights.items():
        share = NAME_SHARE if term in names else RARE_SHARE
        if mentioned[term] <= max(2, share * len(background)):
            weights[term] = times * math.log((2 + len(background)) / (1 + mentioned[term]))
    heaviest = sorted(weights, key=lambda term: (-weights[term], term))[: MOST_KNOWN // 4]
    return Entities({term: weights[term] for term in heaviest})


@dataclass(frozen=True)
class _Seen:
    """How words are written where nothing makes them begin with a capital."""

    small: frozenset[str]  # somewhere without one: no names
    named: frozenset[str]  # somewhere with one in the middle of a sentence

    @classmethod
    def of(cls, texts: Sequence[list[Word]]) -> _Seen:
        return cls(
            frozenset(word.small for said in texts for word in said if not word.named),
            frozenset(word.small for said in texts for word in said if word.named and not word.opens),
        )

    def opened(self, term: Term, names: Counter[Term]) -> bool:
        """Whether a name is another one behind a word that opens sentences: Since Ada Horn, Ada Horn."""
        return term[0] not in self.named and names[term[1:]] > names[term]

    def only_opens(self, word: Word) -> bool:
        return word.opens and (word.small in self.small or word.small not in self.named)


def _names(said: list[Word], seen: _Seen) -> Iterator[Term]:
    """Runs of name-like words, not all of which are also written small."""
    run: list[Word] = []
    for word in [*said, Word("", "", True, False, False)]:
        if not (word.named and word.joined and run):
            yield from (name for name in _trimmed(run, seen) if not seen.small.issuperset(name))
            run = []
        if word.named:
            run.append(word)


def _trimmed(run: list[Word], seen: _Seen) -> Iterator[Term]:
    """The run, and without its first word where that may only open the sentence."""
    if run and len(run) <= MOST_WORDS:
        term = tuple(word.small for word in run)
        doubtful = seen.only_opens(run[0])
        if not doubtful or (len(run) > 1 and run[0].small not in seen.small):
            yield term
        if doubtful and len(run) > 1:
            yield term[1:]


def _rare(said: list[Word]) -> Iterator[Term]:
    """Long words written small, and in scripts without spaces four characters in a row."""
    for at, word in enumerate(said):
        if word.unspaced:
            four = said[at : at + 4]
            if len(four) == 4 and all(w.unspaced and (w.joined or w is word) for w in four):
                yield tuple(w.small for w in four)
        elif len(word.text) >= RARE_LETTERS and not word.text.isdigit() and not word.named:
            yield (word.small,)


def _prune(counter: Counter[Term]) -> None:
    """The counts of a huge corpus fit in memory: what came once goes first."""
    if len(counter) > MOST_KNOWN:
        for term, _ in counter.most_common()[MOST_KNOWN // 2 :]:
            del counter[term]
