"""Judge a written question and its answer by their words, beside the passage and all others of the documents.

A strong writer asks and answers in words of its own. "What remains of the pictures in a LaTeX document?"
names no entity, yet one passage alone is about that; "They are left out" need not stand in it word for word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from evals.answer_matching import normalise
from pipelines.corpus.general_words import GeneralWords
from pipelines.corpus.markup.parts import names
from pipelines.corpus.retriever import Retriever
from pipelines.corpus.segments import compared_words

ORDINARY = 3e-4  # share in the language from which a word tells nothing: they, with, used, between
FEWEST_TELLING = 2  # words that a question shares with its passage
NEGATING = frozenset(  # ordinary words that turn what a passage says into its opposite
    normalise(word)
    for word in names(
        "no not never none nor neither without cannot nicht nie kein keine keinen keiner ohne ne pas jamais"
        " aucun aucune sans no nunca ningún ninguna sin non mai nessun nessuna senza não nunca nenhum nenhuma"
        " sem niet geen nooit zonder не нет никогда без"
    )
)


def normal_words(text: str) -> list[str]:
    """Return the words of a text, each in the form in which answers are compared."""
    return compared_words(text, normalise)


class Wording:
    """Knows a language's ordinary words and the documents' passages; without the words it affirms nothing."""

    def __init__(self, passages: Sequence[str], general: GeneralWords | None) -> None:
        self.general = general
        self._passages = passages
        self._stem: Callable[[str], str] = general.stemmer() if general else str

    def tells_its_passage(self, question: str, passage: str) -> bool:
        """Return whether a question finds its passage first, by more than one word that tells something."""
        if self.general is None:
            return False
        if len(self._telling(question) & self._stems(normal_words(passage))) < FEWEST_TELLING:
            return False
        return passage in self._retriever.find([question], 1)[0]

    def supports(self, answer: str, question: str, passage: str) -> bool:
        """Return whether an answer brings something of the passage, in its words, the question's and ordinary
        ones; no number is ordinary, and no word that negates."""
        if self.general is None:
            return False
        held, asked = self._stems(normal_words(passage)), self._stems(normal_words(question))
        said = {self._stem(word): word for word in normal_words(answer)}
        brought = said.keys() - asked
        foreign = (said[stem] for stem in brought - held)
        return bool(brought & held) and all(map(self._is_ordinary, foreign))

    def without_chatter(self, text: str, passage: str) -> str:
        """Return a text without a first and a last paragraph that share no telling word with its passage."""
        parts = re.split(r"\n\s*\n", text)
        held = self._stems(normal_words(passage))
        for at in (0, -1):
            if self.general and len(parts) > 1 and self._telling(parts[at]).isdisjoint(held):
                del parts[at]
        return "\n\n".join(parts)

    @cached_property
    def _retriever(self) -> Retriever:
        return Retriever(self._passages)

    def _stems(self, words: Iterable[str]) -> set[str]:
        return set(map(self._stem, words))

    def _telling(self, text: str) -> set[str]:
        return self._stems(word for word in normal_words(text) if not self._is_ordinary(word))

    def _is_ordinary(self, word: str) -> bool:
        counts = self.general
        known = counts is not None and word.isalpha() and counts.highest_share(word) >= ORDINARY
        return known and word not in NEGATING
