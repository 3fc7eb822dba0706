"""Take the sentences of a text out of its markup: links by their text, no headings, tables or code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pipelines.corpus.entities import sentences

WRAPPED = 60  # characters: a longer line that ends no sentence goes on in the next one
_FENCED = re.compile(r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1|\Z)", re.M | re.S)
_SKIPPED = re.compile(r"\s*(?:#{1,6}\s|\||<|!\[|:?-{3,}|={3,})")
_LIST_MARK = re.compile(r"^\s*(?:[-*+>]|\d{1,3}[.)])\s+")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])")
_ADDRESS = re.compile(r"<?\bhttps?://[^\s>]+>?")
_EMPHASIS = re.compile(r"(?<!\w)(\*{1,3}|_{1,3}|`+)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_ENDS = re.compile(r"[.!?:;。！？؟।|]\W*$")


def prose_sentences(text: str) -> list[str]:
    """Return a text's sentences as they read, in order; those that only show an address are left out."""
    found = []
    for line in _lines(_FENCED.sub("\n", text)):
        said = _EMPHASIS.sub(r"\2", _LINK.sub(r"\1", line))
        found += [one for one in sentences(said) if not _ADDRESS.search(one)]
    return found


def _lines(text: str) -> Iterator[str]:
    """Yield lines without list marks, those that were wrapped joined again."""
    open_line = ""
    for line in text.splitlines():
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
