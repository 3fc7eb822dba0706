"""Write the rows of a table of Word or PowerPoint, with Markdown's rule below what is marked as titles."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.corpus.as_markdown.heads import titles_of
from pipelines.corpus.as_markdown.spans import Spanning, repeated, spanning
from pipelines.corpus.markup.office_files.xml_names import Attributes, value

_OFF = ("0", "false", "off")


class OfficeTable:
    """A table's rows so far, and the one that is open."""

    def __init__(self) -> None:
        self._marks_first = False  # its first row holds titles, PowerPoint says of it
        self._rows = 0
        self._heads: list[list[Spanning]] = []  # the rows of titles, while no other follows
        self._titles = 0  # columns, once the rule is written
        self._above: list[str] = []  # what may go on in the open row
        self._begin_row()

    def _begin_row(self) -> None:
        self._cells: list[str] = []
        self._takes: list[int] = []  # the columns of each
        self._has_titles = self._marks_first and not self._rows
        self._across = False  # a cell takes several columns, or a column has none
        self._says = False  # something of its own
        self._goes_on = self._hidden = False  # the open cell: the one above, or the one before
        self._columns: str | None = None  # that the open cell takes

    def takes(self, tag: str, attributes: Attributes, depth: int) -> None:
        """Take what a tag says of the table, of a row outside its cells (depth 0) or of a cell (1)."""
        if depth == 0:
            self._take_of_row(tag, attributes)
        elif depth == 1:
            self._take_of_cell(tag, attributes)

    def _take_of_row(self, tag: str, attributes: Attributes) -> None:
        if tag == "tblPr":
            self._marks_first = attributes.get("firstRow", "0") not in _OFF
        elif tag == "tr":
            self._begin_row()
        elif tag == "tblHeader":
            self._has_titles = value(attributes, "val") not in _OFF
        elif tag in ("gridBefore", "gridAfter"):
            self._across = self._across or value(attributes, "val") != "0"

    def _take_of_cell(self, tag: str, attributes: Attributes) -> None:
        if tag in ("gridSpan", "hMerge"):
            said = value(attributes, "val")
            self._across = self._across or said != "1"
            self._columns = said if tag == "gridSpan" else self._columns
        elif tag == "vMerge":
            self._goes_on = value(attributes, "val") != "restart"
        elif tag == "tc":
            self._begin_cell(attributes)

    def _begin_cell(self, attributes: Attributes) -> None:
        """Begin a cell, of which PowerPoint says here what Word says within it."""
        self._columns = attributes.get("gridSpan")
        self._across = self._across or (self._columns or "1") != "1"
        self._goes_on = attributes.get("vMerge", "0") not in _OFF
        self._hidden = attributes.get("hMerge", "0") not in _OFF
        # A title of the marked row goes on: this row is one of titles too
        self._has_titles = self._has_titles or (self._marks_first and self._goes_on and bool(self._heads))

    def end_cell(self, said: str) -> None:
        self._says = self._says or bool(said)
        at = len(self._cells)
        if self._goes_on and not said and at < len(self._above):
            said = self._above[at]
        if said or not self._hidden:
            self._cells.append(said)
            self._takes.append(spanning(said, self._columns, None).across)

    @property
    def is_box(self) -> bool:
        """Return whether the row that has ended is a box, which holds paragraphs: a first one of one cell."""
        return self._rows == 1 and len(self._cells) == 1 and not self._heads

    def end_row(self) -> str:
        """Return the row's line, behind those of the titles above; nothing of titles and of an empty row."""
        follows = self._rows == len(self._heads)
        self._rows += 1
        cells = self._cells
        self._above = [] if self._across or self._has_titles else [repeated(cell) for cell in cells]
        if self._has_titles and follows:
            self._heads.append([Spanning(*cell) for cell in zip(cells, self._takes, strict=True)])
            return ""
        if not self._says:
            return ""
        head = self._head(titles_of(self._heads))
        if self._across and len(cells) == self._titles:
            cells = [*cells, ""]  # no cell stands below the title of another column
        return head + _line(cells, escaped=bool(self._titles))

    def _head(self, titles: list[str]) -> str:
        """Return the line of the columns' titles, with Markdown's rule below it; without any the rows
        that are marked as such."""
        heads, self._heads = self._heads, []
        if not titles:
            return "".join(_line([cell.said for cell in cells]) for cells in heads)
        self._titles = len(titles)
        return _line(titles, escaped=True).lstrip("| ") + " | ".join(["---"] * len(titles)) + "\n"

    def end(self) -> str:
        """Return what stands behind the table: what follows is none of its rows."""
        return self._head([]) + ("" if self.is_box else "\n")


def _line(cells: Sequence[str], *, escaped: bool = False) -> str:
    said = [cell.replace("|", "\\|") if escaped else cell for cell in cells]
    return " ".join(" | ".join([*said, ""]).split()).removesuffix("|").strip() + "\n"
