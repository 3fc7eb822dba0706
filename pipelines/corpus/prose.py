"""Take the sentences of a text out of its markup: links by their text, tables by their cells, no headings
or code. Markdown, MyST and reStructuredText are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from pipelines.corpus.segments import segments
from pipelines.corpus.sentences import sentences

WRAPPED = 60  # characters: a longer line that ends no sentence goes on in the next one
SAYING = 4  # words with letters: a cell of fewer is a name or figures
_INDENTED = r"(?:[ \t]*\n|[ \t]+\S.*(?:\n|\Z))*"
_CODE_DIRECTIVES = "code|code-block|sourcecode|parsed-literal|doctest|testcode|math|toctree|image|figure|raw"
_NO_PROSE = (
    re.compile(r"\A---[ \t]*\n(?:[ \t]*(?:[\w.-]+:.*|- .*|#.*)?\n)+?---[ \t]*\n"),  # front matter
    re.compile(r"<!--.*?-->", re.S),
    re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S),  # fenced code
    re.compile(rf"^[ \t]*\.\. (?:{_CODE_DIRECTIVES})::.*(?:\n|\Z){_INDENTED}", re.M),
    re.compile(rf"(?<=::)[ \t]*\n[ \t]*\n(?=[ \t]+\S){_INDENTED}"),  # reStructuredText's literal blocks
    re.compile(r"^[^|\n]*[^.!?|\s][ \t]*\n(?=([=~^*+-])\1{2,}[ \t]*$)", re.M),  # underlined headings
)
_DIRECTIVE = re.compile(r"^([ \t]*)\.\. [\w:-]+::[ \t]*", re.M)
_SKIPPED = re.compile(
    r"\s*(?:#{1,6}\s|<|!\[|:?-{3,}|([=~^*+])\1{2,}\s*$|:{3,}|\.\.(?:\s|$)|\([\w.-]+\)=\s*$|>>>\s|\$\s)"
)
_ROW = re.compile(r"\s*\|")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")
_LIST_MARK = re.compile(r"^\s*(?:[-*+>]|\d{1,3}[.)])\s+")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])")
_ROLE = re.compile(r"(?:\{[\w:.+-]+\}|(?<!\w):[a-zA-Z][\w:.+-]{0,40}:)`[~!]?([^`]+?)(?:\s?<[^`<>]*>)?`")
_NAMED_LINK = re.compile(r"(?<![`\w])`([^`<]+?)(?:\s?<[^`<>]+>)?`__?(?!\w)")  # of reStructuredText
_TAG = re.compile(
    r"(?<!`)</?(?:a|abbr|b|big|cite|code|del|em|i|ins|kbd|mark|q|s|small|span|strong|sub|sup|u|var)(?:\s[^<>]*)?>(?!`)",
    re.I,
)
_ADDRESS = re.compile(r"<?\bhttps?://[^\s>]+>?")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`+)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_ENDS = re.compile(r"[.!?:;。！？؟।|]\W*$")


def prose_sentences(text: str) -> list[str]:
    """Return a text's sentences as they read, in order; those that only show an address are left out."""
    found = []
    for pattern in _NO_PROSE:
        text = pattern.sub("\n", text)
    for line in _lines(_DIRECTIVE.sub(r"\1", text)):
        found += [one for one in sentences(_plain(line)) if not _ADDRESS.search(one)]
    return found


def _plain(line: str) -> str:
    """Return what a line says without the markup inside it."""
    for pattern in (_ROLE, _NAMED_LINK, _LINK):
        line = pattern.sub(r"\1", line)
    return _EMPHASIS.sub(r"\2", _TAG.sub("", line))


def _cells(line: str) -> list[str]:
    """Return the cells of a table's row that say something, each on its own; any other line as it is."""
    if not _ROW.match(line):
        return [line]
    cells = [cell.replace("\\|", "|") for cell in _BETWEEN_CELLS.split(line)]
    return ["", *(part for cell in cells if _says_something(cell) for part in (cell, ""))]


def _says_something(cell: str) -> bool:
    return sum(any(map(str.isalpha, word)) for _, word in segments(cell)) >= SAYING


def _lines(text: str) -> Iterator[str]:
    """Yield lines without list marks, those that were wrapped joined again."""
    open_line = ""
    for line in chain.from_iterable(map(_cells, text.splitlines())):
        starts = bool(_LIST_MARK.match(line))
        said = "" if _SKIPPED.match(line) else _LIST_MARK.sub("", line, count=1).strip()
        if open_line and said and not starts:
            open_line = f"{open_line} {said}"
        else:
            if open_line:
                yield open_line
            open_line = said
        if not (len(line) >= WRAPPED and not _ENDS.search(line)):
            yield open_line
            open_line = ""
    if open_line:
        yield open_line
