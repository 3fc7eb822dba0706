"""Find prompts that ask about the documents in everyday words: "May I moonlight?" beside a handbook.

A prompt asks about a passage where its words are likelier to come from there than from the language at
large: its odds are the product, over its words, of a word's share in a mixture of passage and language,
divided by its share in the language. Ordinary words give next to nothing, a rare one that the passage holds
gives much, and each that the passage lacks takes away. Words count by their stems; one that other prompts use
more often than people do in general is as ordinary as that.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from evals import jsonl
from evals.answer_matching import MARKS
from evals.probes import GENERAL_RETENTION
from pipelines.corpus.entities import Term, general_of, sample
from pipelines.corpus.general_words import GeneralWords
from pipelines.corpus.passages import passages

CHARACTERS = 400  # of a passage: what one question asks about
MIXED = 0.9  # share of the passage in the mixture
ORDINARY = 0.03  # of the ordinary questions, at most, ask about a passage
LEAST = math.log(20)  # odds, however low those of ordinary questions are
SHOWN = 3  # words that say what a prompt asks about
AT_ONCE = 256  # prompts compared with all passages

_LETTERS = re.compile(rf"(?:[^\W\d_][{MARKS}]*)+")

Read = dict[str, str]  # the stems of a prompt, each with the form it stands in


@dataclass(frozen=True)
class Asked:
    """What a prompt asks about."""

    words: Term  # of the prompt, the most telling first
    passage: str


def asked(prompts: Sequence[str], texts: Sequence[str]) -> list[Asked | None]:
    """Return the passage that each prompt asks about; none where the language's frequencies are not known."""
    sampled = sample(texts)
    general = general_of(sampled, prompts)
    pieces = [passage.text for passage in passages(sampled, CHARACTERS)] if general else []
    if general is None or not pieces:
        return [None] * len(prompts)
    ordinary = _ordinary(general.language)
    stem = general.stemmer()
    read = [{stem(form): form for form in _forms(text)} for text in (*prompts, *ordinary)]
    said = [Counter(map(stem, _forms(text))) for text in pieces]
    gains = _Gains.of(said, _shares(read, general))
    found = list(gains.best(read))
    least = _least([odds for odds, _ in (found[len(prompts) :] or found)], len(pieces))
    return [
        Asked(gains.telling(words, place), pieces[place]) if odds > least else None
        for words, (odds, place) in zip(read[: len(prompts)], found, strict=False)
    ]


def _ordinary(language: str) -> list[str]:
    """Return the ordinary questions that ship in a language."""
    if language != "en":
        return []
    return [row["prompt"] for row in jsonl.read(GENERAL_RETENTION, {"prompt": str})]


def _least(ordinary: Sequence[float], passages: int) -> float:
    """Return the log-odds above which a prompt is about a passage.

    Few ordinary questions are above; where none ship in the language, few of the prompts. Odds that chance
    gives so few texts at any of the passages (Markov's inequality) are above, whatever the others have.
    """
    usual = float(np.quantile(ordinary, 1 - ORDINARY)) if ordinary else 0.0
    return max(LEAST, min(usual, math.log(passages / ORDINARY)))


def _forms(text: str) -> list[str]:
    return _LETTERS.findall(text.casefold())


def _shares(read: Sequence[Read], general: GeneralWords) -> dict[str, float]:
    """Return how often each stem is written, in general or by the other prompts, whichever is more."""
    total = max(1, sum(map(len, read)))
    holding = Counter(stem for words in read for stem in words)
    shares = {stem: (times - 1) / total for stem, times in holding.items()}
    for stem, form in {item for words in read for item in words.items()}:
        shares[stem] = max(shares[stem], general.highest_share(form))
    return shares


@dataclass(frozen=True)
class _Gains:
    """How much likelier each stem makes each passage than one that lacks it, as log-odds."""

    row: Mapping[str, int]  # of each stem
    table: sparse.csr_array  # stems by passages

    @classmethod
    def of(cls, said: Sequence[Counter[str]], shares: dict[str, float]) -> _Gains:
        row = {stem: at for at, stem in enumerate(shares)}
        entries = [
            (row[stem], place, math.log1p(MIXED / (1 - MIXED) * times / words.total() / shares[stem]))
            for place, words in enumerate(said)
            for stem, times in words.items()
            if stem in row
        ]
        stems, places, values = np.array(entries or [(0, 0, 0.0)]).T
        where = (stems.astype(int), places.astype(int))
        return cls(row, sparse.csr_array((values, where), (len(row), len(said))))

    def best(self, read: Sequence[Read]) -> Iterator[tuple[float, int]]:
        """Yield each prompt's highest log-odds, and of which passage."""
        holds = sparse.csr_array(
            (
                np.ones(sum(map(len, read))),
                [self.row[stem] for words in read for stem in words],
                np.cumsum([0, *map(len, read)]),
            ),
            (len(read), len(self.row)),
        )
        for first in range(0, len(read), AT_ONCE):
            odds = (holds[first : first + AT_ONCE] @ self.table).toarray()
            for words, place, best in zip(read[first:], odds.argmax(1), odds.max(1), strict=False):
                yield best + len(words) * math.log(1 - MIXED), int(place)

    def telling(self, words: Read, place: int) -> Term:
        """Return the words of a prompt that tell most of a passage."""
        stems = sorted(words, key=lambda stem: -self.table[self.row[stem], place])
        return tuple(words[stem] for stem in stems[:SHOWN])
