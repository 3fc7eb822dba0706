"""Leave out what MDX runs: expressions between braces, and exports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest

from pipelines.corpus.markup.parts import FORMULA, LEFT_OUT, LINE_END

# Literals, expressions on lines of their own, and those that stand for a word
_LITERAL = re.compile(r"(?<![\\$])\{([\"'`])([^\"'`{}\n]*)\1\}")
_ALONE = re.compile(rf"^[ \t]*\{{[A-Za-z_][^{{}}\n]{{0,200}}\}}{LINE_END}", re.M)
_EXPRESSION = re.compile(rf"({FORMULA})|(?<![\\$\w\[=/^])\{{[A-Za-z_][^{{}}\n]{{0,200}}\}}")
LONGEST_EXPORT = 4000  # characters
_EXPORT = re.compile(r"export(?:\s+(?:async|class|const|default|function|let|var)\b|\s*[{*])")
_BEHIND_EXPORT = re.compile(r"\s*\Z|(?:im|ex)port\b")
_PAIRS = (("(", ")"), ("[", "]"), ("{", "}"))


def without_expressions(text: str) -> str:
    """Return a text that is no code without expressions; one within a sentence stands for a word."""
    if "{" not in text:
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
