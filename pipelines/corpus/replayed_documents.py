"""Draw documents of earlier cycles up to a number of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelines.corpus.token_file import Tokens


def replayed_documents(
    cycles: Sequence[Tokens], left_out: Sequence[frozenset[int]], most: int, seed: int
) -> list[frozenset[int]]:
    """Draw documents of about `most` tokens, the same from every cycle as far as it has them, so that a small
    old cycle is not drowned by a large one; return the numbers of each cycle's documents.

    With each cycle that is added other ones are drawn; a resumed run finds as many as it had."""
    waiting = [
        iter(_order(len(tokens), without, random.Random(f"replay:{seed}:{len(cycles)}:{number}")))
        for number, (tokens, without) in enumerate(zip(cycles, left_out, strict=True))
    ]
    spent = dict.fromkeys(range(len(cycles)), 0)
    drawn: list[set[int]] = [set() for _ in cycles]
    total = 0
    while spent and total < most:
        number = min(spent, key=lambda cycle: (spent[cycle], cycle))
        document = next(waiting[number], None)
        if document is None:
            del spent[number]
            continue
        drawn[number].add(document)
        length = cycles[number].length(document)
        spent[number] += length
        total += length
    return [frozenset(numbers) for numbers in drawn]


def _order(count: int, left_out: frozenset[int], rng: random.Random) -> list[int]:
    return rng.sample([number for number in range(count) if number not in left_out], count - len(left_out))
