"""Write a paragraph as Markdown: emphasis, code, links, footnotes, dates, by Org's rules of what is a mark.

What is not a mark for sure stays, and so do marks that another program than Org reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pipelines.corpus.as_markdown.org.entities import ENTITIES
from pipelines.corpus.as_markdown.org.reading import MARKED, Around, Reading
from pipelines.corpus.as_markdown.org.shown import Shown, date_at, is_picture
from pipelines.corpus.as_markdown.parts import code_in_line
from pipelines.corpus.markup.parts import LEFT_OUT

DEEPEST = 3  # macros and titles within one another
_PLAIN = re.compile(r"[^*/_+=~`\[<@{\\$\u200b]*")
_EVENT = re.compile(
    r"""
      (?P<mark>(?<![^\s(\{'"–—\u200b-])[*/_+=~](?=[^\s\u200b]))
    | (?P<link>\[\[(?=[^\[\]]))
    | (?P<footnote>\[fn:)
    | (?P<citation>\[cite[:/])
    | (?P<date>[<\[](?=\d{4}-\d\d-\d\d))
    | (?P<target><<(?=\S))
    | (?P<snippet>@@(?=[\w-]{1,20}:))
    | (?P<macro>\{\{\{(?=[A-Za-z]))
    | (?P<formula>(?<!\\)\\[(\[])
    | (?P<dollar>\$)
    | (?P<end>\\\\(?=[ \t]*$))
    | (?P<entity>(?<![:\\])\\[A-Za-z_-])
    | (?P<code>(?<!\w)src_(?=[^\s\[\]{}]))
    | (?P<call>(?<!\w)call_(?=\w))
    | (?P<address>(?:https?|ftp)://[^\s<>\[\]|"]+)
    | (?P<quoted>`(?=[^\s`']{1,80}'(?!\w)))
    | (?P<joint>\u200b)
    """,
    re.X | re.M,
)
_FIRST = re.compile(r"(?P<mark>[*/_+=~])(?=\S)")  # at the beginning of what a mark or link is around
_TARGET = re.compile(r"\[\[((?:[^\[\]\\]|\\.)++)\]([\]\[])", re.S)
_FOOTNOTE = re.compile(r"\[fn:([\w-]*)([\]:])[ \t]*")
_CITATION = re.compile(r"\[cite(?:/([^\]:\s]{1,30}))?:")
_NAMED = re.compile(r"<<<([^<>\n]{1,200})>>>|<<(?!\s)([^<>\n]{1,200})(?<!\s)>>")
_MACRO = re.compile(r"\{\{\{([A-Za-z][\w-]{0,60})(\(|\}\}\})")
_FORMULA = re.compile(r"(?<![\w$])\$[^\s$](?:[^$\n]{0,1000}(?<=\S))?\$(?!\w)")
_ENTITY = re.compile(r"\\(?:(frac(?:12|14|34)|sup[123]|there4|[A-Za-z]+)(?:\{\}|(?![A-Za-z]))|_( +)|-)")
_CODE = re.compile(r"src_[^\s\[\]{}]{1,40}")
_CALL = re.compile(
    r"call_([^\s\[\](){}]{1,100})(?:\[[^\[\]\n]{0,200}\])?\([^()\n]{0,1000}\)(?:\[[^\[\]\n]{0,200}\])?"
)


def in_line(text: str, shown: Shown, depth: int = 0) -> str:
    """Return a paragraph, a title or a cell in Markdown."""
    if _PLAIN.fullmatch(text):
        return text
    return _Paragraph(text, shown, depth).markdown()


class _Paragraph(Reading):
    def __init__(self, text: str, shown: Shown, depth: int) -> None:
        super().__init__(text)
        self._shown = shown
        self._depth = depth

    def markdown(self) -> str:
        at = 0
        while self.is_open:
            found = self._event(at)
            if found is None:
                at = self.leave()
            else:
                after = _READ[found.lastgroup or ""](self, found.start(), found)
                at = found.start() + 1 if after is None else after
        return self.written()

    def _event(self, at: int) -> re.Match[str] | None:
        first = _FIRST.match(self.text, at, self.limit) if at == self.begun else None
        return first or _EVENT.search(self.text, at, self.limit)

    def mark(self, at: int, found: re.Match[str]) -> int | None:
        mark = self.text[at]
        if not self._may_begin(mark, self.text[at + 1 : at + 3]) or (end := self.end(mark, at + 2)) is None:
            return None
        if mark in "=~":
            return self.put(at, end + 1, code_in_line(self.text[at + 1 : end]))
        if mark == "/" and self.text.find("/", at + 1, end) > 0 and len(self.text[at:end].split()) == 1:
            return None  # a path
        return self.enter(at, at + 1, Around(end, end + 1, MARKED[mark]), MARKED[mark])

    def _may_begin(self, mark: str, following: str) -> bool:
        """Return whether this is a mark and no operator, no number's sign and none of Markdown's marks."""
        if following[0] == mark:
            return mark in "=~" and bool(following[1:].strip())
        return not (mark == "+" and following[0].isdigit())

    def link(self, at: int, found: re.Match[str]) -> int | None:
        target = _TARGET.match(self.text, at, self.limit)
        if target is None:
            return None
        begin = target.end()
        if target[2] == "]":
            said = self._called(target[1])
            return self.put(at, begin, said) if said else self.drop(at, begin)
        end = self.find("]]", begin)
        if end is None or end == begin:
            return None
        if is_picture(self.text[begin:end]):
            return self.drop(at, end + 2)
        return self.enter(at, begin, Around(end, end + 2, ""), "")

    def _called(self, target: str) -> str:
        """Return what a link without a text shows."""
        title = self._shown.title(target) if self._depth < DEEPEST else None
        return self._shown.link(target) if title is None else self._within(title)

    def _within(self, text: str) -> str:
        return in_line(text, self._shown, self._depth + 1)

    def footnote(self, at: int, found: re.Match[str]) -> int | None:
        note = _FOOTNOTE.match(self.text, at, self.limit)
        if note is None:
            return None
        if note[2] == "]":
            return self.put(at, note.end(2), f"[^{note[1]}]") if note[1] else None
        end = self.pair(at)
        if end is None:
            return None
        apart = at == 0 or self.text[at - 1].isspace() or self.text[at - 1] == "("
        return self.enter(at, min(note.end(), end), Around(end, end + 1, ")"), "(" if apart else " (")

    def citation(self, at: int, found: re.Match[str]) -> int | None:
        cited, end, key = _CITATION.match(self.text, at, self.limit), self.pair(at), self.find("@", at)
        if cited is None or end is None or key is None or key > end:
            return None
        is_word = (cited[1] or "").partition("/")[0] in ("t", "text")
        return self.put(at, end + 1, LEFT_OUT) if is_word else self.drop(at, end + 1)

    def date(self, at: int, found: re.Match[str]) -> int | None:
        date = date_at(self.text, at, self.limit)
        return self.put(at, date[1], date[0]) if date else None

    def target(self, at: int, found: re.Match[str]) -> int | None:
        named = _NAMED.match(self.text, at, self.limit)
        if named is None:
            return None
        return self.put(at, named.end(), named[1]) if named[1] else self.drop(at, named.end())

    def snippet(self, at: int, found: re.Match[str]) -> int | None:
        end = self.find("@@", at + 2)
        return None if end is None else self.drop(at, end + 2)

    def macro(self, at: int, found: re.Match[str]) -> int | None:
        named = _MACRO.match(self.text, at, self.limit)
        end = self.find(")}}}", named.end()) if named and named[2] == "(" else None
        if named is None or (named[2] == "(" and end is None):
            return None
        arguments = None if end is None else self.text[named.end() : end]
        after = named.end() if end is None else end + 4
        said = self._shown.macro(named[1], arguments) if self._depth < DEEPEST else None
        return after if said is None else self.put(at, after, self._within(said))

    def formula(self, at: int, found: re.Match[str]) -> int | None:
        end = self.find("\\)" if found[0] == "\\(" else "\\]", at + 2)
        said = "" if end is None else self.text[at + 2 : end].strip()
        bars = "$" if found[0] == "\\(" else "$$"
        return self.put(at, end + 2, f"{bars}{said}{bars}") if end is not None and said else None

    def dollar(self, at: int, found: re.Match[str]) -> int | None:
        if self.text.startswith("$$", at):
            end = self.find("$$", at + 2)
            return at + 2 if end is None else end + 2
        formula = _FORMULA.match(self.text, at, self.limit)
        return formula.end() if formula else None

    def entity(self, at: int, found: re.Match[str]) -> int | None:
        entity = _ENTITY.match(self.text, at, self.limit)
        if entity is None or (self._in_path(at) and not entity[0].endswith("{}")):
            return None
        if not entity[1]:
            return self.put(at, entity.end(), " " if entity[2] else "")
        sign = ENTITIES.get(entity[1])
        return entity.end() if sign is None else self.put(at, entity.end(), sign)

    def _in_path(self, at: int) -> bool:
        return at > self.done and self.text[at - 1].isalpha()

    def code(self, at: int, found: re.Match[str]) -> int | None:
        named = _CODE.match(self.text, at, self.limit)
        begin = named.end() if named else at
        options = self.pair(begin) if self.text.startswith("[", begin) else begin - 1
        if options is None or not self.text.startswith("{", options + 1):
            return None
        end = self.pair(options + 1)
        said = "" if end is None else self.text[options + 2 : end].strip()
        return self.put(at, end + 1, code_in_line(said)) if end is not None and said else None

    def call(self, at: int, found: re.Match[str]) -> int | None:
        call = _CALL.match(self.text, at, self.limit)
        return self.drop(at, call.end()) if call and self._shown.is_block(call[1]) else None

    def quoted(self, at: int, found: re.Match[str]) -> int | None:
        """Quote a name of Emacs as it shows it: its backtick would begin code."""
        end = self.find("'", at)
        return None if end is None else self.put(at, end + 1, f"‘{self.text[at + 1 : end]}’")

    def joint(self, at: int, found: re.Match[str]) -> int | None:
        """Leave out the space without width that sets a mark apart."""
        beside = self.text[max(at - 1, 0)], self.text[min(at + 1, len(self.text) - 1)]
        return self.put(at, at + 1, "") if any(sign in MARKED for sign in beside) else None


_READ: dict[str, Callable[[_Paragraph, int, re.Match[str]], int | None]] = {
    "mark": _Paragraph.mark,
    "link": _Paragraph.link,
    "footnote": _Paragraph.footnote,
    "citation": _Paragraph.citation,
    "date": _Paragraph.date,
    "target": _Paragraph.target,
    "snippet": _Paragraph.snippet,
    "macro": _Paragraph.macro,
    "formula": _Paragraph.formula,
    "dollar": _Paragraph.dollar,
    "end": lambda paragraph, at, found: paragraph.drop(at, found.end()),
    "entity": _Paragraph.entity,
    "code": _Paragraph.code,
    "call": _Paragraph.call,
    "address": lambda paragraph, at, found: found.end(),
    "quoted": _Paragraph.quoted,
    "joint": _Paragraph.joint,
}
