"""Tell where text of an OpenDocument file's styles stands: raised, lowered or nowhere."""

from __future__ import annotations

from pipelines.corpus.markup.office_files.xml_names import Attributes, local, value
from pipelines.corpus.markup.raised import LOWERED, RAISED

HIDDEN = "hidden"
MOST_PARENTS = 16  # styles of which one is made


class Styles:
    """Where text of each style stands; collects that as the parser's target."""

    def __init__(self) -> None:
        self._places: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._open = ""

    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        tag = local(name)
        if tag == "style":
            self.begin(attributes)
        elif tag == "text-properties":
            self.note(attributes)

    def EndElementHandler(self, name: str) -> None:
        if local(name) == "style":
            self.end()

    def begin(self, attributes: Attributes) -> None:
        family = value(attributes, "family")
        self._open = f"{family} {value(attributes, 'name')}"
        self._parents[self._open] = f"{family} {value(attributes, 'parent-style-name')}"

    def end(self) -> None:
        self._open = ""

    def note(self, attributes: Attributes) -> None:
        """Note where text of the open style stands, if it says so."""
        place = value(attributes, "text-position").partition(" ")[0]
        if not self._open:
            return
        if value(attributes, "display") == "none":
            self._places[self._open] = HIDDEN
        elif place == "sub" or place.startswith("-"):
            self._places[self._open] = LOWERED
        elif place:
            self._places[self._open] = RAISED if place == "super" or place.strip("0%") else ""

    def place(self, style: str, otherwise: str) -> str:
        """Return where text of a style stands, or of the style that it is made of."""
        for _ in range(MOST_PARENTS):
            if style in self._places:
                return self._places[style]
            style = self._parents.get(style, "")
        return otherwise
