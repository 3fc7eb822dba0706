"""Macros that LaTeX files define: short texts, some with arguments, which are put in place of their names.

What a macro does by TeX's own programming is not followed: such a one stays a command like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pipelines.corpus.as_markdown.latex import glossary
from pipelines.corpus.as_markdown.latex.braces import Braces
from pipelines.corpus.as_markdown.latex.references import without_marks
from pipelines.corpus.as_markdown.latex.words import COMMANDS

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
    r"|[rl]lap|smash|(?:display|text|script|scriptscript)style|tikz|arabic|[rR]oman|[aA]lph|(?:ref)?stepcounter"
    r")(?![A-Za-z])|\\if"
    r"|\\hbox[ ]?to|\\begin\{(?:tikzpicture|picture)"
)
_PARAMETER = re.compile(r"#([1-9])")
_COMMAND = re.compile(r"\\[A-Za-z]+\Z")
_USED = re.compile(r"\\([A-Za-z]+)")
_SPACE = re.compile(r"[ \t]*+(?:\n[ \t]*+(?!\n))?")


class Macro(NamedTuple):
    """What a name stands for: a text in which #1 is the first argument."""

    body: str
    arguments: int = 0
    default: str | None = None  # of the first argument, which is optional then

    def length(self, arguments: list[str]) -> int:
        """Return how long the text becomes with its arguments."""
        uses = (self.body.count(f"#{number}") * len(said) for number, said in enumerate(arguments, 1))
        return len(self.body) + sum(uses)

    def filled(self, arguments: list[str]) -> str:
        """Return the text with its arguments; none becomes part of a command's name."""
        said = []
        after_command = False
        for at, part in enumerate(_PARAMETER.split(self.body)):
            following = arguments[int(part) - 1] if at % 2 else part
            if after_command and following[:1].isalpha():
                said.append(" ")
            if following:
                said.append(following)
                after_command = _COMMAND.search(following) is not None
        return "".join(said)


def macros_of(text: str) -> dict[str, Macro]:
    """Return the macros and abbreviations that a text defines, without those that need one not followed."""
    text = without_marks(text)
    braces = Braces(text)
    not_followed = set(_SAVED.findall(text))
    found = {name: Macro(said) for name, said in glossary.forms(text, braces)}
    for name, macro, is_provided in _definitions(text, braces):
        if macro is None:
            not_followed.add(name)
        elif not (is_provided and name in found):
            found[name] = macro
    return {
        name: macro for name, macro in found.items() if not_followed.isdisjoint(_USED.findall(macro.body))
    }


def names_defined(text: str) -> set[str]:
    """Return the names of commands that a text defines, in whatever way."""
    return set(_NAMED.findall(text))


def names_used(text: str) -> set[str]:
    """Return the names of macros and abbreviations that a text may use."""
    return {*_USED.findall(text), *glossary.names_used(text)}


def _definitions(text: str, braces: Braces) -> Iterator[tuple[str, Macro | None, bool]]:
    """Yield names, macros, and whether they only stand in; what bodies define does not count.

    None stands for a command without arguments that is not followed: it would print its name.
    """
    at = 0
    while head := _HEAD.search(text, at):
        at = head.end()
        end = braces.end(at) if head["comment"] is None else 0
        if not end:
            continue
        name, count = head["braced"] or head["bare"], int(head["count"] or len(head["marks"] or "") // 2)
        body = text[at + 1 : end - 1]
        at = end
        if len(body) > LONGEST or _PROGRAM.search(body) or _takes(body) > count:
            if not count:
                yield name, None, False
        elif not (count and name in COMMANDS):
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
    spans: list[tuple[int, int]] = []
    while len(found) + len(spans) < macro.arguments:
        at = _past_space(text, at)
        end = braces.end(at)
        if not end:
            return None
        spans.append((at + 1, end - 1))
        at = end
    return found + [text[first:last] for first, last in spans], at


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
