"""Write code as Markdown does, in a fence, and take off it what Org adds to it."""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.parts import fenced as in_fences

_ESCAPED = re.compile(r"([ \t]*,*),(?=\*|#\+)")
_LANGUAGE = re.compile(r"[^\s:`-][^\s`]*")


def listing(lines: list[str], options: str = "") -> list[str]:
    """Return a block of code, its language named where the block's options begin with it."""
    language = _LANGUAGE.match(options)
    return fenced([_ESCAPED.sub(r"\1", line, count=1) for line in lines], language[0] if language else "")


def fenced(lines: list[str], language: str = "") -> list[str]:
    """Return lines in a fence that is longer than any in them, without the spaces that all begin with."""
    return in_fences("\n".join(_outdented(lines)), language).split("\n")


def _outdented(lines: list[str]) -> list[str]:
    spaces = [line[: len(line) - len(line.lstrip())] for line in lines if line.strip()]
    first, last = (min(spaces), max(spaces)) if spaces else ("", "")
    same = 0
    while same < min(len(first), len(last)) and first[same] == last[same]:
        same += 1
    return [line[same:] for line in lines]
