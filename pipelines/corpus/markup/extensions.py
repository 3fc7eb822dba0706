"""Leave out what extensions of Markdown mark within a line and no reader sees: icons, attributes, links."""

from __future__ import annotations

import re

from pipelines.corpus.markup.parts import LEFT_OUT

_ITEM = r"(?:[.#][A-Za-z][\w:-]*|[A-Za-z][\w:-]*=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s{}\"']+))"
_ATTRIBUTES = rf"\{{[ ]?{_ITEM}(?:[ ]+{_ITEM})*[ ]?\}}"
_PERMALINK = r"(?i:perma(?:nent )?link|(?:direct )?link to th)"
_ICON = r":(?:material|octicons|fontawesome|simple)(?:-[a-z0-9]+)+:"
_END = r"[ \t]*(?:\n|\Z)(?:[ \t]*\n)?"  # of a line that goes, with an empty one behind it
_LEFT_OUT = (
    # What a heading or a definition links to: itself, its source
    re.compile(r"(?<![ \t])[ \t]*\[[¶🔗⚓]\]\([^()\s]{0,400}#[^()\s]{0,400}(?:[ \t]+\"[^\"\n]*\")?\)"),
    re.compile(
        rf"(?<![ \t])[ \t]*\[[#§]?\]\([^()\s]{{0,400}}#[^()\s]{{0,400}}[ \t]+\"{_PERMALINK}[^\"\n]*\"\)"
    ),
    re.compile(r"(?<=\S)[ \t]++\[[#§]\]\(#[^()\s]*\)[ \t]*$", re.M),
    re.compile(r"\[\\?\[source\\?\]\]\((?:[^()\s]|\([^()\s]*\))*\)"),
    re.compile(rf"[ ]?{_ICON}(?:{_ATTRIBUTES})?(?:(?=\])|[ \t]*$)|{_ICON}(?:{_ATTRIBUTES})?[ ]?", re.M),
    re.compile(rf"(?:\A|(?<=[)\]*_:`]))[ ]?{_ATTRIBUTES}"),
    re.compile(rf"(?:^|(?<=\S))[ \t]*(?=\{{ [.#]){_ATTRIBUTES}[ \t]*$", re.M),
    # Files that are taken in
    re.compile(rf"^[ \t]*(?:-{{1,3}}8<-{{1,3}}[^\n]*|\{{\*[^{{}}\n]*\*\}}){_END}", re.M),
)
_KEYS = re.compile(r"(?<![\w+{])\+\+([a-z][\w-]*(?:\+[\w-]+)*)\+\+(?![\w+])")
# Of MDX: literals, expressions on lines of their own, and those that stand for a word
_LITERAL = re.compile(r"(?<![\\$])\{([\"'`])([^\"'`{}\n]*)\1\}")
_ALONE = re.compile(rf"^[ \t]*\{{[A-Za-z_][^{{}}\n]{{0,200}}\}}{_END}", re.M)
_EXPRESSION = re.compile(r"(?<![\\$\w\[=/])\{[A-Za-z_][^{}\n]{0,200}\}")


def without_extensions(text: str, mdx: bool) -> str:
    """Return a text that is no code without such marks; in MDX also without expressions."""
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    text = _KEYS.sub(r"\1", text)
    if not mdx or "{" not in text:
        return text
    return _EXPRESSION.sub(LEFT_OUT, _ALONE.sub("", _LITERAL.sub(r"\2", text)))
