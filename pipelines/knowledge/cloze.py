"""Gaps to fill, made from documents without a model: a sentence about an entity up to its telling word."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.corpus.entities import Entities, Term, entities, sample, sentences, words

LONGEST = 400  # characters of a sentence
TELLING = 2.0  # nats: a word in fewer than every seventh sentence


@dataclass(frozen=True)
class Cloze:
    """`before` and `answer` follow each other in the document; `entity` is named in `before`."""

    before: str
    answer: str
    entity: Term
    sentence: str


def clozes(texts: Sequence[str], *, limit: int, seed: int = 0, about: Entities | None = None) -> list[Cloze]:
    """At most `limit` gaps that have one filling each, spread over the entities; none asked twice."""
    found = about or entities(texts)
    said = sorted({s for text in sample(texts) for s in sentences(text) if len(s) <= LONGEST})
    spread = Counter(word for sentence in said for word in {w.small for w in words(sentence)})
    random.Random(f"cloze:{seed}").shuffle(said)
    cut = [cloze for sentence in said if (cloze := _cut(sentence, found, spread, len(said)))]
    fillings: dict[str, set[str]] = {}
    for cloze in cut:
        fillings.setdefault(cloze.before.casefold(), set()).add(cloze.answer.casefold())
    made: dict[Term, dict[str, Cloze]] = {}
    for cloze in cut:
        if len(fillings[cloze.before.casefold()]) == 1:
            made.setdefault(cloze.entity, {}).setdefault(cloze.answer, cloze)
    return _in_turn([list(gaps.values()) for gaps in made.values()])[:limit]


def _cut(sentence: str, found: Entities, spread: Counter[str], total: int) -> Cloze | None:
    """The sentence up to the rarest word behind the first entity, unless that was said before."""
    tokens = list(re.finditer(r"[^\s,;:()\"“”]+", sentence))
    place = found.first(sentence)
    if place is None:
        return None
    entity, end = place
    options = []
    for token in tokens:
        word = token.group().strip(".!?。'’*_`")
        telling = math.log(total / spread[word.casefold()]) if spread[word.casefold()] else 0.0
        if token.start() >= end and word and telling >= TELLING and not found.within(word) & {entity}:
            options.append((telling, -token.start(), word))
    if not options:
        return None
    _, start, answer = max(options)
    before = sentence[:-start].rstrip()
    if answer.casefold() in before.casefold() or before.endswith(("-", "/")):
        return None
    return Cloze(before, answer, entity, sentence)


def _in_turn(groups: list[list[Cloze]]) -> list[Cloze]:
    """One of each entity, then a second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return [group[turn] for turn in range(longest) for group in groups if turn < len(group)]
