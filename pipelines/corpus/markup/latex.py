"""Write a LaTeX document as Markdown: headings, paragraphs of one line, lists, tables, formulas, code, footnotes.

What prints nothing is left out: comments, the preamble, macros, labels and pictures. Captions stay, and so do
formulas as they were typed, unless they are of letters, figures and signs only.
"""

from __future__ import annotations

import re

from pipelines.corpus.markup.latex_blocks import Blocks

FEWEST = 4  # words, beside formulas and code, of a text with commands
_WORD = re.compile(r"[^\W\d_]{2,}")
_NO_PROSE = re.compile(r"^[ \t]*(`{3,}|\$\$).*?^[ \t]*\1$", re.M | re.S)
_COMMAND = re.compile(r"[\\%{}]")


def as_markdown(text: str) -> str:
    """Return a document, or the part of one that a file holds; nothing where it prints no words."""
    page = Blocks(text)
    begin = next((at for at, token in enumerate(page.tokens) if token[:2] == ("begin", "document")), -1)
    end = page.ends.get(begin, len(page.tokens))
    parts = [_title(page, begin), page.render(begin + 1, end), page.footnotes()]
    said = page.written("".join(parts))
    fewest = FEWEST if _COMMAND.search(text) else 1
    return said if len(_WORD.findall(_NO_PROSE.sub("", said))) >= fewest or not _COMMAND.search(text) else ""


def _title(page: Blocks, end: int) -> str:
    """Return the title that the preamble sets."""
    for at in range(end):
        if page.tokens[at][:2] == ("word", "title"):
            return page.heading(1, at + 1, end)[0]
    return ""
