"""The whole sequences of a token file."""

from __future__ import annotations

from pipelines.corpus.token_file import Dialogue, Tokens


def sequences(tokens: Tokens) -> list[Dialogue]:
    starts, ends = (places.tolist() for places in tokens.whole())
    return [tokens.part(start, end) for start, end in zip(starts, ends, strict=True)]
