"""Compare two texts word by word and mark the words that the other text lacks.

The number of steps is bounded: a degenerate, repetitive answer pairs every word with every repetition, which
is cubic. A text beyond the bound is shown unmarked, with a note.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import Match, SequenceMatcher
from functools import lru_cache

from dashboard.markup import STRADDLING, Html, join, tag, text
from db.redact import redact_text
from evals.answer_matching import MARKS
from recovery.printable import JOINERS

# Marks and joiners stay with what they join: the vowels of Hindi, the parts of one emoji
_BINDS = f"{MARKS}{JOINERS}"
WORDS = re.compile(rf"\s+|[\w{_BINDS}]+|[^\w\s](?:[{_BINDS}]+[^\w\s{_BINDS}]?)*")
MOST_WORDS = 2000  # compared per text
MOST_STEPS = 100_000  # pairs of equal words examined per comparison: about 10 ms
SHOWN = 3000  # characters shown by default
LONGEST = 20_000  # characters compared per text
REMEMBERED = 256  # cached comparisons

Block = tuple[bool, str]  # (shared with the other text, the words)
Blocks = tuple[Block, ...]


class TooMuch(Exception):
    """Raised when a comparison would take more than MOST_STEPS."""


class BoundedMatcher(SequenceMatcher[str]):
    """A SequenceMatcher that stops after MOST_STEPS; whitespace takes the mark of the words around it."""

    def __init__(self, theirs: list[str], ours: list[str]) -> None:
        super().__init__(str.isspace, theirs, ours, autojunk=False)
        counts = Counter(word for word in ours if not word.isspace())
        self.places = [counts[word] for word in theirs]
        self.steps = 0

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> Match:
        """Count the word pairs of a search before running it; raise TooMuch beyond the bound."""
        self.steps += 1 + sum(self.places[alo:ahi])
        if self.steps > MOST_STEPS:
            raise TooMuch
        return super().find_longest_match(alo, ahi, blo, bhi)


def marked(words: str, against: str, name: str, limit: int = SHOWN) -> Html:
    """Return `words` as HTML, with those that `against` lacks in <ins> or <del> (`name`)."""
    shown, other = _shown(words, limit), _shown(against, limit)
    left = len(words) - limit
    rest = f"… ({left:,} more characters)" if left > 0 else None
    blocks = compared(shown, other)
    if blocks is None:
        return join(
            text(shown, limit + STRADDLING),
            rest,
            tag("span", " (not compared word by word)", class_="soft small"),
        )
    return join([_part(same, part, name) for same, part in blocks], rest)


def _shown(words: str, limit: int) -> str:
    return redact_text(words[: limit + STRADDLING])[:limit]


def compared(words: str, against: str) -> Blocks | None:
    """Split `words` into shared and differing blocks; return None if that would take too many steps."""
    if max(len(words), len(against)) > LONGEST:
        return None
    first, second = sorted((words, against))
    both = _both(first, second)
    if both is None:
        return None
    of_first, of_second = both
    return of_first if words == first else of_second


@lru_cache(REMEMBERED)
def _both(first: str, second: str) -> tuple[Blocks, Blocks] | None:
    """Split two texts into blocks, each against the other: a page shows both."""
    ours, theirs = WORDS.findall(first), WORDS.findall(second)
    if max(len(ours), len(theirs)) > MOST_WORDS:
        return None
    begin = _alike(ours, theirs)
    end = _alike(ours[begin:][::-1], theirs[begin:][::-1])
    our_middle = ours[begin : len(ours) - end]
    their_middle = theirs[begin : len(theirs) - end]
    try:
        opcodes = BoundedMatcher(our_middle, their_middle).get_opcodes()
    except TooMuch:
        return None
    shared = (True, "".join(ours[:begin])), (True, "".join(ours[len(ours) - end :]))
    our_blocks, their_blocks = [], []
    for kind, our_low, our_high, their_low, their_high in opcodes:
        our_blocks.append((kind == "equal", "".join(our_middle[our_low:our_high])))
        their_blocks.append((kind == "equal", "".join(their_middle[their_low:their_high])))
    return (shared[0], *our_blocks, shared[1]), (shared[0], *their_blocks, shared[1])


def _alike(one: list[str], other: list[str]) -> int:
    """Return the number of words in the common prefix."""
    length = min(len(one), len(other))
    return next((place for place in range(length) if one[place] != other[place]), length)


def _part(same: bool, words: str, name: str) -> Html:
    return text(words, len(words)) if same or not words.strip() else tag(name, text(words, len(words)))
