"""Build HTML and SVG: a string that is not marked as ours is text, which is escaped and made visible.

Model output, prompts, file names, run names and notes are hostile. `tag` escapes every child and attribute
that is not `Html`; characters that hide or reorder text (controls, bidirectional marks, zero-width) are shown
by their number, piles of combining marks are cut, and what looks like a key or a password is hidden.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from db.printable import printable
from db.redact import redact_text

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
LINKS = {"href", "src", "action", "xlink:href", "formaction", "poster", "data"}
READ = {"title", "aria-label", "placeholder", "alt"}  # texts; other attributes stay exact
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
STRADDLING = 400  # characters after a cut that are read, so that a key across it is still a key


class Html(str):
    """Markup that this program wrote. Any other string is text."""

    __slots__ = ()


def text(value: Any, limit: int | None = None) -> Html:
    """Return any value as escaped text, cut after `limit` characters with a count of what is missing."""
    return Html(html.escape(visible(value, limit), quote=True))


def visible(value: Any, limit: int | None = None) -> str:
    """Return the same without the escaping, for text outside of HTML (JSON, a picture)."""
    plain = str(value)
    rest = len(plain) - limit if limit is not None else 0
    if limit is not None and rest > 0:
        plain = redact_text(plain[: limit + STRADDLING])[:limit]
        return f"{printable(plain)}… ({rest:,} more characters)"
    return printable(redact_text(plain))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Return an element. `class_` is class, `data_x` is data-x; None and False leave an attribute out."""
    opening = f"<{_name(name)}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*parts: Any) -> Html:
    """Concatenate parts: Html as it is, None as nothing, lists flattened, everything else as text."""
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
    shown = visible(value) if name in READ else printable(value)
    return f' {name}="{html.escape(shown, quote=True)}"'


def _name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an element or attribute")
    return name
