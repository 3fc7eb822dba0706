"""Which characters belong to scripts that are written without spaces, and how their lines are joined."""

from __future__ import annotations

import re

# Thai, Lao, Burmese, Khmer, kana and Han, as part of a set of characters in a regular expression
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fff\u3005-\u3007\u3021-\u9fff\uf900-\ufaff"
# A line that was wrapped between two of these is joined without a space.
NO_SPACE = rf"[{UNSPACED}、。，；：！？（）「」『』《》【】]"
_NO_SPACE = re.compile(NO_SPACE)


def between_lines(line: str, following: str) -> str:
    """Return what stands for a line's end: nothing in a script without spaces."""
    return "" if _NO_SPACE.match(line[-1]) and _NO_SPACE.match(following) else " "


def first_unit(word: str) -> str:
    """Return what of a line's first word must stay on one line: a character, in a script without spaces."""
    return word[:1] if _NO_SPACE.match(word) else f" {word}"
