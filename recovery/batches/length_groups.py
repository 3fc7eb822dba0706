"""Which sequences to read together: rows are padded to their longest, and a pass itself costs something."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

PASS = 512  # tokens' worth of a pass itself: what is called and launched whatever its size, a gradient added


def alike(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Where to cut rows that are sorted by length so that all groups together cost least.

    A group holds at most `max_tokens` with its padding, but at least a row.
    """
    least, begin = np.zeros(len(lengths) + 1), [0] * (len(lengths) + 1)  # of the first n rows, for every n
    for end, longest in enumerate(lengths, 1):
        first = max(0, end - max(1, max_tokens // longest))
        costs = least[first:end] + np.arange(end - first, 0, -1) * longest
        best = int(costs.argmin())
        least[end], begin[end] = costs[best] + PASS, first + best
    cuts = [len(lengths)]
    while cuts[-1]:
        cuts.append(begin[cuts[-1]])
    return [slice(*cut) for cut in pairwise(reversed(cuts))]
