"""Read reStructuredText as its readers see it: without comments, labels, and the options of directives, its
tables as Markdown has them, and what substitutions stand for.

What stands in a literal block, or in a directive that shows code, stays as it stands.
"""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown import rst_tables
from pipelines.corpus.markup.parts import LEFT_OUT
from pipelines.corpus.reading.site_sources.substitutions import Substitutions

_DIRECTIVE = re.compile(r"([ \t]*)\.\. +(?:\|[^|\n]+\| +)?([\w.+:-]*\w)::(?:\s|$)")
_COMMENT = re.compile(r"([ \t]*)\.\.(?:[ \t]+(?![_\[|]).*)?$")
_LABEL = re.compile(r"[ \t]*\.\. _(?:[^:`\\]|\\.)+:[ \t]*$")
_BORDER = re.compile(r"[ \t]*\+[-=]")  # of a table that stays as it stands
_OPTION = re.compile(r"[ \t]+:([\w-]+):(?:\s|$)")
_SHOWN = re.compile(r"alt|caption|header|subtitle|summary|synopsis|title")  # options with words
_UNSEEN = re.compile(
    r"contents|(?:py:)?currentmodule|default-role|highlight|include|index|meta|role|sectnum|tabularcolumns"
)
_CODE = re.compile(
    r"code|code-block|command-output|csv-table|digraph|doctest|graphviz|ipython|literalinclude|math|mermaid"
    r"|parsed-literal|productionlist|prompt|raw|sourcecode|testcode|testoutput|testsetup|uml"
)


def read_restructured(text: str) -> str:
    """Return a text without what only Sphinx or docutils reads."""
    page = _Page(text.split("\n"))
    while page.at < len(page.lines):
        page.step()
    return "\n".join(page.kept)


class _Page:
    """The lines, how far they are read, and those that are kept."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.kept: list[str] = []
        self._substitutions = Substitutions(lines)
        self._is_drawn = False  # the last line is a table's
        self._literal: int | None = None  # the column that ends a literal block
        self._may_begin = True  # explicit markup may begin here: behind an empty line, or other such markup

    def step(self) -> None:
        """Keep or leave out the next line, or what begins with it."""
        line = self.lines[self.at]
        if self._literal is not None and (not line.strip() or _indent(line) > self._literal):
            self._keep(line)
            return
        self._literal = None
        if self._may_begin and (table := rst_tables.drawn(self.lines, self.at)):
            self._put([self._substitutions.put_in(row, cells=True) for row in table[0]], table[1])
        elif not self._may_begin or not line.lstrip().startswith(".."):
            self._keep(line, self._said(line))
            self._literal = _indent(line) if line.rstrip().endswith("::") else None
        elif found := _DIRECTIVE.match(line):
            self._directive(found)
        elif _LABEL.match(line) and not self._goes_on(self.at + 1, _indent(line)):
            self._leave_out(self.at + 1)
        elif _COMMENT.match(line):
            self._leave_out(self._end_of_comment(line))
        else:
            self._keep(line, self._said(line))
            self._may_begin = True

    def _said(self, line: str) -> str:
        """Return a line with what its substitutions stand for; bars of a table are none."""
        self._is_drawn = bool(_BORDER.match(line)) or (self._is_drawn and line.lstrip().startswith("|"))
        said = line if self._is_drawn else self._substitutions.put_in(line)
        begins = not self.kept or not self.kept[-1].strip()
        shows_nothing = said != line and not said.replace(LEFT_OUT, "").strip()
        return "" if begins and shows_nothing else said  # a row of pictures

    def _keep(self, line: str, said: str | None = None) -> None:
        self.kept.append(line if said is None else said)
        self.at += 1
        self._may_begin = not line.strip()

    def _put(self, lines: list[str], end: int) -> None:
        """Keep other lines for those up to the line `end`."""
        self.kept += lines
        self.at = end
        self._may_begin = True

    def _directive(self, found: re.Match[str]) -> None:
        """Keep a directive without its options."""
        line, indent, name = found.string, _indent(found.string), found[2]
        if _UNSEEN.fullmatch(name) and "|" not in line:
            self._leave_out(self._end_of_block(self.at + 1, indent))
            return
        if name in (rst_tables.LISTED, rst_tables.SEPARATED):
            end = self._end_of_block(self.at + 1, indent)
            if table := rst_tables.listed(name, self.lines[self.at : end]):
                self._put([line, *(self._substitutions.put_in(row, cells=True) for row in table)], end)
                return
        self._keep(line, self._said(line))
        while self._goes_on(self.at, indent) and (option := _OPTION.match(self.lines[self.at])):
            end = self.at + 1
            while self._goes_on(end, _indent(option[0])) and not _OPTION.match(self.lines[end]):
                end += 1
            if _SHOWN.fullmatch(option[1]):
                self.kept += self.lines[self.at : end]
            self.at = end
        self._literal = indent if _CODE.fullmatch(name) else None
        self._may_begin = True

    def _goes_on(self, at: int, indent: int) -> bool:
        """Return whether a line says something and stands deeper."""
        return at < len(self.lines) and bool(self.lines[at].strip()) and _indent(self.lines[at]) > indent

    def _end_of_comment(self, line: str) -> int:
        """Return the line behind a comment; one without a word and an empty line behind it ends there."""
        following = self.lines[self.at + 1] if self.at + 1 < len(self.lines) else ""
        if line.strip() == ".." and not following.strip():
            return self.at + 1
        return self._end_of_block(self.at + 1, _indent(line))

    def _end_of_block(self, at: int, indent: int) -> int:
        """Return the line behind the lines that stand deeper, and behind the empty ones among them."""
        end = at
        while at < len(self.lines) and (not self.lines[at].strip() or _indent(self.lines[at]) > indent):
            at += 1
            if self.lines[at - 1].strip():
                end = at
        return end

    def _leave_out(self, end: int) -> None:
        """Go on at the line `end`; of the empty lines before and behind only one stays."""
        self.at = end
        behind = end < len(self.lines) and not self.lines[end].strip()
        if behind and (not self.kept or not self.kept[-1].strip()):
            self.at += 1
        self._may_begin = True


def _indent(line: str) -> int:
    return len(line.expandtabs(8)) - len(line.lstrip().expandtabs(8)) if line[:1] in (" ", "\t") else 0
