"""Build HTML and SVG; escape every string that is not marked as markup.

Model output, prompts, file names, run names and notes are untrusted. `tag` escapes every child and attribute
that is not `Html`. Characters that hide or reorder text (controls, bidirectional marks, zero-width) are shown
as code points, piles of combining marks are cut, and keys and passwords are redacted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from db.redact import redact_text
from recovery.printable import printable

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
LINKS = {"href", "src", "action", "xlink:href", "formaction", "poster", "data"}
READ = {"title", "aria-label", "placeholder", "alt"}  # attributes shown to readers; others are escaped only
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
STRADDLING = 400  # characters read past a cut, to redact a key that crosses it


class Html(str):
    """Trusted markup built by this module. Any other string is escaped."""

    __slots__ = ()


def text(value: Any, limit: int | None = None) -> Html:
    """Return any value as escaped text, cut after `limit` characters with a count of the rest."""
    return Html(html.escape(visible(value, limit), quote=True))


def visible(value: Any, limit: int | None = None) -> str:
    """Like `text` without the escaping, for output other than HTML (JSON, an image)."""
    plain = str(value)
    rest = len(plain) - limit if limit is not None else 0
    if limit is not None and rest > 0:
        plain = redact_text(plain[: limit + STRADDLING])[:limit]
        return f"{printable(plain)}… ({rest:,} more characters)"
    return printable(redact_text(plain))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Return an element. `class_` is class, `data_x` is data-x; None and False omit an attribute."""
    opening = f"<{_name(name)}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(opening if name in VOID else f"{opening}{join(*children)}</{name}>")


def join(*parts: Any) -> Html:
    """Concatenate parts: Html unchanged, None as nothing, lists flattened, everything else escaped."""
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
