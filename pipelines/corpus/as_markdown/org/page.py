"""Write a page of Org as Markdown, line by line: headings, paragraphs, lists, tables, code.

What Org does not export is left out: comments, properties, plans, what is set for programs, and the parts
that say so. A mark that nothing closes stays.
"""

from __future__ import annotations

import re
from textwrap import dedent

from pipelines.corpus.as_markdown.org.inline import in_line
from pipelines.corpus.as_markdown.org.settings import KEYWORD, heading, settings_of
from pipelines.corpus.as_markdown.org.shown import Shown
from pipelines.corpus.as_markdown.org.spans import CODE, ENVIRONMENT, HEADING, UNSEEN, Span, spans
from pipelines.corpus.as_markdown.org.tables import rows
from pipelines.corpus.as_markdown.org.written import Written
from pipelines.corpus.as_markdown.parts import fenced

DEEPEST = 6  # headings
_REMARK = re.compile(r"#(?:[ \t]|$)|#\+(?:begin|end)_\S", re.I)
_CAPTION = re.compile(r"[ \t]*#\+caption(?:\[[^\[\]]*\])?:(.*)", re.I)
_RULE = re.compile(r"-{5,}$")
_STAMP = r"(?:<[^<>]*>|\[[^\[\]]*\])"
_PLANS = re.compile(
    rf"(?:(?:SCHEDULED|DEADLINE|CLOSED):[ \t]*{_STAMP}(?:--{_STAMP})?(?:[ \t]+|$))+$|CLOCK:[ \t]*(?:\[|=>)"
)
_ITEM = re.compile(r"(?:[-+]|(?<=[ \t])\*|\d{1,9}[.)])(?=[ \t]|$)")
_COUNTER = re.compile(r"[ \t]*(?:\[@[^\[\]\s]{1,9}\](?:[ \t]+|$))?(?:\[[ X-]\](?:[ \t]+|$))?")
_TERM = re.compile(r"[ \t]::(?:[ \t]+|$)")
_BULLETS = re.compile(r"[\s>]*(?:-|\d+[.)])\s*")
_DEFINES = re.compile(r"\[fn:([\w-]+)\][ \t]*")
_FIXED = re.compile(r"[ \t]*:(?:[ \t]|$)")
_ESCAPED = re.compile(r"([ \t]*,*),(?=\*|#\+)")  # by Org, where code has it at the beginning of a line
_LANGUAGE = re.compile(r"[^\s:`-][^\s`]*")
_BOXES = frozenset(("note", "tip", "warning", "important", "caution", "info", "hint", "attention", "danger"))


def as_markdown(text: str, titled: bool = False) -> str:
    """Return a page in Markdown; one that is titled elsewhere has its headings below that title."""
    return _Page(text.split("\n"), titled).markdown()


