"""Join the cells of a page's row to one line, with what cells of the rows above say that go on in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.corpus.as_markdown.heads import holds_figures, titles_of
from pipelines.corpus.as_markdown.spans import Spanning, Spans, spanning
from pipelines.corpus.markup.page_blocks import Block

BETWEEN = "\ufdd2"  # stands between cells, for a bar, while a page is read
LONGEST_ROW = 2000  # characters of a row that is joined: a page laid out as a table keeps its paragraphs


@dataclass
class Table:
    """A table that is open."""

    spans: Spans = field(default_factory=Spans)
    titles: int = 0  # columns of the last rows of titles
    heads: list[list[Spanning]] = field(default_factory=list)  # the open rows of titles: none follows yet
    begins: int = 0  # number of their first block
    written: list[str] = field(default_factory=list)  # the titles of the columns that are to be written
    is_part: bool = False  # these stand below other titles of the table

    def begin_part(self, blocks: list[Block]) -> None:
        """Begin a head or a body, into which no cell from before goes on."""
        self.end_head()
        self.write_head(blocks)
        self.spans = Spans()

    def end_head(self) -> None:
        """Take the titles of the columns from the open rows of titles."""
        found = [] if len(self.heads) > 1 and self.spans.lost else titles_of(self.heads)
        first = next((at for at, title in enumerate(found) if title), 0)
        if len(found) - first > 1:
            self.is_part = self.titles > 0
            self.titles, self.written = len(found), found[first:]
        elif not self.written:
            self.heads = []

    def write_head(self, blocks: list[Block]) -> None:
        """Put a line of titles, with Markdown's rule below it, in place of their rows."""
        if not self.written:
            return
        text = " ".join(" | ".join(self.written).split()) + "\n---" + " | ---" * (self.titles - 1)
        if self.is_part and self.begins:
            blocks[self.begins - 1] = blocks[self.begins - 1]._replace(last=True)
        blocks[self.begins : self.begins + len(self.heads)] = [blocks[self.begins]._replace(text=text)]
        self.heads, self.written = [], []


