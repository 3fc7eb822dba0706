"""Tell what a line of AsciiDoc begins: headings, items of lists, definitions, and what parts refer to."""

from __future__ import annotations

import re
from dataclasses import dataclass

RULE = re.compile(r"(?:-{4,}|\.{4,}|/{4,}|\+{4,}|={4,}|\*{4,}|_{4,}|--|```+[\w+-]*|[|,:!]={3,})$")
SET = re.compile(r"\[(?:|[\w.#%{,\"'].*|\[(?:|[A-Za-z_:][\w:.-]*(?:, *.+)?)\])\]$")
MACRO = re.compile(r"[a-z][\w-]*::(?:\S[^\[\]]*)?\[.*\]$")
TITLE = re.compile(r"\.(?![.\s])(?=.*[\w)])(.*)$")
BREAK = re.compile(r"(?:'{3,}|<{3,}|-{3}|\*{3}|- - -|\* \* \*)$")
_HEADING = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*)$")
_TITLED = re.compile(r"(?![\s*.|+/-])(?=.*\w)")
_UNDERLINE = re.compile(r"([=~^+-])\1+$")
_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4, "+": 5}
_ITEM = re.compile(
    r"[ \t]*(\*{1,6}|-|\.{1,6}|\d{1,4}\.|[a-zA-Z]\.|[ivx]{1,6}\)|<(?:\d{1,3}|\.)>)[ \t]+(\S.*)$"
)
_CHECKED = re.compile(r"\[[ xX*]\][ \t]+(?=\S)")
_TERM = re.compile(r"(?!//)[ \t]*(\S.{0,1000}?)(:{2,4}|;;)(?:[ \t]+(.*))?$")
_ANCHOR = re.compile(r"\[\[([\w:.-]+)(?:,\s*([^\[\]]+))?\]\]")
ENTRY = re.compile(r"\[\[\[([\w:.-]+)(?:,\s*([^\[\]]+))?\]\]\]")  # of a bibliography
_ID = re.compile(r"(?:^|,)\s*(?:[\w-]*#([\w:.-]+)|id\s*=\s*\"?([\w:.-]+))")


@dataclass(frozen=True)
class Item:
    """An item of a list or a definition, and the mark that says how deep it stands."""

    mark: str
    text: str
    term: str = ""

    @property
    def is_numbered(self) -> bool:
        return self.mark[0] in ".1a<i"


def heading_at(lines: list[str], at: int) -> tuple[int, str, int] | None:
    """Return the level and words of the heading that begins here, and how many lines it takes."""
    line = lines[at]
    if found := _HEADING.match(line):
        marks, said = found.groups()
        return len(marks), said.removesuffix(marks).rstrip() or said, 1
    below = lines[at + 1] if at + 1 < len(lines) else ""
    if len(below) > 2 and abs(len(line) - len(below)) < 2 and _TITLED.match(line) and _UNDERLINE.match(below):
        return _LEVELS[below[0]], line, 2
    return None


def item_of(line: str) -> Item | None:
    """Return the item or definition that a line begins."""
    if found := _ITEM.match(line):
        mark, said = found.groups()
        return Item(_kind(mark), _CHECKED.sub("", said, count=1))
    if "::" in line or ";;" in line:
        found = _TERM.match(line)
        if found and not MACRO.match(line):
            return Item(found[2], (found[3] or "").strip(), found[1].strip())
    return None


def _kind(mark: str) -> str:
    """Return what all marks of a list have in common."""
    if mark[0].isdigit():
        return "1."
    if mark[0] == "<":
        return "<1>"
    if mark[0].isalpha():
        return "i)" if mark.endswith(")") else "a."
    return mark


def titles_of(lines: list[str]) -> dict[str, str]:
    """Return the titles of a page's parts, by the names by which other parts refer to them."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for at, line in enumerate(lines):
        found |= {name: f"[{said or name}]" for name, said in ENTRY.findall(line)}
        is_set = line.startswith("[") and SET.match(line)
        if is_set:
            named, known = _names(line)
            waiting += named
            found |= known
        elif (heading := heading_at(lines, at)) or (waiting and TITLE.match(line)):
            title = heading[1] if heading else line[1:]
            said = _ANCHOR.sub("", title).strip()
            waiting += [name for name, _ in _ANCHOR.findall(title)] + ([_automatic(said)] if heading else [])
            for name in waiting:
                found.setdefault(name, said)
            found.setdefault(said, said)
            waiting = []
        elif line.strip():
            waiting = []
    return found


def _names(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the names that a line gives to what follows, and those whose text it says itself."""
    named: list[str] = []
    known: dict[str, str] = {}
    for name, text in _ANCHOR.findall(line):
        named.append(name)
        known |= {name: text.strip()} if text else {}
    return named + [one or other for one, other in _ID.findall(line[1:-1])], known


def _automatic(title: str) -> str:
    """Return the name that a heading gets where it is given none."""
    return "_" + re.sub(r"[\s.-]+", "_", re.sub(r"[^\w\s.-]", "", title.lower())).strip("_")


def without_anchors(title: str) -> str:
    return _ANCHOR.sub("", title).strip()
