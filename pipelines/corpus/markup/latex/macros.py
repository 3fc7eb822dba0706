"""Macros that LaTeX files define: short texts, some with arguments, which are put in place of their names.

What a macro does by TeX's own programming is not followed: such a one stays a command like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipelines.corpus.markup.latex import glossary
from pipelines.corpus.markup.latex.glossary import LONGEST
from pipelines.corpus.markup.latex.words import COMMANDS

_HEAD = re.compile(
    r"""
      (?P<comment>(?<!\\)%[^\n]*+)
    | \\(?P<by>(?:re)?newcommand|providecommand|DeclareRobustCommand|[gx]?def)\*?[ \t]*+
      (?:\{[ \t]*+\\(?P<braced>[A-Za-z]+)[ \t]*+\}|\\(?P<bare>[A-Za-z]+))[ \t]*+
      (?:\[(?P<count>[1-9])\][ \t]*+|(?P<marks>(?:\#[1-9]){1,9}))?
      (?:\[(?P<default>[^\[\]\n]{0,80})\][ \t]*+)?
      (?:%[^\n]*+)?\s*+
      (?=\{)
    """,
    re.X,
)
_PROGRAM = re.compile(  # or a picture made of boxes
    r"@|\#\#|\\(?:else|fi|or|csname|expandafter|[gex]?def|let|(?:re)?newcommand|futurelet|loop|catcode|input"
    r"|usepackage|the|mathchoice|mathpalette|[hv]box|vcenter|vtop|ooalign|raise|lower|[rl]lap|smash|includegraphics"
    r"|(?:display|text|script|scriptscript)style)(?![A-Za-z])|\\if|\\begin\{(?:tikzpicture|picture)"
)
_PARAMETER = re.compile(r"#([1-9])")
_BRACES = re.compile(r"\\[\s\S]|[{}]|\n[ \t]*\n")
_USED = re.compile(r"\\([A-Za-z]+)")
_SPACE = re.compile(r"[ \t]*+(?:\n[ \t]*+(?!\n))?")


class Macro(NamedTuple):
    """What a name stands for: a text in which #1 is the first argument."""

    body: str
    arguments: int = 0
    default: str | None = None  # of the first argument, which is optional then

    def filled(self, arguments: list[str]) -> str:
        """Return the text with its arguments."""
        return _PARAMETER.sub(lambda found: arguments[int(found[1]) - 1], self.body)


def macros_of(text: str) -> dict[str, Macro]:
    """Return the macros and abbreviations that a text defines, the last of each name."""
    return dict(_definitions(text)) | {name: Macro(said) for name, said in glossary.forms(text, _closing)}


def used_in(text: str) -> set[str]:
    """Return the names of macros and abbreviations that a text may use."""
    keys = glossary.USED.findall(text)
    return {*_USED.findall(text), *map(glossary.short_of, keys), *map(glossary.long_of, keys)}


def _definitions(text: str) -> Iterator[tuple[str, Macro]]:
    """Yield names and macros; of what a long definition holds nothing, as it is set up only within it."""
    at = 0
    while head := _HEAD.search(text, at):
        at = head.end()
        if head["comment"] is not None:
            continue
        name, count = head["braced"] or head["bare"], int(head["count"] or len(head["marks"] or "") // 2)
        end = _closing(text, at)
        body = text[at + 1 : end - 1] if end else ""
        at = end or min(at + LONGEST, len(text))
        if not end or (count and name in COMMANDS) or _PROGRAM.search(body) or _takes(body) > count:
            continue
        yield name, Macro(body, count, head["default"] if head["count"] else None)


def _takes(body: str) -> int:
    return max((int(number) for number in _PARAMETER.findall(body)), default=0)


def arguments_at(text: str, at: int, macro: Macro) -> tuple[list[str], int] | None:
    """Return the arguments of a macro whose name ends at a place, and where they end; None without them."""
    found: list[str] = []
    if macro.default is not None:
        begun = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        end = text.find("]", begun, begun + LONGEST) if text[begun : begun + 1] == "[" else -1
        found.append(text[begun + 1 : end] if end > 0 else macro.default)
        at = end + 1 if end > 0 else at
    while len(found) < macro.arguments:
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        end = _closing(text, at) if text[at : at + 1] == "{" else 0
        if not end:
            return None
        found.append(text[at + 1 : end - 1])
        at = end
    return found, at


def _closing(text: str, at: int) -> int:
    """Return where braces that begin at a place end, 0 where they are long or hold a paragraph's end."""
    depth = 0
    for mark in _BRACES.finditer(text, at, at + LONGEST):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if mark[0].isspace():
            return 0
        if not depth:
            return mark.end()
    return 0