@dataclass
class Row:
    """A table's row that is open."""

    table: Table
    first: int  # number of its first block
    takes: list[tuple[str | None, str | None]] = field(default_factory=list)  # columns and rows, by cell
    titles: int = 0  # of its cells
    left_out: int = 0  # empty ones before the first that says something
    borders: list[int] = field(default_factory=list)  # numbers of the blocks before which a cell ends
    nests: bool = False  # another row is inside
    is_line: bool = False  # its blocks are joined
    is_head: bool = False

    def begin_cell(self, attributes: Mapping[str, str], *, is_title: bool) -> None:
        self.takes.append((attributes.get("colspan"), attributes.get("rowspan")))
        self.titles += is_title

    def join(self, blocks: list[Block]) -> None:
        """Join the row's blocks to one line, and write the titles that end before it; leave those of a page
        that is laid out as a table as they are."""
        joined = self._joined(blocks[self.first :])
        if self.is_line:
            joined = [block._replace(text=block.text.replace(BETWEEN, "|")) for block in joined]
        blocks[self.first :] = joined
        size = len(blocks)
        self.table.write_head(blocks)
        self.first -= size - len(blocks)

    def _joined(self, blocks: list[Block]) -> list[Block]:
        goes_on = bool(self.table.spans.below)
        fewest = 1 if goes_on and self.table.heads else 2  # titles: one alone is of a part of the table
        marked = fewest <= len(self.takes) == self.titles
        if not marked:
            self.table.end_head()
        self.is_line = self._fits_a_line(blocks)
        blocks = self._in_its_line(blocks, marked=marked)
        text = self._text(blocks)
        said = self._cells(text, len(blocks)) if self.is_line and not self.nests else None
        if marked and blocks:
            self._add_titles(said)
        whole = self._whole(said)
        if not blocks or not self.is_line:
            return blocks
        return self._line(whole, blocks) if whole else self._as_it_stands(text, blocks, goes_on)

    def _fits_a_line(self, blocks: list[Block]) -> bool:
        """Return whether the row's blocks are joined: few characters, none of another part of the page, and
        of rows inside only those of tables without titles."""
        is_whole = not self.nests or self._nests_rows_alone(blocks)
        is_short = sum(len(block.text) for block in blocks) <= LONGEST_ROW
        return is_whole and is_short and len({block.main for block in blocks}) < 2

    def _nests_rows_alone(self, blocks: list[Block]) -> bool:
        """Return whether a row below titles holds tables that have none, and so are a part of its line."""
        is_titled = bool(self.table.titles)
        return is_titled and not any(block.pre or "\n---" in block.text for block in blocks)

    def _in_its_line(self, blocks: list[Block], *, marked: bool) -> list[Block]:
        """Return the blocks of a row that is read below titles, or consists of them, so that bars and ends of
        lines in a cell begin no other cell or row; code keeps its lines."""
        unread = (self.nests and not self.is_line) or not (self.table.titles or marked)
        if unread or all(block.pre for block in blocks):
            return blocks
        return [block._replace(text=_in_one_cell(block)) for block in blocks]

    def _add_titles(self, said: list[str] | None) -> None:
        """Take the row as one of titles, unless it is one of sums, or what goes on in it is no title."""
        table = self.table
        is_sum = bool(table.titles or table.heads) and holds_figures(said or [])
        follows = self.first == table.begins + len(table.heads) if table.heads else not table.spans.below
        if not said or is_sum or not follows:
            table.end_head()
            return
        self.is_head = True
        table.begins = table.begins if table.heads else self.first
        table.heads.append([spanning(cell, *takes) for cell, takes in zip(said, self.takes, strict=True)])

    def _as_it_stands(self, text: str, blocks: list[Block], goes_on: bool) -> list[Block]:
        """Return the row as it is written; where cells are of several columns or rows, or a table is inside,
        it has another width than titles, so that none of these stands above a cell of another column."""
        across = any(columns not in (None, "1") for columns, _ in self.takes)
        shifted = self.nests or ((across or goes_on) and len(self.takes) == self.table.titles)
        if not self.is_head and (len(self.takes) < 2 or (len(blocks) < 2 and not shifted)):
            return blocks
        return self._line(text + " |" * shifted, blocks)

    def _line(self, text: str, blocks: list[Block]) -> list[Block]:
        links = sum(block.links for block in blocks)
        return [Block(text, links, blocks[0].main, tight=True, pre=all(block.pre for block in blocks))]

    def _text(self, blocks: list[Block]) -> str:
        text = blocks[0].text if blocks else ""
        for number, block in enumerate(blocks[1:], self.first + 1):
            text += f" {BETWEEN}" * self.borders.count(number) + f" {block.text}"
        return text

    def _whole(self, own: list[str] | None) -> str:
        """Return the line of a row in which cells from above go on, with what they say; nothing of another
        row, or in doubt."""
        spans = self.table.spans
        if not spans.below and all(down is None for _, down in self.takes):
            return ""
        cells = [
            spanning(said, *takes)
            for said, takes in zip(own or [""] * len(self.takes), self.takes, strict=True)
        ]
        goes_on = any(said for said, _ in spans.below.values())
        row = spans.row(cells, titles=self.titles == len(cells) and not spans.below)
        if not (row and own and goes_on) or any(cell.across > 1 for cell in cells):
            return ""
        while row and not row[0]:
            row.pop(0)
        return " ".join(" | ".join(row).split())

    def _cells(self, text: str, blocks: int) -> list[str] | None:
        """Return what each cell says; None where that is in doubt."""
        said = [" ".join(cell.split()) for cell in text.split(BETWEEN)]
        found = [""] * self.left_out + said + [""] * self.borders.count(self.first + blocks)
        return found if len(found) == len(self.takes) else None


def _in_one_cell(block: Block) -> str:
    text = block.text.replace("|", "\\|")
    return text if block.pre else text.replace("\n", " ")
