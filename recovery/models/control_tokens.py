"""Find a tokenizer's control tokens: those that it marks, and that end a text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

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


def parted(spelling: str, gap: str) -> str:
    """Put a gap behind the first character, so that the two parts are no control token."""
    return spelling[:1] + gap + spelling[1:] if gap and len(spelling) > 1 else spelling


def spells_end_of_text(spelling: str) -> bool:
    """Return whether a control token is spelled like an end of text: "<|endoftext|>", "<eos>", "</s>"."""
    words = re.sub(r"[\W_]+", " ", spelling.replace("</", "/").replace("/", " slash ")).strip().lower()
    return END_OF_TEXT.fullmatch(words) is not None
