"""Split Markdown into what readers see and what only the tools that build a site from it do.

What is code stays as it stands. The text is scanned once, from left to right, in linear time.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from html import unescape

from pipelines.corpus.as_markdown.parts import RUN, Search, fenced
from pipelines.corpus.markup import fences
from pipelines.corpus.markup.boxes import box_at
from pipelines.corpus.markup.mdx import are_closed, export_end

LONGEST = 2000  # characters of a tag
UNSEEN = ("script", "style", "svg")  # elements whose content no reader sees
_EVENT = re.compile(
    r"""
      \\[^\s\w]
    | (?P<fence>^(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*+(?P<bars>`{3,}+|~{3,}+))
    | (?P<code>`++)
    | (?P<math>\$\$)
    | (?P<comment><!--|\{/\*)
    | (?P<anchor>\{\#[\w:.-]++\}[ \t]*+$)
    | (?P<template>\{\{|\{%|\{\#|<%)
    | (?P<tag></?[A-Za-z])
    | (?P<module>^(?:import|export)\b)
    | (?P<note>(?<=>)[ \t]?\[!(?i:note|tip|important|warning|caution)\][ \t]*+$)
    | (?P<box>^[ \t]*+(?::{3,}+|/{3,}+))
    | (?P<attributes>\{:[ ]?(?:[.\#][\w-]|[\w-]++=|toc\b)[^{}\n]*+\})
    | (?P<label>^\([\w.-]++\)=[ \t]*+$)
    """,
    re.X | re.M,
)
_BRACES = r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\})*+\}"  # an attribute's value in JSX
_TAG = re.compile(
    r"</?([A-Za-z][\w.:-]*+)(?=[\s/>])"
    rf"((?:[^<>\"'`{{=]++|\"[^\"<]*+\"|'[^'<]*+'|={_BRACES}|=|\{{[^<{{}}]*+\}})*+)>"
)
_CLOSING_TAG = re.compile(r"</([A-Za-z][\w.:-]*+)\s*+>")
_INLINE_CODE = re.compile(r"<code(?:\s[^<>]*)?>([^<>`\n]++)</code>")
_STYLE_TAG = re.compile(
    r"</?(?:a|b|br|code|em|font|i|kbd|mark|small|span|strong|u|var)(?:\s[^<>]*+)?/?>", re.I
)
_CLOSES = {"{{<": ">}}", "{{%": "%}}", "{{": "}}", "{%": "%}", "{#": "#}", "<%": "%>"}
_CLOSING_TEMPLATE = re.compile(
    r"\{(?:%|\{[<%]?)-?\s*(?:end|/\s*)(raw|comment|highlight|code[\w-]*+|mermaid)\b[^{}]{0,200}\}++"
)
_COMMAND = re.compile(
    r"(?:\{\{[<%]?|\{%|<%)[-\s]*(?P<end>/\s*|end(?=\w))?(?P<name>[\w.-]*)(?P<rest>.*)", re.S
)
_SELF_CLOSED = re.compile(r"/\s*[>%]?-?[%}]\}\Z")
_MODULE = re.compile(
    r"import\s(?:[\w*$,{}\s]{1,1000}\sfrom\s*)?(?:\"[^\"\n]+\"|'[^'\n]+');?[ \t]*$"
    r"|export\s(?:const|default|let|function)\s[^\n]*[;'\")}\]][ \t]*$",
    re.M,
)
_TITLE = re.compile(r"""\b(?:title|label|header|summary)\s*=\s*\\?["']([^"'\n{}<>]+)["']""")
_ARGUMENT = re.compile(r"""\s*["']([^"'\n{}<>]+)["']""")
_TITLED = frozenset(("tab", "details", "expand"))  # template tags that begin with their title
_TEXT = re.compile(r"""\btext\s*=\s*["']([^"'\n{}<>]+)["']""")
_BEFORE_EXPORT = re.compile(  # no line of prose
    r"\s*\Z|(?:im|ex)port\b|[\])}`]|\{?/\*|//|#{1,6}[ \t]|[^\n]*(?:;|\*/)[ \t]*$", re.M
)
_BLANK = re.compile(r"\n[ \t]*\n")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(?=\S)|[ \t]*(?:!!!|\?\?\?\+?|===|\[\^[^\]\s]+\]:)\s")


class Kind(Enum):
    """What becomes of a part."""

    TEXT = auto()
    CODE = auto()  # stays as it stands
    GONE = auto()  # left out, or replaced by what a reader sees instead
    TAG = auto()  # an element's tag: its name decides
    COMMAND = auto()  # a template's tag: left out where another closes it, or nothing else stands on its line


@dataclass(frozen=True, slots=True)
class Part:
    kind: Kind
    text: str
    name: str = ""
    closing: bool = False
    instead: str = ""
    sure: bool = False  # a tag that is one, though nothing closes it


class Scanner:
    """Finds the parts of one text."""

    def __init__(self, text: str, mdx: bool = False) -> None:
        self.text = text
        self._mdx = mdx
        self._find = Search(text).next
        self._runs = _closing_runs(text)
        self._blank = [found.start() for found in _BLANK.finditer(text)]
        self._templates = _places(_CLOSING_TEMPLATE, text)
        self._elements = _places(_CLOSING_TAG, text)
        self._indented = [] if mdx else list(_indented(text))
        self._read: dict[str, Callable[[int, re.Match[str]], Part | None]] = {
            "fence": self._fence,
            "code": lambda at, found: self._code(at, at),
            "math": self._math,
            "comment": self._comment,
            "anchor": self._anchor,
            "template": self._template,
            "tag": self._tag,
            "module": self._module,
            "note": self._note,
            "box": self._box,
            "attributes": lambda at, found: Part(Kind.GONE, found[0]),
            "label": lambda at, found: Part(Kind.GONE, found[0]),
        }

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order; together they are the text."""
        begin = at = 0  # where text that is still to be given begins, and where to look on
        regions = iter([*self._indented, (len(self.text) + 1, 0)])
        start, end = next(regions)
        while found := _EVENT.search(self.text, at):
            while end and end <= at:
                start, end = next(regions)
            if end and found.start() >= start:
                at = max(at, end)
                continue
            part = self._read[found.lastgroup](found.start(), found) if found.lastgroup else None
            if part is None:
                at = found.end()
                continue
            if begin < found.start():
                yield Part(Kind.TEXT, self.text[begin : found.start()])
            yield part
            begin = at = found.start() + len(part.text)
        yield Part(Kind.TEXT, self.text[begin:])

    def _fence(self, at: int, found: re.Match[str]) -> Part | None:
        opening = fences.OPENING.match(self.text, at)
        if opening is None:
            return self._code(found.start("bars"), at)
        end = fences.end_of(self.text, opening)
        return None if end is None else Part(Kind.CODE, self.text[at:end])

    def _code(self, run: int, at: int) -> Part | None:
        """Return the text from `at` to the end of the inline code that begins at `run`."""
        end = self._runs.get(run)
        border = bisect_right(self._blank, run)
        if end is None or (border < len(self._blank) and self._blank[border] < end):
            return None
        return Part(Kind.CODE, self.text[at:end])

    def _math(self, at: int, found: re.Match[str]) -> Part | None:
        end = self._find("$$", at + 2)
        return Part(Kind.CODE, self.text[at : end + 2]) if end >= 0 else None

    def _comment(self, at: int, found: re.Match[str]) -> Part | None:
        mark = "-->" if found[0] == "<!--" else "*/}"
        end = self._find(mark, found.end())
        return Part(Kind.GONE, self.text[at : end + len(mark)]) if end >= 0 else None

    def _anchor(self, at: int, found: re.Match[str]) -> Part | None:
        begin = self.text.rfind("\n", max(0, at - LONGEST), at) + 1
        heads = self.text.startswith("#", begin)
        return Part(Kind.GONE, found[0]) if heads else None

    def _template(self, at: int, found: re.Match[str]) -> Part | None:
        opens = self.text[at : at + 3] if self.text[at : at + 3] in _CLOSES else found[0]
        place = self._find(_CLOSES[opens], found.end())
        end = place + len(_CLOSES[opens])
        tag = self.text[at:end] if place >= 0 and end - at <= LONGEST else ""
        inside = tag[len(opens) :]
        if not tag or _BLANK.search(tag) or "{{" in inside or "{%" in inside:
            return None
        if tag.startswith(("{#", "<%#", "<%!--", "{{!--", "{{/*")):
            return Part(Kind.GONE, tag)
        return Part(Kind.COMMAND, tag, sure=True) if tag.startswith("{{#") else self._command(at, tag, opens)

    def _command(self, at: int, tag: str, opens: str) -> Part | None:
        said = _COMMAND.match(tag)
        assert said is not None
        name, closing = said["name"], bool(said["end"]) and (said["end"] == "end") == (opens == "{%")
        if not closing and name and not _SELF_CLOSED.search(tag):
            block = self._block(at, tag, name)
            if block is not None:
                return block
        sure = opens == "<%" and bool(name) and name != "else"
        return Part(Kind.COMMAND, tag, name, closing, "" if closing else _title(name, said["rest"]), sure)

    def _block(self, at: int, tag: str, name: str) -> Part | None:
        """Return a comment within tags, or code, which becomes a fenced block."""
        closes = _following(self._templates.get(name), at)
        if closes is None:
            return None
        if name == "raw" and 0 <= self._find("`", at + len(tag)) < closes[0]:
            return None
        whole, inside = self.text[at : closes[1]], self.text[at + len(tag) : closes[0]]
        if name == "comment":
            return Part(Kind.GONE, whole)
        if name == "raw" or not self._begins_line(at):
            return Part(Kind.CODE, whole)
        language = re.match(r"\{[{%][<%]?[-\s]*highlight\s+([\w+#-]+)", tag)
        return Part(Kind.GONE, whole, instead=fenced(inside.rstrip(), language[1] if language else ""))

    def _tag(self, at: int, found: re.Match[str]) -> Part | None:
        tag = _TAG.match(self.text, at, at + LONGEST)
        if tag is None or _BLANK.search(tag[0]):
            return None
        name, closing = tag[1], tag[0].startswith("</")
        if name.lower() in ("pre", "code", *UNSEEN) and not closing:
            block = self._element(at, tag)
            if block is not None:
                return block
        attributes = tag[2].rstrip("/").strip()
        title = _TITLE.search(attributes) if not closing and name[0].isupper() else None
        instead = f"**{title[1].strip()}**" if title else ""
        sure = tag[2].endswith("/") or "=" in attributes
        return Part(Kind.TAG, tag[0], name, closing, instead, sure)

    def _element(self, at: int, tag: re.Match[str]) -> Part | None:
        """Return code as Markdown writes it, or an element that shows no text."""
        name = tag[1].lower()
        if name == "code":
            code = _INLINE_CODE.match(self.text, at)
            said = unescape(code[1]) if code else ""
            return Part(Kind.GONE, code[0], instead=f"`{said}`") if code and "`" not in said else None
        closes = _following(self._elements.get(name), tag.end() - 1)
        if closes is None:
            return None
        if name in UNSEEN:
            shown = not self._begins_line(at) or 0 <= self._find("\n```", at) < closes[1]
            return None if shown else Part(Kind.GONE, self.text[at : closes[1]])
        whole, inside = self.text[at : closes[1]], self.text[tag.end() : closes[0]]
        if not self._begins_line(at) or not self._ends_line(closes[1]):
            return Part(Kind.CODE, whole)
        return Part(Kind.GONE, whole, instead=fenced(unescape(_STYLE_TAG.sub("", inside)).rstrip()))

    def _module(self, at: int, found: re.Match[str]) -> Part | None:
        before = self.text.rfind("\n", 0, max(0, at - 1)) + 1
        if found[0] == "export" and not _BEFORE_EXPORT.match(self.text, before, at):
            return None
        module = _MODULE.match(self.text, at, at + LONGEST)
        closed = module and are_closed(Counter(module[0]))
        if module and closed and not _BLANK.search(module[0]):
            return Part(Kind.GONE, module[0])
        end = export_end(self.text, at) if self._mdx else None
        return Part(Kind.GONE, self.text[at:end].rstrip("\n")) if end else None

    def _note(self, at: int, found: re.Match[str]) -> Part | None:
        return Part(Kind.GONE, found[0], instead=f" **{found[0].strip()[2:-1].capitalize()}**")

    def _box(self, at: int, found: re.Match[str]) -> Part | None:
        line = box_at(self.text, at)
        return Part(Kind.GONE, line[0], instead=line[1]) if line else None

    def _begins_line(self, at: int) -> bool:
        return at == 0 or self.text[at - 1] == "\n"

    def _ends_line(self, at: int) -> bool:
        return at == len(self.text) or self.text[at] == "\n"


def _title(name: str, rest: str) -> str:
    """Return what a template's tag shows: a title on a line of its own, or a text within a line."""
    if found := _TEXT.search(rest) or (_ARGUMENT.match(rest) if name == "heading" else None):
        return found[1]
    found = _TITLE.search(rest) or (_ARGUMENT.match(rest) if name in _TITLED else None)
    return f"**{found[1].strip()}**" if found else ""


def _places(pattern: re.Pattern[str], text: str) -> dict[str, list[tuple[int, int]]]:
    """Return where the closing tags of each name stand."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for found in pattern.finditer(text):
        places[found[1].lower()].append(found.span())
    return places


def _following(places: list[tuple[int, int]] | None, at: int) -> tuple[int, int] | None:
    """Return the first place behind `at`."""
    number = bisect_right(places, (at, 0)) if places else 0
    return places[number] if places and number < len(places) else None


def _closing_runs(text: str) -> dict[int, int]:
    """Return, by where a run of backticks begins, where the next one of the same length ends."""
    closing: dict[int, int] = {}
    following: dict[int, int] = {}  # by length
    for start, end in reversed([found.span() for found in RUN.finditer(text)]):
        if end - start in following:
            closing[start] = following[end - start]
        following[end - start] = end
    return closing


def _indented(text: str) -> Iterator[tuple[int, int]]:
    """Yield where indented code begins and ends: behind an empty line, four columns deeper than its list."""
    at = item = begun = 0
    after_blank, code = True, False
    for line in text.split("\n"):
        said = line.lstrip(" \t")
        if said:
            indent = len(line[: len(line) - len(said)].expandtabs(4))
            goes_on = indent >= item + 4 and (after_blank or code)
            if goes_on and not code:
                begun = at
            if code and not goes_on:
                yield begun, at
            code = goes_on
            if not code:
                item = _content_column(line, indent, item, after_blank)
        after_blank = not said
        at += len(line) + 1
    if code:
        yield begun, len(text)


def _content_column(line: str, indent: int, item: int, after_blank: bool) -> int:
    """Return the column at which the content of the list stands that a line begins, goes on with or ends."""
    if mark := _ITEM.match(line):
        return indent + 4 if line[len(line) - len(line.lstrip())] in "!?=[" else len(mark[0].expandtabs(4))
    return 0 if after_blank and indent < min(item, 2) else item
