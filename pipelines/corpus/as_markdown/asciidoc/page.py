"""Write a page in AsciiDoc as Markdown, block by block.

What stands for something of another file (an included one, the title of another page) is left out, or shown
as a part left out where a sentence needs it. Code stays as it stands.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import defaultdict
from dataclasses import dataclass
from html import unescape
from textwrap import dedent

from pipelines.corpus.as_markdown.asciidoc import tables
from pipelines.corpus.as_markdown.asciidoc.conditions import Attributes, shown_lines
from pipelines.corpus.as_markdown.asciidoc.inline import Inline
from pipelines.corpus.as_markdown.asciidoc.lines import (
    BREAK,
    MACRO,
    RULE,
    SET,
    TITLE,
    Item,
    heading_at,
    is_remark,
    item_of,
    titles_of,
    without_anchors,
)
from pipelines.corpus.as_markdown.asciidoc.style import KINDS, Style, style_of
from pipelines.corpus.as_markdown.parts import fenced, table, without_marks
from pipelines.corpus.markup.parts import LEFT_OUT

_GAPS = re.compile(r"\n{3,}")
_REMARK = re.compile(rf"({'|'.join(KINDS)}):[ \t]+(?=\S)")
_NAME = r"[^\W\d_a-z][\w.'-]*(?: [^\W\d_a-z][\w.'-]*){1,2}"
_WRITER = rf"(?:\S+(?: \S+){{0,3}} <[^<>\s]+(?:\[[^\[\]]*\])?>|{_NAME})"
_AUTHOR = re.compile(rf"{_WRITER}(?:; {_WRITER})*$")
_REVISION = re.compile(r"v?\d[\w.-]*(?:,.*)?$")
_TAG = re.compile(r"<(script|style|svg)\b.*?(?:</\1>|\Z)|</?[A-Za-z][^<>]*>", re.S | re.I)
_FENCE = re.compile(r"^ *(`{3,})[^\n`]*\n(.*?)\n *\1$", re.M | re.S)
_DEEPEST_QUOTE = 4  # quotations within one another that are set in


def as_markdown(text: str) -> str:
    """Return a page in Markdown."""
    return Page(text).written()


@dataclass(frozen=True)
class _Block:
    """A block between rules whose lines are read as others are."""

    end: int
    begins: int  # in what is written
    style: Style
    lists: list[str]


class Page:
    """The lines of a page, and what is written of them."""

    def __init__(self, text: str, around: Inline | None = None) -> None:
        self.lines = [line.rstrip() for line in shown_lines(without_marks(text).split("\n"))]
        self._ends: dict[str, list[int]] = defaultdict(list)
        for at, line in enumerate(self.lines):
            if line and RULE.match(line):
                self._ends[line].append(at)
        self._is_cell = around is not None  # of a table on the page around it
        self._inline = around or Inline(Attributes(), titles_of(self.lines))
        self._out: list[str] = []
        self._set: list[str] = []  # what is said of the next block
        self._lists: list[str] = []  # the marks of the lists that are open
        self._open: list[_Block] = []
        self._attached = False  # the next block belongs to an item
        self._defines = False  # the next paragraph is what the last term means

    def written(self) -> str:
        """Return the page in Markdown."""
        at = 0
        while at < len(self.lines):
            at = self._step(at)
            while self._open and self._open[-1].end <= at:
                at = max(at, self._open[-1].end + 1)
                self._close(self._open.pop())
        notes = [f"[^{number}]: {note}" for number, note in enumerate(self._inline.footnotes, 1)]
        text = "\n".join([*self._out, "", *([] if self._is_cell else notes)])
        return _GAPS.sub("\n\n", text).strip("\n") + "\n" if text.strip() else ""

    def _step(self, at: int) -> int:
        """Write the block that begins here; return where the next one does."""
        line = self.lines[at]
        if not line:
            self._out.append("")
            return at + 1
        if self._says_of_next(line):
            return at + 1
        is_rule = line in self._ends
        if is_rule and (end := self._end(at)):
            return self._delimited(at, end)
        heading = heading_at(self.lines, at)
        if heading and (heading[2] == 1 or not (self._open or self._attached)):
            return self._heading(at, *heading)
        if is_rule or BREAK.match(line) or MACRO.match(line):
            self._set.clear()
            self._out.append("")
            return at + 1
        if item := item_of(line):
            return self._item(at, item)
        return self._paragraph(at)

    def _says_of_next(self, line: str) -> bool:
        """Return whether a line belongs to what follows: its title, attributes, remarks, what is set."""
        if line == "+":
            self._attached = True
            self._out.append("")
        elif SET.match(line):
            self._set.append(line)
        elif title := TITLE.match(line):
            self._out += ["", _bold(self._inline.written(title[1])), ""]
        elif not is_remark(line):
            return self._inline.attributes.takes(line)
        return True

    def _end(self, at: int) -> int:
        """Return where the block ends that a rule begins; 0 where it begins none."""
        rule = "```" if self.lines[at].startswith("```") else self.lines[at]
        found = self._ends.get(rule, [])
        following = bisect(found, at)
        return found[following] if following < len(found) and found[following] < self._limit else 0

    @property
    def _limit(self) -> int:
        """Return the line that ends the innermost block, or the page."""
        return self._open[-1].end if self._open else len(self.lines)

    def _style(self) -> Style:
        style = style_of(self._set)
        self._set.clear()
        return style

    def _put(self, text: str) -> None:
        """Write a block; one that belongs to an item is set in."""
        if not self._attached:
            self._lists = []
        elif _bullets(self._lists):
            text = re.sub(r"^(?=.)", "  ", text, flags=re.M)
        self._attached = self._defines = False
        self._out += ["", text, ""]

    # Blocks

    def _heading(self, at: int, level: int, said: str, taken: int) -> int:
        self._style()
        self._attached = False
        is_first = level == 1 and not any(self._out)
        self._put(f"{'#' * level} {self._inline.written(without_anchors(said))}")
        return self._past_authors(at + taken) if is_first else at + taken

    def _past_authors(self, at: int) -> int:
        """Return the line behind those below a page's title that name its authors and revision."""
        for pattern in (_AUTHOR, _REVISION):
            while at < len(self.lines) and (
                is_remark(self.lines[at]) or self._inline.attributes.takes(self.lines[at])
            ):
                at += 1
            if at >= len(self.lines) or not pattern.match(self.lines[at]):
                break
            at += 1
        return at

    def _delimited(self, at: int, end: int) -> int:
        rule = self.lines[at]
        style = self._style()
        inner = self.lines[at + 1 : end]
        if rule[0] == "/" or style.name == "comment":
            return end + 1
        if rule[1:4] == "===" and rule[0] != "=":
            rows, titled = tables.rows(inner, style.given, rule[0], self._cell)
            self._put("\n".join(table(rows, titled=titled)))
        elif rule[0] == "+":
            text = "\n".join(inner)
            self._put(self._prose(text, style) if style.is_formula else unescape(_TAG.sub("", text)))
        elif style.name == "verse":
            self._put(self._prose("\n".join(inner), style))
        elif (rule[0] in "-.`" and rule != "--") or style.is_code:
            language = style.language or (rule.lstrip("`") if rule[0] == "`" else "")
            self._put("" if style.is_picture else fenced("\n".join(inner), language))
        else:
            self._begin(end, style if rule[0] != "_" else style.quoting())
            return at + 1
        return end + 1

    def _begin(self, end: int, style: Style) -> None:
        """Go into a block whose lines are read as others are."""
        self._put("")
        self._open.append(_Block(end, len(self._out), style, self._lists))
        self._lists = []
        if style.kind:
            self._out += [f"**{style.kind}**", ""]

    def _close(self, block: _Block) -> None:
        self._lists = block.lists
        self._defines = False
        if block.style.is_quote and len(self._open) < _DEEPEST_QUOTE:
            said = _GAPS.sub("\n\n", "\n".join(self._out[block.begins :])).strip("\n")
            self._out[block.begins :] = [block.style.quoted(said)]
        self._out.append("")

    def _cell(self, cell: tables.Cell) -> str:
        """Return what a cell says on one line."""
        if cell.is_page and "\n" in cell.text and not self._is_cell:
            page = Page(cell.text, self._inline).written()
            return " ".join(_FENCE.sub(lambda code: f"`{' '.join(code[2].split())}`", page).split())
        return " ".join(self._inline.written(cell.text).split())

    # Lists and paragraphs

    def _item(self, at: int, item: Item) -> int:
        """Write an item of a list or a definition."""
        self._style()
        self._attached = False
        if item.mark in self._lists:
            del self._lists[self._lists.index(item.mark) + 1 :]
        else:
            self._lists.append(item.mark)
        indent = "  " * _bullets(self._lists[:-1])
        following, more = self._following(at + 1, in_list=True)
        said = self._inline.written(_joined([item.text, *more])).replace("\n", " ").strip()
        if item.term:
            self._defines = not said
            self._out.append(indent + _bold(self._inline.written(item.term)) + (f": {said}" if said else ""))
        else:
            self._defines = False
            if said.strip(" .,") == LEFT_OUT:
                return following
            self._out.append(f"{indent}{'1.' if item.is_numbered else '-'} {said}")
        return following

    def _following(self, at: int, *, in_list: bool) -> tuple[int, list[str]]:
        """Return the further lines of a paragraph, and where it ends."""
        found = []
        while at < self._limit and (line := self.lines[at]):
            ends = (line in self._ends and self._end(at)) or SET.match(line) or line == "+"
            if ends or (in_list and item_of(line)):
                break
            found.append(line.strip() if in_list else line)
            at += 1
        return at, found

    def _paragraph(self, at: int) -> int:
        style = self._style()
        is_literal = self.lines[at][:1].isspace() and not self._defines and not style.name
        following, lines = self._following(at, in_list=bool(self._lists) and not is_literal)
        if self._defines and not (style.is_code or style.kind):
            self._define(self._inline.written(_joined(lines)).replace("\n", " ").strip())
        elif style.is_code or is_literal:
            self._put("" if style.is_picture else fenced(dedent("\n".join(lines)), style.language))
        elif lines and style.name != "comment":
            self._put(self._prose(_joined(lines), style))
        return max(following, at + 1)

    def _define(self, said: str) -> None:
        """Write what the last term means behind it."""
        while self._out and not self._out[-1]:
            self._out.pop()
        self._out[-1] += f": {said}"
        self._defines = False

    def _prose(self, text: str, style: Style) -> str:
        if style.is_formula:
            return f"$$\n{text}\n$$"
        remark = _REMARK.match(text)
        kind = style.kind
        if remark:
            kind, text = remark[1].capitalize(), text[remark.end() :]
        said = self._inline.written(text)
        if style.is_quote:
            said = style.quoted(said)
        return f"**{kind}**: {said}" if kind else said


def _bullets(marks: list[str]) -> int:
    """Return how many lists have bullets or numbers; definitions are not set in."""
    return sum(not mark.startswith((":", ";")) for mark in marks)


def _joined(lines: list[str]) -> str:
    return "\n".join(line for line in lines if not is_remark(line))


def _bold(said: str) -> str:
    return said if "**" in said else f"**{said}**"
