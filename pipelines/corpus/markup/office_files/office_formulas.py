"""Follow a formula of Word or PowerPoint: give its brackets, and say whether a line can show it."""

from __future__ import annotations

from pipelines.corpus.markup.office_files.xml_names import Attributes, value
from pipelines.corpus.markup.parts import names

_SHOWN_BY_NO_LINE = names("nary m eqArr limLow limUpp groupChr acc bar sPre")
_BRACKETS = {"begChr": "(", "sepChr": "|", "endChr": ")"}  # where a file names no others


class OfficeFormula:
    """An open formula."""

    def __init__(self, first: int) -> None:
        self.first = first  # its first part in the line
        self.depth = 0  # of open elements; 0: it has ended
        self.is_left_out = False
        self._brackets: list[tuple[int, dict[str, str]]] = []  # of open pairs, behind their depth

    def begin(self, tag: str, attributes: Attributes) -> str:
        """Note an element that begins; return the bracket or the sign between terms that comes before it."""
        self.depth += 1
        if tag in _SHOWN_BY_NO_LINE or (tag == "type" and value(attributes, "val") == "noBar"):
            self.is_left_out = True
        elif tag == "d":
            self._brackets.append((self.depth, dict(_BRACKETS)))
        elif tag in _BRACKETS and self._brackets:
            self._brackets[-1][1][tag] = value(attributes, "val")
        elif tag == "e" and self._brackets and self._brackets[-1][0] == self.depth - 1:
            signs = self._brackets[-1][1]
            return signs.pop("begChr", signs["sepChr"])
        return ""

    def end(self, tag: str) -> str:
        """Note an element that ends; return the bracket that closes with it."""
        self.depth -= 1
        return self._brackets.pop()[1]["endChr"] if tag == "d" and self._brackets else ""
