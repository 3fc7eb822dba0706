"""Draw pieces of earlier cycles' documents up to a number of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelines.corpus.token_file import Pieces


def replayed_pieces(cycles: Sequence[Pieces], most: int, seed: int) -> list[Pieces]:
    """Draw pieces of about `most` tokens, the same from every cycle as far as it has them, so that a small
    old cycle is not drowned by a large one. Where that is less than a piece of each, chance says of which.

    With each cycle that is added other ones are drawn; a resumed run finds as many as it had."""
    named = f"replay:{seed}:{len(cycles)}"
    waiting = [
        iter(_shuffled(len(pieces.starts), f"{named}:{number}")) for number, pieces in enumerate(cycles)
    ]
    spent = dict.fromkeys(_shuffled(len(cycles), named), 0)  # of equal ones `min` takes the first
    drawn: list[list[int]] = [[] for _ in cycles]
    total = 0
    while spent and total < most:
        number = min(spent, key=lambda cycle: spent[cycle])
        piece = next(waiting[number], None)
        if piece is None:
            del spent[number]
            continue
        drawn[number].append(piece)
        length = cycles[number].length(piece)
        spent[number] += length
        total += length
    return [pieces.only(numbers) for pieces, numbers in zip(cycles, drawn, strict=True)]


def _shuffled(count: int, seed: str) -> list[int]:
    return random.Random(seed).sample(range(count), count)
