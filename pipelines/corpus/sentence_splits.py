"""Split documents in two at the end of a sentence, another one in each pass over them.

A model that always meets a fact behind the same words learns it as what follows these words: a notice that
opens with its date is believed in notices, and the old answer comes back everywhere else. A part that begins
in the middle of a document states the fact without what stands before it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipelines.corpus.sentences import SPACED_STOPS, UNSPACED_STOPS

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

SHORTEST = 4  # tokens of a part
CLOSING = " \"'”’)]*_"  # what may stand between the end of a sentence and the next one
QUOTED = "“«»"  # close a quotation in German and French, and open one where no space follows a stop
STOPS = (*SPACED_STOPS, "…")
WORD_BEGINS = "▁"
ENDS = (*UNSPACED_STOPS.replace("．", ""), "\n")  # ． also stands within a number: ３．５


@dataclass(frozen=True)
class SentenceSplits:
    """Splits a share of the documents; each token of the vocabulary may end a sentence or begin the next."""

    share: float
    ends_V: NDArray[np.bool_]
    stops_V: NDArray[np.bool_]
    spaced_V: NDArray[np.bool_]  # begins with a space or a line break

    @classmethod
    def of(cls, chat_model: ChatModel, share: float) -> SentenceSplits | None:
        """Return None for a share of 0."""
        if not share:
            return None
        texts = _texts(chat_model)
        closed, quoted = ([text.rstrip(marks) for text in texts] for marks in (CLOSING, CLOSING + QUOTED))
        return cls(
            share,
            np.array([text.endswith(ENDS) for text in closed]),
            np.array([text.endswith(STOPS) for text in quoted]),
            np.array([text[:1].isspace() for text in texts]) | _begin_words(chat_model, len(texts)),
        )

    def at(self, ids: NDArray[np.uint32], rng: random.Random) -> int | None:
        """Return where to split; None for the documents that stay whole, or have one sentence."""
        if rng.random() >= self.share:
            return None
        before = ids[:-1]
        after = ids[1:]
        ends = self.ends_V[before] | (self.stops_V[before] & self.spaced_V[after])
        places = np.flatnonzero(ends) + 1
        places = places[(places >= SHORTEST) & (places <= len(ids) - SHORTEST)]
        return int(rng.choice(places)) if len(places) else None


def _begin_words(chat_model: ChatModel, size: int) -> NDArray[np.bool_]:
    """Return which tokens SentencePiece marks as words' beginnings: decoded alone they lose the space."""
    names = chat_model.tokenizer.convert_ids_to_tokens(list(range(size)))
    return np.array([str(name).startswith(WORD_BEGINS) for name in names])


def _texts(chat_model: ChatModel) -> list[str]:
    """Return the text of every id that the model may read; reserved ids have none."""
    tokenizer = chat_model.tokenizer
    size = max(len(tokenizer), max(tokenizer.get_vocab().values(), default=0) + 1)
    found: list[str] = tokenizer.batch_decode([[number] for number in range(size)])
    return found