class _Page:
    def __init__(self, lines: list[str], titled: bool) -> None:
        self._lines = lines
        self._spans = spans(lines)
        self._settings = settings_of(lines, self._spans)
        self._shown = Shown(self._settings)
        self._out = Written()
        self._paragraph: list[str] = []
        self._lead: str | None = None  # what stands before the open paragraph
        self._blanks = 0  # empty lines before this one
        self._below = int(titled)  # how much deeper headings are

    def markdown(self) -> str:
        self._title()
        at = 0
        while at < len(self._lines):
            at = self._step(at)
        self._end_paragraph()
        return self._out.text()

    def _title(self) -> None:
        title, more = (self._in_line(self._settings.said.get(name, "")) for name in ("title", "subtitle"))
        if title:
            self._below = 1
            goes_on = " " if more[:1].islower() else ": "
            self._out.add(f"# {title}{goes_on}{more}" if more else f"# {title}")
            self._out.gap()

    def _in_line(self, text: str) -> str:
        return in_line(text, self._shown)

    def _step(self, at: int) -> int:
        """Take a line, or the lines that belong together; return where to go on."""
        line = self._lines[at]
        said = line.strip()
        self._blanks = 0 if said else self._blanks + 1
        if not said:
            self._blank()
        elif at == self._out.end:
            self._end_paragraph()
            self._out.close()
            self._out.gap()
        elif HEADING.match(line):
            return self._heading(at)
        elif span := self._spans.get(at):
            return self._span(at, span)
        elif said[0] == "|" or _FIXED.match(line):
            return self._rows(at)
        elif KEYWORD.match(line):
            return self._caption(at) if _CAPTION.match(line) else self._leave_out(at + 1)
        elif _REMARK.match(said) or _PLANS.match(said):
            return self._leave_out(at + 1)
        else:
            self._line(line, said)
        return at + 1

    def _blank(self) -> None:
        self._end_paragraph()
        self._out.gap()
        if self._blanks > 1:
            self._out.end_lists()

    def _leave_out(self, after: int) -> int:
        """Leave lines out, which end a paragraph nevertheless."""
        if self._paragraph:
            self._end_paragraph()
            self._out.gap()
        return after

    # Headings

    def _heading(self, at: int) -> int:
        self._end_paragraph()
        self._out.close_all()
        found = heading(self._lines[at], self._settings)
        if found.left_out:
            return self._behind(at, found.level)
        if title := self._in_line(found.title):
            self._out.add(f"{'#' * min(found.level + self._below, DEEPEST)} {title}")
        return at + 1

    def _behind(self, at: int, level: int) -> int:
        """Return the next heading that is not below this one."""
        at += 1
        while at < len(self._lines):
            line = self._lines[at]
            if HEADING.match(line) and len(line) - len(line.lstrip("*")) <= level:
                break
            span = self._spans.get(at)
            at = span.end + 1 if span and span.whole else at + 1
        return at

    # Paragraphs and lists

    def _line(self, line: str, said: str) -> None:
        indent = _indent(line)
        if _RULE.match(said):
            self._rule(indent)
        elif item := _ITEM.match(line, len(line) - len(line.lstrip())):
            self._item(indent, item[0], line[item.end() :])
        elif defines := _DEFINES.match(line):
            self._end_paragraph()
            self._out.end_lists()
            self._lead, self._paragraph = f"{self._out.prefix}[^{defines[1]}]: ", [line[defines.end() :]]
        else:
            if self._out.leaves(indent):
                self._place(indent)
            self._lead = self._out.prefix if self._lead is None else self._lead
            self._paragraph.append(said)

    def _place(self, indent: int) -> None:
        """End the paragraph, and the lists that the next line is not in."""
        self._end_paragraph()
        if self._out.place(indent):
            self._out.gap()

    def _rule(self, indent: int) -> None:
        self._place(indent)
        if self._out.has_lines:  # at the beginning it would open front matter
            self._out.gap()
            self._out.add("---")
            self._out.gap()

    def _item(self, indent: int, bullet: str, rest: str) -> None:
        self._end_paragraph()
        counter = _COUNTER.match(rest)
        rest = rest[counter.end() :].strip() if counter else rest
        lead = self._out.item(indent, "-" if bullet in "-+*" else bullet)
        if bullet in "-+*" and (term := _TERM.search(rest)):
            lead += f"{self._bold(rest[: term.start()].strip())}: "
            rest = rest[term.end() :]
        self._lead, self._paragraph = lead, [rest] if rest else []

    def _bold(self, text: str) -> str:
        said = self._in_line(text)
        return said if "**" in said or not said else f"**{said}**"

    def _end_paragraph(self) -> None:
        if self._lead is None:
            return
        lead, text = self._lead, "\n".join(self._paragraph)
        written = [line.strip() for line in self._in_line(text).split("\n") if line.strip()]
        self._lead, self._paragraph = None, []
        if not written and lead != self._out.prefix and not (text and _BULLETS.fullmatch(lead)):
            self._out.add(lead.rstrip(), "")
        for number, line in enumerate(written):
            self._out.add(line, lead if number == 0 else None)

    def _caption(self, at: int) -> int:
        """Write what the lines of a caption say as a paragraph of its own."""
        self._place(_indent(self._lines[at]))
        said = []
        while at < len(self._lines) and (found := _CAPTION.match(self._lines[at])):
            said.append(found[1].strip())
            at += 1
        if caption := self._bold(" ".join(said)):
            self._out.gap()
            self._out.add(caption)
            self._out.gap()
        return at

    # Blocks

    def _span(self, at: int, span: Span) -> int:
        if span.kind in UNSEEN:
            return self._leave_out(span.end + 1)
        self._place(_indent(self._lines[at]))
        inside = self._lines[at + 1 : span.end] if span.whole else []
        if span.kind in CODE:
            language = _LANGUAGE.match(span.options) if span.kind == "src" else None
            code = [_ESCAPED.sub(r"\1", line, count=1) for line in inside]
            self._code(code, language[0] if language else "")
        elif span.kind == ENVIRONMENT:
            self._as_it_stands(self._lines[at : span.end + 1])
        elif span.whole:
            self._out.gap()
            if span.exports_markdown:
                self._as_it_stands(inside)
        else:
            return self._begin(at, span)
        return span.end + 1

    def _begin(self, at: int, span: Span) -> int:
        """Begin a quotation, or a block whose content stands as it would without."""
        self._out.gap()
        if span.kind in _BOXES:
            self._out.add(f"**{span.kind.capitalize()}**")
            self._out.gap()
        self._out.begin(span.end, quoted=span.kind == "quote")
        return at + 1

    def _code(self, lines: list[str], language: str = "") -> None:
        self._as_it_stands(fenced(dedent("\n".join(lines)), language).split("\n"))

    def _as_it_stands(self, lines: list[str]) -> None:
        for line in lines:
            self._out.add(line)

    def _rows(self, at: int) -> int:
        """Write the rows of a table, or lines of fixed width."""
        first, mark = at, self._lines[at].lstrip()[0]
        self._place(_indent(self._lines[at]))
        while at < len(self._lines) and _is_row(self._lines[at], mark):
            at += 1
        lines = self._lines[first:at]
        if mark == "|":
            self._out.gap()
            self._as_it_stands(rows(lines, self._in_line))
            self._out.gap()
        else:
            self._code([line.lstrip()[1:].removeprefix(" ") for line in lines])
        return at


def _is_row(line: str, mark: str) -> bool:
    return bool(_FIXED.match(line)) if mark == ":" else line.lstrip().startswith("|")


def _indent(line: str) -> int:
    space = line[: len(line) - len(line.lstrip())]
    return len(space.expandtabs(8))
