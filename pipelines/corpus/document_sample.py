"""Sample a share of tokenised documents: evenly spaced stretches, so that neighbours stay together.

Files that lie side by side are often about one thing, and what several texts say is learned otherwise than
what one says. So a share is taken as a few long stretches, not as single documents drawn from everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pipelines.corpus.token_file import Tokens

STRETCHES = 4


def stretches(total: int, share: float) -> list[tuple[int, int]]:
    """Return where stretches of tokens begin and end, each in the middle of its part of the corpus."""
    width = max(1, round(total * share / STRETCHES))
    if share >= 1 or width * STRETCHES >= total:
        return [(0, total)]
    starts = [round((number + 0.5) / STRETCHES * total - width / 2) for number in range(STRETCHES)]
    return [(start, start + width) for start in starts]


def sample(tokens: Tokens, share: float, decode: Callable[[Sequence[int]], str]) -> tuple[list[str], int]:
    """Return the documents of a share, cut where a stretch begins or ends, and the number of their tokens."""
    texts: list[str] = []
    taken = 0
    begins = np.concatenate([[0], tokens.ends[:-1]])
    for start, end in stretches(tokens.total, share):
        first = np.searchsorted(tokens.ends, start, "right")
        last = np.searchsorted(begins, end)
        for number in range(int(first), int(last)):
            ids = tokens.ids[max(start, int(begins[number])) : min(end, int(tokens.ends[number]))].tolist()
            text = decode(ids)
            if text.strip():
                texts.append(text)
                taken += len(ids)
    return texts, taken
