"""Macros that LaTeX files define: short texts, some with arguments, which are put in place of their names.

What a macro does by TeX's own programming is not followed: such a one stays a command like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipelines.corpus.markup.latex import glossary
from pipelines.corpus.markup.latex.braces import Braces
from pipelines.corpus.markup.latex.references import without_marks
from pipelines.corpus.markup.latex.words import COMMANDS

LONGEST = 1000  # characters of a body
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
_NAMED = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|(?:New|Renew|Provide|Declare)DocumentCommand|Declare(?:RobustCommand"
    r"|MathOperator|PairedDelimiter[A-Z]?)|[gex]?def|let)\*?[ \t]*+\{?[ \t]*+\\([A-Za-z]+)"
)
_SAVED = re.compile(r"\\let[ \t]*+\\([A-Za-z]+)")
_PROGRAM = re.compile(  # or a picture made of boxes
    r"\\[A-Za-z]*@[A-Za-z]|\#\#|\\(?:else|fi|or|csname|expandafter|[gex]?def|let|(?:re)?newcommand|futurelet"
    r"|loop|catcode|input|usepackage|the|mathchoice|mathpalette|vbox|vcenter|vtop|ooalign|raise|lower"
    r"|[rl]lap|smash|includegraphics|(?:display|text|script|scriptscript)style)(?![A-Za-z])|\\if"
    r"|\\hbox[ ]?to|\\begin\{(?:tikzpicture|picture)"
)
_PARAMETER = re.compile(r"#([1-9])")
_COMMAND = re.compile(r"\\[A-Za-z]+\Z")
_USED = re.compile(r"\\([A-Za-z]+)")
_SPACE = re.compile(r"[ \t]*+(?:\n[ \t]*+(?!\n))?")
_PARAGRAPH = re.compile(r"\n[ \t]*\n")


class Macro(NamedTuple):
    """What a name stands for: a text in which #1 is the first argument."""

    body: str
    arguments: int = 0
    default: str | None = None  # of the first argument, which is optional then

    def filled(self, arguments: list[str]) -> str:
        """Return the text with its arguments; none becomes part of a command's name."""
        parts = _PARAMETER.split(self.body)
        said = ""
        for at, part in enumerate(parts):
            following = arguments[int(part) - 1] if at % 2 else part
            if following[:1].isalpha() and _COMMAND.search(said[-40:]):
                said += " "
            said += following
        return said


def macros_of(text: str) -> dict[str, Macro]:
    """Return the macros and abbreviations that a text defines, the last of each name."""
    text = without_marks(text)
    braces = Braces(text)
    saved = set(_SAVED.findall(text))
    found = {name: Macro(said) for name, said in glossary.forms(text, braces)}
    for name, macro, is_provided in _definitions(text, braces):
        if not (is_provided and name in found) and not saved.intersection(_USED.findall(macro.body)):
            found[name] = macro
    return found


def named_in(text: str) -> set[str]:
    """Return the names of commands that a text defines, in whatever way."""
    return set(_NAMED.findall(text))


def used_in(text: str) -> set[str]:
    """Return the names of macros and abbreviations that a text may use."""
    keys = glossary.USED.findall(text)
    return {*_USED.findall(text), *map(glossary.short_of, keys), *map(glossary.long_of, keys)}


def _definitions(text: str, braces: Braces) -> Iterator[tuple[str, Macro, bool]]:
    """Yield names and macros, and whether they only stand in; a body's own definitions do not count."""
    at = 0
    while head := _HEAD.search(text, at):
        at = head.end()
        end = braces.end(at) if head["comment"] is None else 0
        if not end:
            continue
        name, count = head["braced"] or head["bare"], int(head["count"] or len(head["marks"] or "") // 2)
        body = text[at + 1 : end - 1] if end - at <= LONGEST else "##"
        at = end
        if (count and name in COMMANDS) or _PROGRAM.search(body) or _takes(body) > count:
            continue
        default = head["default"] if head["count"] else None
        yield name, Macro(body, count, default), head["by"] == "providecommand"


def _takes(body: str) -> int:
    return max((int(number) for number in _PARAMETER.findall(body)), default=0)


def arguments_at(text: str, at: int, macro: Macro, braces: Braces) -> tuple[list[str], int] | None:
    """Return the arguments of a macro whose name ends at a place, and where they end; None without them."""
    found: list[str] = []
    if macro.default is not None:
        begun = _past_space(text, at)
        end = braces.option_end(begun)
        found.append(text[begun + 1 : end - 1] if end else macro.default)
        at = end or at
    while len(found) < macro.arguments:
        at = _past_space(text, at)
        end = braces.end(at)
        if not end or _PARAGRAPH.search(text, at, end):
            return None
        found.append(text[at + 1 : end - 1])
        at = end
    return found, at


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
