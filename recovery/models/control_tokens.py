"""Find a tokenizer's control tokens: those that it marks, those between turns, and those that end a text."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from recovery.models.thinking import is_mark

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = re.compile(
    r"end ?of ?(text|sentence|document)|eos( token)?|slash s"
)  # "<|endoftext|>", "<eos>", "</s>"


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return spelling -> id of every token that the tokenizer marks as special."""
    added = {token.content: i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    named = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    return {spelling: i for spelling, i in (added | named).items() if spelling and i is not None}


def turn_markers(
    tokenizer: PreTrainedTokenizerBase, turn: str, opened: str, stop_ids: Collection[int]
) -> dict[str, int]:
    """Return spelling -> id of the added tokens that end a turn, surround a user turn or open the answer.

    They are control tokens even if the tokenizer does not mark them as special. `turn` is a user turn as the
    template renders it, `opened` the same and the opening of an answer. Marks of thinking in that opening
    ("<think>") are left out, because training answers may contain them.
    """
    tokens = tokenizer.added_tokens_decoder.items()
    added = {token.content: i for i, token in tokens if len(token.content) > 1}
    opening = {spelling for spelling in added if spelling in opened and not is_mark(spelling)}
    return {s: i for s, i in added.items() if s in turn or s in opening or i in stop_ids}


def parted(spelling: str, gap: str) -> str:
    """Put a gap behind the first character, so that the two parts are no control token."""
    return spelling[:1] + gap + spelling[1:] if gap and len(spelling) > 1 else spelling


def spells_end_of_text(spelling: str) -> bool:
    """Return whether a control token is spelled like an end of text: "<|endoftext|>", "<eos>", "</s>"."""
    words = re.sub(r"[\W_]+", " ", spelling.replace("</", "/").replace("/", " slash ")).strip().lower()
    return END_OF_TEXT.fullmatch(words) is not None
