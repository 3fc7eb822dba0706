"""Build HTML and SVG on MarkupSafe and Jinja: every value that is not markup is escaped.

Model output, prompts, file names, run names and notes are untrusted. `Html` is MarkupSafe's `Markup` with one
more step before the escaping: controls, bidirectional marks and zero-width characters become code points,
piles of combining marks are cut, and keys and passwords are redacted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import markupsafe
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from db.redact import redact_text
from recovery.printable import printable

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
LINKS = {"href", "src", "action", "xlink:href", "formaction", "poster", "data"}
READ = {"title", "aria-label", "placeholder", "alt"}  # attributes shown to readers; others are escaped only
NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")
INSIDE = re.compile(r"[/?#](?![/\\])|$")  # how a link within the dashboard begins
LONGEST = 20_000  # characters shown of any one text, unless `text` is given another limit
STRADDLING = 400  # characters read past a cut, to redact a key that crosses it


class Html(Markup):
    """Markup into which nothing gets unescaped: `join`, `+`, `%` and `format` all call `escape`."""

    __slots__ = ()

    @classmethod
    def escape(cls, value: Any) -> Html:
        if isinstance(value, Markup):
            return cls(value)
        return cls(markupsafe.escape(visible(value)))


def text(value: Any, limit: int = LONGEST) -> Html:
    """Return any value as escaped text, cut after `limit` characters with a count of the rest."""
    return Html(markupsafe.escape(visible(value, limit)))


def visible(value: Any, limit: int = LONGEST) -> str:
    """Return it as `text` does, without the escaping."""
    plain = str(value)
    rest = len(plain) - limit
    if rest > 0:
        plain = redact_text(plain[: limit + STRADDLING])[:limit]
        return f"{printable(plain)}… ({rest:,} more characters)"
    return printable(redact_text(plain))


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Return an element. `class_` is class, `data_x` is data-x; None and False omit an attribute."""
    opening = _opening(name) % join(_attribute(key, value) for key, value in attributes.items())
    return opening if name in VOID else _closing(name) % (opening, join(*children))


def join(*parts: Any) -> Html:
    """Concatenate parts: markup unchanged, None as nothing, lists flattened, everything else escaped."""
    return Html().join(_leaves(parts))


def document(template: str, **values: Any) -> str:
    """Return a whole document from a file in templates/; its values are escaped like any others."""
    return _templates().get_template(template).render(values)


def _leaves(parts: Iterable[Any]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Iterable) and not isinstance(part, str | bytes | dict):
            yield from _leaves(part)
        elif part is not None:
            yield part


@lru_cache
def _opening(name: str) -> Html:
    return Html(f"<{_checked(name)}%s>")


@lru_cache
def _closing(name: str) -> Html:
    return Html(f"%s%s</{_checked(name)}>")


@lru_cache
def _attribute_name(key: str) -> str:
    name = _checked(key.rstrip("_").replace("_", "-"))
    if name.startswith("on") or name == "style":
        raise ValueError(f"attribute {name} is refused: the page's own script and style sheet do that")
    return name


def _attribute(key: str, value: Any) -> Html | None:
    if value is None or value is False:
        return None
    name = _attribute_name(key)
    if value is True:
        return Html(f" {name}")
    if name in LINKS and not INSIDE.match(str(value)):
        raise ValueError(f"{name} leaves this dashboard: {value!r:.80}")
    shown = visible(value) if name in READ else printable(value)
    return Html(f' {name}="%s"') % markupsafe.escape(shown)


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an element or attribute")
    return name


@lru_cache
def _templates() -> Environment:
    folder = FileSystemLoader(Path(__file__).parent / "templates")
    return Environment(loader=folder, autoescape=True, finalize=Html.escape, undefined=StrictUndefined)
