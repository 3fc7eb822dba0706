"""Write a page of a DokuWiki as Markdown: headings, lists, tables, links, emphasis, code and notes.

Pictures, macros and what plugins put in are left out. A page is known by its headings and another mark.
"""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.heads import Parts
from pipelines.corpus.as_markdown.parts import Held, code_in_line, fenced, without_marks
from pipelines.corpus.as_markdown.spans import Spanning, repeated

_HEADING = re.compile(r"^[ \t]*(={2,6})[ \t]*(?=[^\s=])([^\n]*[^\s=])[ \t]*\1[ \t]*$", re.M)
_MARK = re.compile(
    r"\[\[[^\[\]\n]+\]\]|(?<![:/\w])//(?=\w)[^/\n]+\w//|''[^'\n]+''|\{\{[^{}\n]+\}\}|<(?:code|file)\b"
    r"|^~~[A-Z:]+~~|^\^[^\n]*\^[ \t]*$",
    re.M,
)
_CODE = re.compile(r"<(code|file)\b([^<>\n]*)>((?:(?!<\1\b).)*?)</\1>", re.S)
_AS_IT_STANDS = re.compile(r"<nowiki>((?:(?!<nowiki>).)*?)</nowiki>|%%(.*?)%%", re.S)
_MONO = re.compile(r"''(?=\S)([^\n]{1,500}?)(?<=\S)''")
_NOTE = re.compile(r"<note(?:[ \t]+(\w+))?>[ \t]*\n?")
_LEFT_OUT = re.compile(
    r"^~~[^\s~]+~~[ \t]*$|\{\{[^{}\n]*\}\}[ ]?|[ ]?:[!?]:|</note>|</?(?:WRAP|wrap|block|div|span)\b[^<>\n]*>",
    re.M,
)
_CHANGES = (
    (re.compile(r"\[\[[^\[\]|\n]*\|([^\[\]\n]*)\]\]"), r"\1"),
    (re.compile(r"\[\[(?:[^\[\]\n]*[:>])?([^\[\]\n:>]+?)\]\]"), r"\1"),
    (re.compile(r"(?<![:/\w])//(?=[^\s/])([^\n]{1,500}?)(?<=[^\s:/])//(?!/)"), r"*\1*"),
    (re.compile(r"(?<![ \t])[ \t]*\(\((?=\S)([^\n]{1,1000}?)\)\)"), r" (\1)"),
    (re.compile(r"\\\\(?:[ \t]+|$)", re.M), "\n"),
)
_ITEM = re.compile(r"^((?: {2}|\t)+)([*-])[ \t]+(?=\S)", re.M)
_TABLE = re.compile(r"(?:^[ \t]*[|^][^\n]*[|^][ \t]*(?:\n|\Z))+", re.M)
_BREAK_IN_CELL = re.compile(r"[ \t]*\\\\[ \t]+")
_GAP = re.compile(r"\n[ \t]*\n(?:[ \t]*\n)+")
_BETWEEN = re.compile(r"[|^]")
_BELOW = ":::"  # a cell into which the one above goes on


def is_page(text: str) -> bool:
    """Return whether a text is a page of a DokuWiki."""
    return bool(_HEADING.search(text) and _MARK.search(text))


def as_markdown(text: str) -> str:
    """Return a page of a DokuWiki in Markdown."""
    held = Held()
    text = _CODE.sub(lambda code: f"\n{held.hold(_block(code[2], code[3]))}\n", without_marks(text))
    text = _AS_IT_STANDS.sub(lambda said: held.hold(said[1] or said[2] or ""), text)
    text = _MONO.sub(lambda code: held.hold(code_in_line(code[1])), text)
    text = _NOTE.sub(lambda note: f"**{(note[1] or 'note').capitalize()}**\n\n", text)
    text = _LEFT_OUT.sub("", text)
    text = _TABLE.sub(lambda rows: _BREAK_IN_CELL.sub(" ", rows[0]), text)
    for pattern, instead in _CHANGES:
        text = pattern.sub(instead, text)
    text = _TABLE.sub(lambda rows: "\n".join(_rows(rows[0])) + "\n", text)
    text = _ITEM.sub(lambda item: _indent(item[1]) + ("- " if item[2] == "*" else "1. "), text)
    text = _HEADING.sub(lambda heading: f"{'#' * (7 - len(heading[1]))} {heading[2]}", text)
    return held.restored(_GAP.sub("\n\n", text))


def _block(options: str, code: str) -> str:
    language = (options.split() or [""])[0]
    return fenced(code, language if language.isalnum() else "")


def _indent(spaces: str) -> str:
    return "  " * (len(spaces.expandtabs(2)) // 2 - 1)


def _rows(written: str) -> list[str]:
    """Return a table's lines; a cell that goes on from the row above says what that one does, if it is no
    title. Later rows of titles begin a table of their own, but for sums."""
    parts = Parts()
    above: list[str] = []
    for line in written.strip().split("\n"):
        bare = line.strip()[:-1]
        cells = _BETWEEN.split(bare[1:])
        said = [cell.strip() for cell in cells]
        is_head = "|" not in bare and sum(map(bool, said)) > 1
        if is_head and parts.add_titles(_titles(cells), in_doubt=_BELOW in said):
            above = []
        else:
            above = [_cell(cell, above[at : at + 1]) for at, cell in enumerate(said)]
            parts.add(above)
    return [*parts.written(), ""]


def _titles(cells: list[str]) -> list[Spanning]:
    """Return the cells of a row of titles; one without even a space belongs to the one before."""
    found: list[Spanning] = []
    for cell in cells:
        said = cell.strip()
        if not cell and found:
            found[-1] = found[-1]._replace(across=found[-1].across + 1)
        else:
            found.append(Spanning("" if said == _BELOW else said))
    return found


def _cell(said: str, above: list[str]) -> str:
    return repeated("".join(above)) if said == _BELOW else said
