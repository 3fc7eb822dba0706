"""Tell what a line of AsciiDoc begins: headings, items of lists, definitions, and what parts refer to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

RULE = re.compile(r"(?:-{4,}|\.{4,}|/{4,}|\+{4,}|={4,}|\*{4,}|_{4,}|--|```+[\w+-]*|[|,:!]={3,})$")
AS_TYPED = "-.`+/"  # begin the rules around what is not read line by line
SET = re.compile(r"\[(?:|[\w.#%{,\"'].*|\[(?:|[A-Za-z_:][\w:.-]*(?:,.+)?)\])\]$")
_SHOWN_IN_PLACE = (
    "image|video|audio|toc|include|plantuml|mermaid|ditaa|graphviz|kroki|gist|youtube|vimeo|tweet|asciinema"
)
MACRO = re.compile(rf"(?:{_SHOWN_IN_PLACE})::[^\[\]]*\[.*\]$")
TITLE = re.compile(r"\.(?![.\s])(?=.*[\w)])(.*)$")
BREAK = re.compile(r"(?:'{3,}|<{3,}|-{3}|\*{3}|- - -|\* \* \*)$")
_HEADING = re.compile(r"(={1,6}|#{1,6})[ \t]+(\S.*)$")
_UNDERLINED = re.compile(r"(?![\s*.|+/-])(?=.*\w)")
_UNDERLINE = re.compile(r"([=~^+-])\1+$")
_LEVELS = {"=": 1, "-": 2, "~": 3, "^": 4, "+": 5}
_ITEM = re.compile(
    r"[ \t]*(\*{1,6}|-|\.{1,6}|\d{1,4}\.|[a-zA-Z]\.|[ivx]{1,6}\)|<(?:\d{1,3}|\.)>)[ \t]+(\S.*)$"
)
_CHECKED = re.compile(r"\[[ xX*]\][ \t]+(?=\S)")
_DEFINED = re.compile(r"(?!//)[ \t]*(\S.{0,1000}?)(:{2,4}|;;)(?:[ \t]+(.*))?$")
_ANCHOR = re.compile(r"\[\[([\w:.-]+)(?:,([^\[\]]+))?\]\]")
ENTRY = re.compile(r"\[\[\[([\w:.-]+)(?:,([^\[\]]+))?\]\]\]")  # of a bibliography
_SEPARATED = re.compile(r"[\s.-]+")
_ID = re.compile(r"(?:^|,)\s*(?:[\w-]*#([\w:.-]+)|id\s*=\s*\"?([\w:.-]+))")
_SHOWN_FOR = re.compile(r"\breftext\s*=\s*(?:\"([^\"]+)\"|([^,\"]+))")


@dataclass(frozen=True)
class Item:
    """An item of a list or a definition, and the mark that says how deep it stands."""

    mark: str
    text: str
    term: str = ""

    @property
    def is_numbered(self) -> bool:
        return self.mark[0] in ".1a<i"


def is_remark(line: str) -> bool:
    return line.startswith("//") and not line.startswith("///")


def heading_at(lines: list[str], at: int) -> tuple[int, str, int] | None:
    """Return the level and words of the heading that begins here, and how many lines it takes."""
    line = lines[at]
    if found := _HEADING.match(line):
        marks, said = found.groups()
        return len(marks), re.sub(rf"[ \t]+{marks}$", "", said), 1
    below = lines[at + 1] if at + 1 < len(lines) else ""
    is_as_long = len(below) > 2 and abs(len(line) - len(below)) < 2
    if is_as_long and _UNDERLINE.match(below) and _UNDERLINED.match(line):
        return _LEVELS[below[0]], line, 2
    return None


def item_of(line: str) -> Item | None:
    """Return the item or definition that a line begins."""
    if found := _ITEM.match(line):
        mark, said = found.groups()
        return Item(_kind(mark), _CHECKED.sub("", said, count=1))
    if "::" in line or ";;" in line:
        found = _DEFINED.match(line)
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
    """Return the titles of a page's parts, by their names; those that no author gave begin with #."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for at in _read_line_by_line(lines):
        line = lines[at]
        found |= {name: f"[{(said or name).strip()}]" for name, said in ENTRY.findall(line)}
        if line.startswith("[") and SET.match(line):
            named, known = _names(line)
            waiting += named
            found |= known
        elif (heading := heading_at(lines, at)) or (waiting and TITLE.match(line)):
            title = heading[1] if heading else line[1:]
            said = without_anchors(title)
            waiting += [name for name, _ in _ANCHOR.findall(title)]
            for name in (*waiting, f"#{said}", *(_automatic(said) if heading else ())):
                found.setdefault(name, said)
            waiting = []
        elif line.strip():
            waiting = []
    return found


def _read_line_by_line(lines: list[str]) -> Iterator[int]:
    """Yield the numbers of lines outside of code and what else is printed as it was typed."""
    last = {
        line: at for at, line in enumerate(lines) if line[:1] and line[0] in AS_TYPED and RULE.match(line)
    }
    inside = ""
    for at, line in enumerate(lines):
        if inside:
            inside = "" if line == inside else inside
        elif line != "--" and last.get(line, 0) > at:
            inside = line
        else:
            yield at


def _names(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the names that a line gives to what follows, and those whose text it says itself."""
    named = [one or other for one, other in _ID.findall(line[1:-1])]
    shown = _SHOWN_FOR.search(line)
    known = dict.fromkeys(named, (shown[1] or shown[2]).rstrip("]").strip()) if shown else {}
    for name, text in _ANCHOR.findall(line):
        named.append(name)
        known |= {name: text.strip()} if text else {}
    return named, known


def _automatic(title: str) -> list[str]:
    """Return the names that a heading gets where it is given none, by what a site may be set to."""
    words = re.sub(r"[^\w\s.-]", "", title.lower()).strip()
    return [f"#_{_SEPARATED.sub('_', words).strip('_')}", f"#{_SEPARATED.sub('-', words).strip('-')}"]


def without_anchors(title: str) -> str:
    return _ANCHOR.sub("", title).strip()
