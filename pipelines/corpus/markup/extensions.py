"""Leave out what extensions of Markdown mark within a line and no reader sees: icons, attributes, links."""

from __future__ import annotations

import re

from pipelines.corpus.markup.parts import LINE_END, TARGET

_NAME = r"[.#][A-Za-z][\w:-]*"
_SETTING = r"[A-Za-z][\w:-]*=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s{}\"']+)"
_ITEM = rf"(?:{_NAME}|{_SETTING})"
_NAMED = rf"\{{[ ]?(?:{_SETTING}[ ]+)*{_NAME}(?:[ ]+{_ITEM})*[ ]?\}}"  # others may be what a text says
_ATTRIBUTES = rf"\{{[ ]?{_ITEM}(?:[ ]+{_ITEM})*[ ]?\}}"
_PERMALINK = r"(?i:perma(?:nent )?link|(?:direct )?link to th)"
_ICON = r":(?:material|octicons|fontawesome|simple)(?:-[a-z0-9]+)+:"
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
    re.compile(rf"^[ \t]*(?:{_SNIPPET}|\{{\*[^{{}}\n]*\*\}}){LINE_END}", re.M),
)
_OF_LINK = re.compile(rf"(\]{TARGET}){_ATTRIBUTES}")
_OF_CODE = re.compile(_NAMED)
_KEYS = re.compile(r"(?<![\w+{])\+\+([a-z][\w-]*(?:\+[\w-]+)*)\+\+(?![\w+])")


def without_extensions(text: str, behind_code: bool = False) -> str:
    """Return a text that is no code without such marks."""
    if behind_code and (attributes := _OF_CODE.match(text)):
        text = text[attributes.end() :]
    text = _OF_LINK.sub(r"\1", text)
    for pattern in _LEFT_OUT:
        text = pattern.sub("", text)
    return _KEYS.sub(r"\1", text)
