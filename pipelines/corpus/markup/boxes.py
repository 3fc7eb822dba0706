"""Recognise the lines that open and close a box, `:::note` and `/// note`, and say what they show."""

from __future__ import annotations

import re

_COLONS = re.compile(
    r"[ \t]*:{3,}[ \t]*(?:\{\.?([\w-]+)[^}\n]*\}|([\w-]+)(?:\[([^\]\n]*)\])?(?:\{[^}\n]*\})?)?"
    r"[ \t]*([^\n]*)$",
    re.M,
)
_STROKES = re.compile(  # with the options below
    r"[ \t]*/{3,}[ \t]*(?:([a-z][\w-]*)[ \t]*(?:\|[ \t]*([^\n]*))?)?$(?:\n[ \t]+[a-z_]+:[^\n]*$)*", re.M
)
_KINDS = re.compile(
    r"note|tip|info|important|warning|danger|caution|hint|attention|error|seealso|success|details|question"
)
_BARE_KINDS = re.compile(r"admonition|html|(?:[\w-]+-)?caption|tab")  # of which only the title is shown
_ATTRIBUTES = re.compile(r"[ \t]*\{[^{}]*\}[ \t]*$")


def box_at(text: str, at: int) -> tuple[str, str] | None:
    """Return the line of a box that begins there, and what is shown instead; None where there is none."""
    return _of_colons(text, at) or _of_strokes(text, at)


def _of_colons(text: str, at: int) -> tuple[str, str] | None:
    line = _COLONS.match(text, at)
    if line is None:
        return None
    name = (line[1] or line[2] or "").removeprefix("callout-").lower()
    title = _ATTRIBUTES.sub("", " ".join(filter(None, (line[3], line[4])))).strip()
    if _KINDS.fullmatch(name):
        return line[0], _shown(name, title)
    return None if title else (line[0], "")


def _of_strokes(text: str, at: int) -> tuple[str, str] | None:
    line = _STROKES.match(text, at)
    if line is None:
        return None
    name, title = line[1] or "", (line[2] or "").strip()
    if _KINDS.fullmatch(name):
        return line[0], _shown(name, title)
    bare = not name or _BARE_KINDS.fullmatch(name)
    return (line[0], f"**{title}**" if title else "") if bare else None


def _shown(name: str, title: str) -> str:
    return f"**{name.capitalize()}: {title}**" if title else f"**{name.capitalize()}**"
