"""Find the passages of documents that share a question's words, by BM25."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from sys import intern

import bm25s

from evals.answer_matching import normalise
from pipelines.corpus.segments import segments


class Retriever:
    """An index of passages; equal arguments find equal passages."""

    def __init__(self, passages: Sequence[str]) -> None:
        self._passages = list(passages)
        self._index = bm25s.BM25()
        self._index.index([_words(text) for text in self._passages], show_progress=False)

    def find(self, questions: Sequence[str], count: int) -> list[list[str]]:
        """Return at most `count` passages for each question, the best first; none that shares no word."""
        wanted = min(count, len(self._passages))
        asked = [_words(question) for question in questions]
        places, scores = self._index.retrieve(asked, k=wanted, show_progress=False)
        return [
            [self._passages[place] for place, score in zip(row, values, strict=True) if score > 0]
            for row, values in zip(places.tolist(), scores.tolist(), strict=True)
        ]


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case, without accents and punctuation."""
    return [word for _, segment in segments(text) for word in _normal(segment)]


@lru_cache(maxsize=2**18)
def _normal(segment: str) -> tuple[str, ...]:
    """Return a segment's words; most segments come again, and each word is held once."""
    return tuple(map(intern, normalise(segment).split()))
