"""What Org marks, and where other languages mean something else by the same marks."""

from __future__ import annotations

import re

BLOCK = re.compile(r"^[ \t]*#\+begin_(\w+).*?(?:^[ \t]*#\+end_\1|\Z)", re.M | re.S | re.I)
_IS_ORG = re.compile(r"^(?:#\+\w+(?:\[.*\])?:|[ \t]*:PROPERTIES:[ \t]*$|[ \t]*#\+begin_)", re.M | re.I)
# Headings, comments, properties, and lines of fixed width
_NO_PROSE = re.compile(
    r"^(?:\*+[ \t]|[ \t]*(?:#(?:\+\w|[ \t]|$)|:[\w-]+\+?:(?:[ \t]|$)|:(?:[ \t]|$))).*$", re.M
)
_ITALICS = re.compile(r"(?<![^\s(])/(?=[A-Za-z])([^/]{0,80}[a-z])/(?![^\s.,;:!?)\[])")


def is_org(text: str) -> bool:
    return bool(_IS_ORG.search(text))


def without_marks(text: str) -> str:
    """Leave out the lines that are no prose, and the strokes around italics."""
    return _ITALICS.sub(r"\1", _NO_PROSE.sub("", text))
