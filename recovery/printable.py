"""Make untrusted text safe to print: replace characters that hide, move or reorder text.

The text of documents, models and servers passes through here before a terminal, a page or a message shows it:
an escape sequence, a bidirectional mark or a zero-width character is replaced by its code point, such as
‹001B›.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

MOST_MARKS = 3  # combining marks per character
JOINERS = "\u200c\u200d"  # needed by scripts such as Persian, and between emoji
# Characters that have no width, move the cursor or change the text direction, except tab and line feed.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
PILED = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31-\u0e3a"
    "\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4,}"
)


def printable(value: Any) -> str:
    """Return the value as text that is safe to print; tabs and line feeds are kept."""
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return PILED.sub(lambda pile: pile[0][:MOST_MARKS], HIDDEN.sub(_numbered, text))


def one_line(value: Any, longest: int) -> str:
    """Return the value as one line of at most `longest` characters that is safe to print."""
    words = str(value)[: 4 * longest].split()
    return printable(" ".join(words))[:longest]


def printable_json(document: str) -> str:
    """Return the same JSON document with hidden characters written as \\uXXXX escapes."""
    return HIDDEN.sub(lambda found: json.dumps(found[0])[1:-1] if found[0] != "\x7f" else "\\u007f", document)


def _numbered(found: re.Match[str]) -> str:
    character = found[0]
    whole = found.string
    before = whole[max(found.start() - 1, 0) : found.start()]
    after = whole[found.end() : found.end() + 1]
    if character in JOINERS and _joins(before) and _joins(after):
        return character
    if character == "\r" and after == "\n":
        return ""
    return f"‹{ord(character):04X}›"


def _joins(neighbour: str) -> bool:
    """Return whether a joiner may stand beside this character (letter, emoji or combining mark)."""
    categories = {"Lo", "So", "Sk", "Mn", "Mc"}
    return bool(neighbour) and not neighbour.isascii() and unicodedata.category(neighbour) in categories
