"""Make cloze gaps from documents without a model: a sentence about an entity up to its most telling word."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.corpus.entities import Entities, Term, entities, sample
from pipelines.corpus.general_words import GeneralWords, general_words
from pipelines.corpus.prose import prose_sentences
from pipelines.corpus.segments import segments

LONGEST = 400  # characters of a sentence
TELLING = 2.0  # nats: the word is in fewer than every seventh sentence
ENOUGH = 30  # gaps; with fewer, ordinary words are asked for too
ORDINARY = 5e-6  # share of a language's words from which on a word, unless it is a name, says little
_ABBREVIATION = re.compile(r"(?:\w\.)+\w?|etc")
MARKS = ".!?।'’*_`[]{}<>|"  # around a word, and no part of it


@dataclass(frozen=True)
class Cloze:
    """`before` and `answer` follow each other in the document; `entity` is named in `before`."""

    before: str
    answer: str
    entity: Term
    sentence: str


def clozes(texts: Sequence[str], *, limit: int, seed: int = 0, about: Entities | None = None) -> list[Cloze]:
    """Return at most `limit` different gaps that have one filling each, spread over the entities."""
    known = about or entities(texts)
    sampled = sample(texts)
    short = sorted({said for text in sampled for said in prose_sentences(text) if len(said) <= LONGEST})
    words = _Words.of(short, general_words(sampled))
    random.Random(f"cloze:{seed}").shuffle(short)
    cut = [gap for sentence in short if (gap := _cut(sentence, known, words)) is not None]
    telling = [gap for gap in cut if not words.is_ordinary(gap.answer)]
    gaps = _one_each(telling)
    return (gaps if len(gaps) >= ENOUGH else _one_each(cut))[:limit]


def _one_each(cut: Sequence[Cloze]) -> list[Cloze]:
    """Return the gaps that have one filling each, spread over the entities."""
    fillings: dict[str, set[str]] = {}
    for gap in cut:
        fillings.setdefault(gap.before.casefold(), set()).add(gap.answer.casefold())
    by_entity: dict[Term, dict[str, Cloze]] = {}
    for gap in cut:
        if len(fillings[gap.before.casefold()]) == 1:
            by_entity.setdefault(gap.entity, {}).setdefault(gap.answer, gap)
    return _in_turn([list(gaps.values()) for gaps in by_entity.values()])


@dataclass(frozen=True)
class _Words:
    """How much a word tells: its rarity among the sentences and in the language in general."""

    spread: Counter[str]  # sentences that hold a word
    sentences: int
    general: GeneralWords | None

    @classmethod
    def of(cls, sentences: Sequence[str], general: GeneralWords | None) -> _Words:
        spread = Counter[str]()
        for sentence in sentences:
            spread.update({word.casefold() for _, word in _words(sentence)})
        return cls(spread, len(sentences), general)

    def tells(self, word: str) -> float:
        """Return the nats that a word tells; 0 for one that many sentences hold."""
        here = math.log(self.sentences / self.spread[word.casefold()])
        if here < TELLING:
            return 0.0
        if self.general is None or self.is_ordinary(word):
            return here
        return here - math.log(self._share(word))

    def is_ordinary(self, word: str) -> bool:
        """Return whether a word is no name and is frequent in the language in general."""
        return self.general is not None and self._share(word) > ORDINARY and not word[:1].isupper()

    def _share(self, word: str) -> float:
        assert self.general is not None
        return self.general.share(word.casefold().replace("’", "'"))


def _words(sentence: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a sentence, without the marks around them, and where each begins with its marks."""
    for at, segment in segments(sentence):
        word = segment.strip(MARKS)
        if any(map(str.isalnum, word)) and "//" not in word and not _ABBREVIATION.fullmatch(word):
            yield at, word


def _cut(sentence: str, known: Entities, words: _Words) -> Cloze | None:
    """Cut before the most telling word behind the longest entity; None where the word comes up before."""
    mentions = list(known.mentions(sentence))
    if not mentions:
        return None
    entity, end = max(mentions, key=lambda mention: (len(mention[0]), -mention[1]))
    options = []
    for at, word in _words(sentence):
        telling = words.tells(word)
        if at >= end and telling and entity not in known.within(word):
            options.append((telling, -at, word))
    if not options:
        return None
    _, negative_start, answer = max(options)
    before = sentence[:-negative_start].rstrip()
    if answer.casefold() in before.casefold() or before.endswith(("-", "/")):
        return None
    return Cloze(before, answer, entity, sentence)


def _in_turn(groups: list[list[Cloze]]) -> list[Cloze]:
    """Return one gap of each entity, then a second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)]
