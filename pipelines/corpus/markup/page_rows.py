"""Join the cells of a page's row to one line, with what cells of the rows above say that go on in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.corpus.as_markdown.spans import Spans, spanning
from pipelines.corpus.markup.page_blocks import Block

BETWEEN = "\ufdd2"  # stands between cells, for a bar, while a page is read
LONGEST_ROW = 2000  # characters of a row that is joined: a page laid out as a table keeps its paragraphs


@dataclass
class Table:
    """A table that is open."""

    spans: Spans = field(default_factory=Spans)
    titles: int = 0  # cells of the last row that has the rule of titles below it

    def begin_part(self) -> None:
        """Begin a head or a body, into which no cell from before goes on."""
        self.spans = Spans()


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

    def begin_cell(self, attributes: Mapping[str, str], *, is_title: bool) -> None:
        self.takes.append((attributes.get("colspan"), attributes.get("rowspan")))
        self.titles += is_title

    def joined(self, blocks: list[Block]) -> list[Block]:
        """Return the row's blocks as one line, below titles Markdown's rule; those of a page that is laid out
        as a table as they are."""
        blocks = self._in_its_line(blocks)
        goes_on = bool(self.table.spans.below)
        size = sum(len(block.text) for block in blocks)
        is_line = not self.nests and len({block.main for block in blocks}) < 2 and size <= LONGEST_ROW
        text = self._text(blocks)
        whole = self._whole(text if is_line else None, len(blocks))
        if not blocks or not is_line:
            return blocks
        return self._line(whole, blocks) if whole else self._as_it_stands(text, blocks, goes_on)

    def _in_its_line(self, blocks: list[Block]) -> list[Block]:
        """Return the blocks of a row that is read below titles, or consists of them, so that bars and ends of
        lines in a cell begin no other cell or row; code keeps its lines."""
        titled = 1 < len(self.takes) == self.titles
        if self.nests or not (self.table.titles or titled) or all(block.pre for block in blocks):
            return blocks
        return [
            block._replace(text=text if block.pre else text.replace("\n", " "))
            for block in blocks
            for text in [block.text.replace("|", "\\|")]
        ]

    def _as_it_stands(self, text: str, blocks: list[Block], goes_on: bool) -> list[Block]:
        """Return the row as it is written; where cells are of several columns or rows it has another width
        than titles, so that none of these stands above a cell of another column."""
        across = any(columns not in (None, "1") for columns, _ in self.takes)
        titled = self.titles == len(self.takes) and not goes_on
        shifted = (across or goes_on) and len(self.takes) == self.table.titles
        if len(self.takes) < 2 or (len(blocks) < 2 and not (titled or shifted)):
            return blocks
        text = text.replace(BETWEEN, "|") + " |" * shifted
        if titled and " | " in text and not across:
            self.table.titles = len(self.takes)
            text += "\n---" + " | ---" * (text.count(" | ") + self.left_out)
        return self._line(text, blocks)

    def _line(self, text: str, blocks: list[Block]) -> list[Block]:
        links = sum(block.links for block in blocks)
        return [Block(text, links, blocks[0].main, tight=True, pre=all(block.pre for block in blocks))]

    def _text(self, blocks: list[Block]) -> str:
        text = blocks[0].text if blocks else ""
        for number, block in enumerate(blocks[1:], self.first + 1):
            text += f" {BETWEEN}" * self.borders.count(number) + f" {block.text}"
        return text

    def _whole(self, text: str | None, blocks: int) -> str:
        """Return the line of a row in which cells from above go on, with what they say; nothing of another
        row, or in doubt."""
        spans = self.table.spans
        if not spans.below and all(down is None for _, down in self.takes):
            return ""
        own = None if text is None else self._cells(text, blocks)
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
