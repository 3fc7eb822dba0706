"""Decide which sequences to read together: rows are padded to the longest, each pass has a cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

PASS = 512  # tokens that a pass costs whatever its size: calls and launches, accumulating a gradient


def length_groups(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Cut rows that are sorted by length into groups whose total cost is least.

    A group holds at most `max_tokens` with its padding, but at least a row.
    """
    least = np.zeros(len(lengths) + 1)  # cost of the first n rows
    begin = [0] * (len(lengths) + 1)  # first row of the last group among the first n rows
    for end, longest in enumerate(lengths, 1):
        first = max(0, end - max(1, max_tokens // longest))
        costs = least[first:end] + np.arange(end - first, 0, -1) * longest
        best = int(costs.argmin())
        least[end] = costs[best] + PASS
        begin[end] = first + best
    cuts = [len(lengths)]
    while cuts[-1]:
        cuts.append(begin[cuts[-1]])
    return [slice(*cut) for cut in pairwise(reversed(cuts))]
