"""The only way to HTML and SVG: what is not marked as ours is text, and text is escaped and made visible.

Model output, prompts, file names, run names and notes are hostile. `tag` escapes every child and attribute
that is not `Html`; characters that hide or reorder text (controls, bidirectional marks, zero-width) are shown
by their number, and piles of combining marks are cut, so that no text can reach out of its place.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

MOST_MARKS = 3  # combining marks on one character
VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
LINKS = {"href", "src", "action", "xlink:href", "formaction", "poster", "data"}
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
JOINERS = "\u200c\u200d"  # needed by scripts such as Persian, and between emoji
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\uffff\ud800-\udfff"
    "\U000e0000-\U000e0fff]"
)
PILED = re.compile(
    "[\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0e31-\u0e3a"
    "\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4,}"
)


class Html(str):
    """Markup that this program wrote. Any other string is text."""

    __slots__ = ()


def text(value: Any, limit: int | None = None) -> Html:
    """Any value as escaped text, cut after `limit` characters with a word on how much is missing."""
    return Html(html.escape(visible(value, limit), quote=True))


def visible(value: Any, limit: int | None = None) -> str:
    """The same without the escaping, for the few places that are not HTML (a JSON file, a picture)."""
    plain = str(value)
    rest = len(plain) - limit if limit is not None else 0
    if rest > 0:
        plain = plain[:limit]
    if not plain.isascii() or not plain.isprintable():
        plain = PILED.sub(lambda found: found[0][:MOST_MARKS], HIDDEN.sub(_shown, plain))
    return f"{plain}… ({rest:,} more characters)" if rest > 0 else plain


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """An element. `class_` is class, `data_x` is data-x; an attribute that is None or False is left out."""
    opening = f"<{_name(name)}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*parts: Any) -> Html:
    """Parts in a row: Html as it is, None as nothing, lists flattened, everything else as text."""
    return Html("".join(_part(part) for part in parts))


def _part(part: Any) -> str:
    if part is None:
        return ""
    if isinstance(part, Html):
        return part
    if isinstance(part, Iterable) and not isinstance(part, str | bytes | dict):
        return join(*part)
    return text(part)


def _attribute(key: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = _name(key.rstrip("_").replace("_", "-"))
    if name.startswith("on") or name == "style":
        raise ValueError(f"attribute {name} is refused: the page's own script and style sheet do that")
    if value is True:
        return f" {name}"
    if name in LINKS and not re.match(r"[/?#](?![/\\])|$", str(value)):
        raise ValueError(f"{name} leaves this dashboard: {value!r:.80}")
    return f' {name}="{text(value)}"'


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an element or attribute")
    return name


def _shown(found: re.Match[str]) -> str:
    character, before = found[0], found.string[: found.start()][-1:]
    after = found.string[found.end() : found.end() + 1]
    if character in JOINERS and _needs_joiners(before) and _needs_joiners(after):
        return character
    if character == "\r" and after == "\n":
        return ""
    return f"‹{ord(character):04X}›"


def _needs_joiners(neighbour: str) -> bool:
    return (
        bool(neighbour)
        and not neighbour.isascii()
        and unicodedata.category(neighbour) in {"Lo", "So", "Sk", "Mn", "Mc"}
    )
