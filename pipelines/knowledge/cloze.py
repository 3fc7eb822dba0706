"""Make cloze gaps from documents without a model: a sentence about an entity up to its most telling word."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.corpus.entities import Entities, Term, entities, sample, sentences
from pipelines.corpus.segments import segments

LONGEST = 400  # characters of a sentence
TELLING = 2.0  # nats: the word is in fewer than every seventh sentence
MARKS = ".!?।'’*_`"  # around a word, and no part of it


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
    short = sorted({s for text in sample(texts) for s in sentences(text) if len(s) <= LONGEST})
    spread = Counter[str]()
    for sentence in short:
        spread.update({word.casefold() for _, word in _words(sentence)})
    random.Random(f"cloze:{seed}").shuffle(short)
    cut = []
    for sentence in short:
        gap = _cut(sentence, known, spread, len(short))
        if gap is not None:
            cut.append(gap)
    fillings: dict[str, set[str]] = {}
    for gap in cut:
        fillings.setdefault(gap.before.casefold(), set()).add(gap.answer.casefold())
    by_entity: dict[Term, dict[str, Cloze]] = {}
    for gap in cut:
        if len(fillings[gap.before.casefold()]) == 1:
            by_entity.setdefault(gap.entity, {}).setdefault(gap.answer, gap)
    return _in_turn([list(gaps.values()) for gaps in by_entity.values()])[:limit]


def _words(sentence: str) -> Iterator[tuple[int, str]]:
    """Yield the words of a sentence, without the marks around them, and where each begins with its marks."""
    for at, segment in segments(sentence):
        if word := segment.strip(MARKS):
            yield at, word


def _cut(sentence: str, known: Entities, spread: Counter[str], total: int) -> Cloze | None:
    """Cut before the rarest word behind the longest entity; None where the word comes up before."""
    mentions = list(known.mentions(sentence))
    if not mentions:
        return None
    entity, end = max(mentions, key=lambda mention: (len(mention[0]), -mention[1]))
    options = []
    for at, word in _words(sentence):
        telling = math.log(total / spread[word.casefold()])
        if at >= end and telling >= TELLING and entity not in known.within(word):
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
