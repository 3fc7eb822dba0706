"""Tell pictures that stand beside a sentence from those that stand for a word of it."""

from __future__ import annotations

import re

from pipelines.corpus.markup.parts import LINK_TEXT, TARGET

_PICTURE = rf"!\[{LINK_TEXT}\]{TARGET}(?:\{{[^{{}}\n]*+\}})?"  # with its attributes
_PICTURES = rf"(?:(?:{_PICTURE}|\[{_PICTURE}\]{TARGET})\s*+)++"  # may be links
_ALONE = re.compile(rf"\s*+{_PICTURES}[^\w\n]*+$")
_BESIDE = re.compile(rf"(?:^\s*+|(?<=[.!?]\s)|(?<=[。！？])){_PICTURES}")
_NEXT = re.compile(r"""["'“‘„«»(*_¿¡]*+([^\W_]|$)""")


def is_picture(line: str) -> bool:
    """Return whether a line shows pictures and says nothing."""
    return "![" in line and bool(_ALONE.match(line))


def without_pictures(line: str) -> str:
    """Leave out pictures before a sentence or behind one; one that stands for its first word stays."""
    return _BESIDE.sub(_unless_a_word, line) if "![" in line else line


def _unless_a_word(pictures: re.Match[str]) -> str:
    following = _NEXT.match(pictures.string, pictures.end())
    beside = following and not following[1].islower() and (following[1] or pictures.start())
    return "" if beside else pictures[0]
