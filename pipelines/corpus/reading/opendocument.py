"""Read OpenDocument texts and presentations as Markdown: XML in a zip archive, parsed as a stream."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from pipelines.corpus.as_markdown.heads import titles_of
from pipelines.corpus.as_markdown.spans import LONGEST, Spanning, repeated
from pipelines.corpus.markup.office_files.opendocument_styles import HIDDEN, Styles
from pipelines.corpus.markup.office_files.xml_names import Attributes, local, value
from pipelines.corpus.markup.parts import LEFT_OUT, names
from pipelines.corpus.markup.raised import joined
from pipelines.corpus.reading.archive import BLOCK, blocks, opened, parsed
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source

CONTENT, STYLES = "content.xml", "styles.xml"
MANIFEST, LOCKED = "META-INF/manifest.xml", "encrypted-package"
HEADS = 16  # blocks of the manifest that are looked through
DEEPEST = 6  # level of headings, and of lists that are indented
MOST_SPACES, MOST_CELLS = 80, 1000
SPACES = re.compile(r"[ \t\r\n]+")


def read_opendocument(source: Source, facts: FileFacts) -> Iterator[str]:
    """Yield headings, paragraphs, lists, tables and frames, then notes; leave out deleted and hidden text,
    comments, page headers, and what is made of the headings."""
    with opened(source, "OpenDocument file") as archive:
        _refuse_locked(archive)
        if CONTENT not in archive.NameToInfo:
            raise Unreadable(f"not an OpenDocument file: it holds no {CONTENT}")
        styles = Styles()
        for _ in parsed(archive, STYLES, styles) if STYLES in archive.NameToInfo else ():
            pass
        writer = _Writer(styles)
        for _ in parsed(archive, CONTENT, writer):
            if writer.size > BLOCK:
                yield writer.take()
        yield writer.take()
        yield from writer.notes


def _refuse_locked(archive: zipfile.ZipFile) -> None:
    names = archive.NameToInfo
    said = b"".join(islice(blocks(archive, MANIFEST), HEADS)) if MANIFEST in names else b""
    if LOCKED in names or b"encryption-data" in said:
        raise Unreadable("locked with a password")


@dataclass
class _Table:
    """A table that is open."""

    cells: list[str] = field(default_factory=list)  # of the open row
    above: dict[int, tuple[str, int]] = field(default_factory=dict)  # cells that go on below, up to which row
    said: str = ""  # by the last cell, in its paragraphs
    row: int = 0
    column: int = 0
    written: int = 0  # rows
    shape: tuple[int, int, int] = (1, 1, 1)  # of the open cell: columns, rows, times that it is there
    begins: list[Spanning] = field(default_factory=list)  # the cells that begin in the open row
    titled: bool = False  # the open row is one of titles
    heads: list[tuple[list[Spanning], list[str]]] = field(default_factory=list)  # such rows, and their cells

    def add(self, text: str) -> None:
        """Add the open cell, several times if it is short."""
        wide, down, times = self.shape
        short = len(text) <= LONGEST
        for _ in range(min(times if short else 1, MOST_CELLS - len(self.cells))):
            if down > 1 and wide == 1:
                self.above[self.column] = (repeated(text), self.row + down - 1)
            self.cells.append(text)
            self.begins.append(Spanning(text, wide, down))
            self.column += 1

    def cover(self, times: int) -> None:
        """Repeat the cell above where it goes on; leave out what the cell before takes, so that such a row is
        narrower than its titles."""
        for _ in range(min(times, MOST_CELLS - len(self.cells))):
            text, last = self.above.get(self.column, ("", -1))
            self.cells += [text] if last >= self.row else []
            self.column += 1

    def end_row(self) -> tuple[list[Spanning], list[str]]:
        """Return the cells that begin in the row that ends here, and all that it has."""
        ended = self.begins, self.cells
        self.begins, self.cells = [], []
        self.row, self.column = self.row + 1, 0
        return ended


class _Writer:
    """Collects text by elements, as the parser's target."""

    SKIPPED = names(
        "annotation binary-data forms note-citation note-ref number object page-number ruby-text script"
        " scripts tracked-changes table-of-content alphabetical-index illustration-index object-index"
        " table-index user-index"
    )
    PICTURED = "svg-compatible"  # the namespace of what a picture is called
    UNSEEN = names("header footer date-time page-number")  # frames of a presentation's pages

    def __init__(self, styles: Styles) -> None:
        self.size = 0
        self.notes: list[str] = []
        self._outs: list[list[str]] = [[]]  # of the text, and of what is open in it: notes, cells, paragraphs
        self._lines: list[list[tuple[str, str]]] = []  # parts of open paragraphs, each behind its place
        self._marks: list[str] = []  # that these begin with
        self._places = [""]  # where the text of open spans stands
        self._styles = styles
        self._bullets: list[bool] = []  # of open items: the first paragraph is still to come
        self._tables: list[_Table] = []
        self._skipping = self._lists = self._within = 0
        self._in_line = False  # the open frame stands for a word
        self._kind = ""  # of the block before: an empty line stands between different ones
        self._starts: dict[str, Callable[[Attributes], None]] = {
            "style": styles.begin,
            "text-properties": styles.note,
            "p": lambda given: self._begin_paragraph(given, self._item_mark()),
            "h": self._begin_heading,
            "span": self._begin_span,
            "s": lambda given: self._add(" " * min(_number(given, "c"), MOST_SPACES)),
            "tab": lambda _: self._add("\t"),
            "line-break": lambda _: self._add("\n"),
            "list": lambda _: self._begin_list(),
            "list-item": lambda _: self._bullets.append(True),
            "list-header": lambda _: self._bullets.append(False),
            "note": lambda _: self._begin_within(),
            "frame": self._begin_frame,
            "table": lambda _: self._tables.append(_Table()),
            "table-header-rows": lambda _: self._begin_titles(),
            "table-cell": self._begin_cell,
            "covered-table-cell": self._cover,
        }
        self._ends: dict[str, Callable[[], object]] = {
            "p": self._end_paragraph,
            "h": self._end_paragraph,
            "style": styles.end,
            "span": self._places.pop,
            "list": self._end_list,
            "list-item": self._bullets.pop,
            "list-header": self._bullets.pop,
            "note": self._end_note,
            "table-header-rows": self._end_titles,
            "table-cell": self._end_cell,
            "table-row": self._end_row,
            "table": self._end_table,
            "page": lambda: self._write("\n", ""),
        }

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        tag = local(name)
        if self._skipping or tag in self.SKIPPED or self.PICTURED in name or self._is_unseen(tag, attributes):
            if tag == "object" and not self._skipping and self._in_line:
                self._add(LEFT_OUT)
            self._skipping += 1
        elif start := self._starts.get(tag):
            start(attributes)

    def EndElementHandler(self, name: str) -> None:
        if self._skipping:
            self._skipping -= 1
        elif end := self._ends.get(local(name)):
            end()

    def CharacterDataHandler(self, text: str) -> None:
        if self._skipping or not self._lines:
            return
        text = SPACES.sub(" ", text)
        line = self._lines[-1]
        if text.startswith(" ") and (not line or line[-1][1].endswith((" ", "\t", "\n"))):
            text = text[1:]
        self._add(text)

    def _is_unseen(self, tag: str, attributes: Attributes) -> bool:
        if tag == "section":
            return value(attributes, "display") == "none"
        return tag == "frame" and value(attributes, "class") in self.UNSEEN

    def _item_mark(self) -> str:
        """Return what the paragraph that begins has before it in a list."""
        if self._within or not self._bullets:
            return ""
        first, self._bullets[-1] = self._bullets[-1], False
        return "  " * (min(self._lists, DEEPEST) - 1) + ("- " if first else "  ")

    def _begin_heading(self, attributes: Attributes) -> None:
        level = min(_number(attributes, "outline-level"), DEEPEST)
        self._begin_paragraph(attributes, "" if self._within else "#" * level + " ")

    def _begin_paragraph(self, attributes: Attributes, mark: str) -> None:
        self._marks.append(mark)
        self._lines.append([])
        self._places.append(self._styles.place(f"paragraph {value(attributes, 'style-name')}", ""))
        self._outs.append([])

    def _end_paragraph(self) -> None:
        """Write the paragraph, and behind it what frames in it say."""
        mark, behind = self._marks.pop(), self._outs.pop()
        self._places.pop()
        text = joined(self._lines.pop()).strip()
        if text and text != LEFT_OUT:
            in_list = bool(mark) and not mark.startswith("#")
            said = mark + text.replace("\n", " ") if mark else text
            self._write(f"{said}\n" if in_list else f"{said}\n\n", "list" if in_list else "")
        self._put("".join(behind))

    def _begin_span(self, attributes: Attributes) -> None:
        style = f"text {value(attributes, 'style-name')}"
        self._places.append(self._styles.place(style, self._places[-1]))

    def _begin_frame(self, attributes: Attributes) -> None:
        self._in_line = value(attributes, "anchor-type") == "as-char"

    def _begin_list(self) -> None:
        self._lists += 1

    def _end_list(self) -> None:
        self._lists -= 1
        if not self._lists:
            self._end_block("list")

    def _begin_within(self) -> None:
        self._outs.append([])
        self._within += 1

    def _end_within(self) -> list[str]:
        self._within -= 1
        return self._outs.pop()

    def _end_note(self) -> None:
        self.notes += self._end_within()

    def _begin_titles(self) -> None:
        if self._tables:
            self._tables[-1].titled = not self._tables[-1].row

    def _end_titles(self) -> None:
        """Write one title a column above Markdown's rule; where that is in doubt, the rows as they are."""
        table = self._tables[-1] if self._tables else _Table()
        titles = titles_of([begins for begins, _ in table.heads])
        for cells in [titles] if titles else [cells for _, cells in table.heads]:
            self._write_cells(cells)
        if titles:
            self._write("|" + "---|" * len(titles) + "\n", "table")
        table.titled, table.heads = False, []

    def _begin_cell(self, attributes: Attributes) -> None:
        if self._tables:
            names = ("number-columns-spanned", "number-rows-spanned", "number-columns-repeated")
            wide, down, times = (_number(attributes, name) for name in names)
            self._tables[-1].shape = (wide, down, times)
        self._begin_within()

    def _end_cell(self) -> None:
        said = "".join(self._end_within())
        if self._tables:
            self._tables[-1].said = said.strip()
            self._tables[-1].add(" ".join(said.split()).replace("|", "\\|"))

    def _cover(self, attributes: Attributes) -> None:
        if self._tables:
            self._tables[-1].cover(_number(attributes, "number-columns-repeated"))

    def _end_row(self) -> None:
        """Write a row; a box, of one cell, is paragraphs, and a table in a cell a part of its line."""
        if not self._tables:
            return
        table = self._tables[-1]
        begins, cells = table.end_row()
        if not any(cells):
            return
        if len(self._tables) > 1:
            self._put(" ".join(cells) + " ")
        elif len(cells) == 1 and not (table.written or table.heads):
            self._write(table.said + "\n\n", "")
        elif table.titled:
            table.heads.append((begins, cells))
        else:
            self._write_cells(cells)

    def _write_cells(self, cells: list[str]) -> None:
        self._write(f"| {' | '.join(cells)} |\n", "table")
        self._tables[-1].written += 1

    def _end_table(self) -> None:
        self._tables.pop()
        self._end_block("table")

    def _end_block(self, kind: str) -> None:
        if self._kind == kind:
            self._write("\n", "")

    def _add(self, text: str) -> None:
        if self._lines and text and self._places[-1] != HIDDEN:
            self._lines[-1].append((self._places[-1], text))

    def _write(self, text: str, kind: str) -> None:
        """Write a block, behind an empty line where one of another kind was not ended."""
        self._put("\n" + text if self._kind and self._kind != kind and text != "\n" else text)
        self._kind = kind

    def _put(self, text: str) -> None:
        self._outs[-1].append(text)
        self.size += len(text) if len(self._outs) == 1 else 0

    def take(self) -> str:
        """Return the text that is done."""
        text = "".join(self._outs[0])
        self._outs[0].clear()
        self.size = 0
        return text


def _number(attributes: Attributes, name: str) -> int:
    """Return a whole number of at least 1, as is meant where there is none."""
    said = value(attributes, name)
    return max(1, int(said)) if re.fullmatch(r"[0-9]{1,9}", said) else 1
