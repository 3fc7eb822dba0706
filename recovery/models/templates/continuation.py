"""Encode a text behind another one, whose own ids stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

ANCHORS = ("\n", ".", "a")  # behind these a tokenizer such as SentencePiece adds no blank of its own


def continued(encode: Callable[[str], list[int]], text: str, text_ids: list[int], rest: str) -> list[int]:
    """Return the ids of a text with its continuation, beginning with those of the text alone.

    A token would straddle the border where a text ends with a blank and a word follows: a model that has read
    the blank writes the word without one.
    """
    ids = encode(text + rest)
    if ids[: len(text_ids)] == text_ids:
        return ids
    for anchor in ANCHORS:
        alone, ids = encode(anchor), encode(anchor + rest)
        if ids[: len(alone)] == alone:
            return text_ids + ids[len(alone) :]
    return text_ids + encode(rest)


def behind_last(ids: Sequence[int], control: Collection[int]) -> list[int]:
    """Return what follows the last control token; all where there is none."""
    last = max((at for at, token in enumerate(ids) if token in control), default=-1)
    return list(ids[last + 1 :])
