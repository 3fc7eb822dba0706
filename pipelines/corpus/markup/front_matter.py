"""Find the front matter of a site's page: data in YAML or TOML that a site's tools read."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import NamedTuple

_YAML = re.compile(r"[ \t]*$|[ \t]|#|- |[\]}]|[\"']?[\w.-]+(?::[\w.-]+)*(?: [\w.-]+)*[\"']?[ \t]*:(?:\s|$)")
_TOML = re.compile(r"^[\w.-]+[ \t]*=", re.M)
_END = {  # by what begins it; YAML may also end with dots, as Pandoc writes it
    "---": re.compile(r"^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.M),
    "+++": re.compile(r"^\+\+\+[ \t]*(?:\n|\Z)", re.M),
}
_SHOWN = re.compile(r"^(title|description)[ \t]*[:=][ \t]*(.*(?:\n[ \t]+\S.*)*)", re.M)


class FrontMatter(NamedTuple):
    """What a page's data say that readers see, and where the page begins."""

    title: str
    description: str
    end: int


NONE = FrontMatter("", "", 0)


def front_matter(text: str) -> FrontMatter:
    """Return what the YAML or TOML before a page says; NONE where a page begins otherwise, as with a rule."""
    mark = text[:3]
    opening, _, _ = text.partition("\n")
    if mark not in _END or opening.rstrip() != mark:
        return NONE
    end = _END[mark].search(text, len(opening) + 1)
    data = text[len(opening) + 1 : end.start()] if end else ""
    if not end or not (_is_yaml(data) if mark == "---" else _TOML.search(data)):
        return NONE
    shown = {name: _value(value) for name, value in _SHOWN.findall(dedent(data))}
    return FrontMatter(shown.get("title", ""), shown.get("description", ""), end.end())


def _is_yaml(data: str) -> bool:
    lines = data.split("\n")
    return all(map(_YAML.match, lines)) and any(":" in line for line in lines)


def _value(written: str) -> str:
    """Return what a value of YAML or TOML says, on one line."""
    said = " ".join(written.split())
    said = re.sub(r"^[>|][+-]?(?: |$)", "", said)
    quote = said[:1]
    if quote in ("'", '"') and said.find(quote, 1) > 0:
        inner = re.match(r"\"((?:[^\"\\]|\\.)*)\"|'((?:[^']|'')*)'", said)
        double, single = inner.groups(default="") if inner else ("", "")
        said = double.replace('\\"', '"') or single.replace("''", "'")
    else:
        said = re.sub(r"\s#\s.*$", "", said)
    return "" if said in ("null", "~", "true", "false", "[]", "{}") else said.strip()
