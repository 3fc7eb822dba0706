"""Leave out what extensions of Markdown mark within a line and no reader sees: icons, attributes, links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest

from pipelines.corpus.markup.parts import FORMULA, LEFT_OUT, TARGET

_NAME = r"[.#][A-Za-z][\w:-]*"
_SETTING = r"[A-Za-z][\w:-]*=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s{}\"']+)"
_ITEM = rf"(?:{_NAME}|{_SETTING})"
_NAMED = rf"\{{[ ]?(?:{_SETTING}[ ]+)*{_NAME}(?:[ ]+{_ITEM})*[ ]?\}}"  # others may be what a text says
_ATTRIBUTES = rf"\{{[ ]?{_ITEM}(?:[ ]+{_ITEM})*[ ]?\}}"
_PERMALINK = r"(?i:perma(?:nent )?link|(?:direct )?link to th)"
_ICON = r":(?:material|octicons|fontawesome|simple)(?:-[a-z0-9]+)+:"
_END = r"[ \t]*(?:\n|\Z)(?:[ \t]*\n)?"  # of a line that goes, with an empty one behind it
_SNIPPET = r"-{1,3}8<-{1,3}(?:[ \t]+(?:\"[^\"\n]+\"|'[^'\n]+'|\[[^\[\]\n]+\]))?"
_LEFT_OUT = (
    # What a heading or a definition links to: itself, its source
    re.compile(r"(?<![ \t])[ \t]*\[[¶🔗⚓]\]\([^()\s]{0,400}#[^()\s]{0,400}(?:[ \t]+\"[^\"\n]*\")?\)"),
    re.compile(
        rf"(?<![ \t])[ \t]*\[[#§]?\]\([^()\s]{{0,400}}#[^()\s]{{0,400}}[ \t]+\"{_PERMALINK}[^\"\n]*\"\)"
    ),
    re.compile(r"(?<=\S)[ \t]++\[[#§]\]\(#[^()\s]*\)[ \t]*$", re.M),
    re.compile(r"\[\\?\[source\\?\]\]\((?:[^()\s]|\([^()\s]*\))*\)"),
    re.compile(rf"[ ]?{_ICON}(?:{_ATTRIBUTES})?(?:(?=\])|[ \t]*$)|{_ICON}(?:{_ATTRIBUTES})?[ ]?", re.M),
    re.compile(rf"(?<=[)\]*]){_NAMED}"),
    re.compile(rf"(?:^|(?<=\S))[ \t]*(?=\{{ [.#]){_ATTRIBUTES}[ \t]*$", re.M),
    # Files that are taken in
    re.compile(rf"^[ \t]*(?:{_SNIPPET}|\{{\*[^{{}}\n]*\*\}}){_END}", re.M),
)
_OF_LINK = re.compile(rf"(\]{TARGET}){_ATTRIBUTES}")
_OF_CODE = re.compile(_NAMED)
_KEYS = re.compile(r"(?<![\w+{])\+\+([a-z][\w-]*(?:\+[\w-]+)*)\+\+(?![\w+])")
# Of MDX: literals, expressions on lines of their own, and those that stand for a word
_LITERAL = re.compile(r"(?<![\\$])\{([\"'`])([^\"'`{}\n]*)\1\}")
_ALONE = re.compile(rf"^[ \t]*\{{[A-Za-z_][^{{}}\n]{{0,200}}\}}{_END}", re.M)
_EXPRESSION = re.compile(rf"({FORMULA})|(?<![\\$\w\[=/^])\{{[A-Za-z_][^{{}}\n]{{0,200}}\}}")


LONGEST_EXPORT = 4000  # characters
_EXPORT = re.compile(r"export(?:\s+(?:async|class|const|default|function|let|var)\b|\s*[{*])")
_BEHIND_EXPORT = re.compile(r"\s*\Z|(?:im|ex)port\b")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))


def without_extensions(text: str, mdx: bool, behind_code: bool = False) -> str:
    """Return a text that is no code without such marks; in MDX also without expressions."""
    if behind_code and (attributes := _OF_CODE.match(text)):
        text = text[attributes.end() :]
    text = _OF_LINK.sub(r"\1", text)
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    text = _KEYS.sub(r"\1", text)
    if not mdx or "{" not in text:
        return text
    return _EXPRESSION.sub(lambda found: found[1] or LEFT_OUT, _ALONE.sub("", _LITERAL.sub(r"\2", text)))


def export_end(text: str, at: int) -> int | None:
    """Return where an export ends that begins there: with the line that ends it, its brackets closed."""
    if not _EXPORT.match(text, at):
        return None
    opened, end = Counter[str](), at
    lines = text[at : at + LONGEST_EXPORT].splitlines(keepends=True)
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        end += len(line)
        opened.update(line)
        if are_closed(opened) and (line.rstrip().endswith(";") or _BEHIND_EXPORT.match(following)):
            return end
    return None


def are_closed(opened: Mapping[str, int]) -> bool:
    """Return whether as many brackets end as begin, by their numbers, and no template string is open."""
    return all(opened.get(a, 0) == opened.get(b, 0) for a, b in _PAIRS) and opened.get("`", 0) % 2 == 0
