"""Put into reStructuredText what substitutions stand for: |name|, as a file or a site's settings define it.

What only the settings know, as `|release|`, or is no text, as a picture, is shown as a part left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from pipelines.corpus.markup.parts import LEFT_OUT

_DEFINED = re.compile(r"[ \t]*\.\. +\|(?=\S)([^|\n]+)(?<=\S)\| +([\w-]+)::[ \t]*(.*)")
_REFERENCE = re.compile(
    r"``.+?``|`[^`]*`"  # code, roles and links
    r"|(?<![\w|\\])(?P<bar>\\?\|)(?=\S)(?P<name>[^|`\n]{1,100})(?<=[^\s\\])(?P=bar)_{0,2}(?![\w|])(?:\\ )?"
)
_NAME = re.compile(r"\w[\w.-]*\w")  # of one that the file does not define: bars may stand around a value
_NESTED = 3  # substitutions in one another
_LONGEST = 200  # characters of a text: many references to a long one would make a file grow
_MOST_LINES = 20  # of one


class Substitutions:
    """What the names of a file stand for."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._texts: dict[str, str] = {}
        for at, line in enumerate(lines):
            if found := _DEFINED.match(line):
                below = takewhile(_goes_on, lines[at + 1 : at + _MOST_LINES])
                said = " ".join(" ".join([found[3], *below]).split())
                self._texts[_key(found[1])] = said if found[2] == "replace" and said else LEFT_OUT
        for _ in range(_NESTED):
            texts = {name: self.put_in(said) for name, said in self._texts.items()}
            self._texts = {name: said if len(said) <= _LONGEST else LEFT_OUT for name, said in texts.items()}

    def put_in(self, line: str, *, cells: bool = False) -> str:
        """Return a line with what its references stand for, in a table's cells behind escaped bars; a
        definition stays."""
        if "|" not in line or _DEFINED.match(line):
            return line
        bar = "\\|" if cells else "|"
        return _REFERENCE.sub(lambda found: self._text(found) if found["bar"] == bar else found[0], line)

    def _text(self, found: re.Match[str]) -> str:
        unknown = LEFT_OUT if _NAME.fullmatch(found["name"]) else found[0]
        return self._texts.get(_key(found["name"]), unknown)


def _goes_on(line: str) -> bool:
    return line[:1] in (" ", "\t") and bool(line.strip())


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()
