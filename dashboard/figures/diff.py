"""Two texts word by word: what one has that the other has not."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from dashboard.html import Html, join, tag, text

WORDS = re.compile(r"\s+|\w+|[^\w\s]")
MOST_WORDS = 1200  # compared; beyond that a text is shown as it is
SHOWN = 3000  # characters, unless all are asked for


def marked(words: str, against: str, name: str, limit: int | None = SHOWN) -> Html:
    """`words`, with what `against` has not in <ins> or <del> (`name`)."""
    shown = words if limit is None else words[:limit]
    rest = text(f"… ({len(words) - len(shown):,} more characters)") if len(shown) < len(words) else None
    ours, theirs = WORDS.findall(shown), WORDS.findall(against if limit is None else against[:limit])
    if max(len(ours), len(theirs)) > MOST_WORDS:
        return join(text(shown), rest)
    blocks = SequenceMatcher(None, theirs, ours, autojunk=False).get_opcodes()
    parts = [_part("".join(ours[low:high]), kind, name) for kind, _, _, low, high in blocks if low < high]
    return join(parts, rest)


def _part(words: str, kind: str, name: str) -> Html:
    return text(words) if kind == "equal" or not words.strip() else tag(name, words)
