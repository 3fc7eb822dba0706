"""Write the rows of a table of Word or PowerPoint, with Markdown's rule below what is marked as titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.corpus.as_markdown.spans import repeated

_OFF = ("0", "false", "off")


class OfficeTable:
    """A table's rows so far, and the one that is open."""

    def __init__(self) -> None:
        self._marks_first = False  # its first row holds titles, PowerPoint says of it
        self._rows = 0
        self._rule = 0  # cells of the row of titles above, while it is the last one
        self._titles = 0  # cells of the titles, once the rule is written
        self._above: list[str] = []  # what may go on in the open row
        self._begin_row()

    def _begin_row(self) -> None:
        self._cells: list[str] = []
        self._has_titles = self._marks_first and not self._rows
        self._across = False  # a cell takes several columns, or a column has none
        self._says = False  # something of its own
        self._goes_on = self._hidden = False  # the open cell: the one above, or the one before

    def takes(self, tag: str, attributes: Mapping[str, str], depth: int) -> None:
        """Take what a tag says of the table, of a row outside its cells (depth 0) or of a cell (1)."""
        value = next((value for key, value in attributes.items() if key.endswith(" val")), "")
        if tag == "tblPr" and not depth:
            self._marks_first = attributes.get("firstRow", "0") not in _OFF
        elif tag == "tr" and not depth:
            self._begin_row()
        elif tag == "tblHeader" and not depth:
            self._has_titles = value not in _OFF
        elif tag in ("gridBefore", "gridAfter") and not depth:
            self._across = self._across or value != "0"
        elif tag in ("gridSpan", "hMerge") and depth == 1:
            self._across = self._across or value != "1"
        elif tag == "vMerge" and depth == 1:
            self._goes_on = value != "restart"
        elif tag == "tc" and depth == 1:
            self._across = self._across or attributes.get("gridSpan", "1") != "1"
            self._goes_on = attributes.get("vMerge", "0") not in _OFF
            self._hidden = attributes.get("hMerge", "0") not in _OFF

    def end_cell(self, said: str) -> None:
        self._says = self._says or bool(said)
        at = len(self._cells)
        if self._goes_on and not said and at < len(self._above):
            said = self._above[at]
        if said or not self._hidden:
            self._cells.append(said)

    def end_row(self) -> str:
        """Return the row's line, below titles behind the rule; nothing of an empty row."""
        is_first, self._rows = not self._rows, self._rows + 1
        cells = self._cells
        self._above = [] if self._across or self._has_titles else [repeated(cell) for cell in cells]
        if not self._says:
            return ""
        if self._has_titles:
            is_head = is_first and not self._across and len(cells) > 1
            self._rule = len(cells) if is_head else 0  # of two rows of titles none is
            return _line(cells, escaped=is_head).lstrip("| ") if is_head else _line(cells)
        rule, self._rule = self._rule, 0
        self._titles = self._titles or rule
        if self._across and len(cells) == self._titles:
            cells = [*cells, ""]  # no cell stands below the title of another column
        ruled = " | ".join(["---"] * rule) + "\n" if rule else ""
        return ruled + _line(cells, escaped=bool(self._titles))

    def end(self) -> str:
        """Return what stands behind the table: below titles the next one's rows are none of its own."""
        return "\n" if self._titles else ""


def _line(cells: Sequence[str], *, escaped: bool = False) -> str:
    said = [cell.replace("|", "\\|") if escaped else cell for cell in cells]
    return " ".join(" | ".join([*said, ""]).split()).removesuffix("|").strip() + "\n"
