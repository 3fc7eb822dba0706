"""Write a LaTeX document as Markdown: headings, paragraphs of one line, lists, tables, formulas and code.

What prints nothing is left out: comments, the preamble, macros, labels and pictures. Captions stay, and so do
formulas as they were typed, unless they are of letters, figures and signs only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pipelines.corpus.as_markdown.latex.blocks import Blocks
from pipelines.corpus.as_markdown.latex.macros import Macro

_WORD = re.compile(r"(?<![\\\w])[^\W\d_]{2,}")  # no command's name
_NO_PROSE = re.compile(r"^[ \t]*(`{3,}|\$\$).*?^[ \t]*\1$", re.M | re.S)
_BODY = "\\begin{document}"
_SETTING = re.compile(
    r"\\(?:(?:re)?newcommand|providecommand|[gex]?def|let|usepackage|RequirePackage|documentclass|input|include"
    r"|setlength|definecolor|new(?:environment|theorem|length|counter|if)|DeclareMathOperator|makeatletter"
    r"|begin\{(?:tikz|ps)?picture)(?![a-z])"
)


def as_markdown(text: str, macros: Mapping[str, Macro] | None = None) -> str:
    """Return a document, or the part of one that a file holds; nothing where it prints no words.

    `macros` are those of other files, which the text's own take precedence over.
    """
    page = Blocks(text, macros)
    begin = next((at for at, token in enumerate(page.tokens) if token[:2] == ("begin", "document")), -1)
    end = page.ends.get(begin, len(page.tokens))
    parts = [_title(page, begin), page.render(begin + 1, end), page.footnotes()]
    said = page.written("".join(parts))
    return said if _says_something(said, text) else ""


def _says_something(said: str, text: str) -> bool:
    """Return whether a text has more words, beside its formulas and code, than settings may leave over."""
    if "\\" not in text:
        return bool(said)
    settings = 0 if _BODY in text else len(_SETTING.findall(text))  # each may leave a word over
    return len(_WORD.findall(_NO_PROSE.sub("", said))) > (3 + settings if _SETTING.search(text) else 1)


def _title(page: Blocks, end: int) -> str:
    """Return the title that the preamble sets."""
    for at in range(end):
        if page.tokens[at][:2] == ("word", "title"):
            return page.heading(1, at + 1, end)[0]
    return ""
