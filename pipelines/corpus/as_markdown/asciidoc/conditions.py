"""Follow AsciiDoc's attributes, and leave out what depends on those that a site's reader has not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST = 1000  # characters of an attribute's value
MOST = 200_000  # characters that attributes and titles put into a page
_ATTRIBUTE = re.compile(r":(!?)([A-Za-z0-9_][\w-]*)(!?):(?:[ \t]+(.*))?$")
_CONDITION = re.compile(r"(ifdef|ifndef|ifeval|endif)::([^\s\[\]]*)\[(.*)\][ \t]*$")
_INCLUDED = re.compile(r"include::[^\s\[\]][^\[\]]*\[.*\][ \t]*$")
_PASSED = re.compile(r"pass:[a-z,]{0,20}\[(.*)\]$")
_REFERENCE = re.compile(r"\{([A-Za-z0-9_][\w-]*)\}")
_CHARACTERS = {
    "amp": "&", "apos": "'", "asterisk": "*", "backslash": "\\", "backtick": "`", "blank": "", "brvbar": "¦",
    "caret": "^", "cpp": "C++", "cxx": "C++", "deg": "°", "empty": "", "endsb": "]", "gt": ">", "ldquo": "“",
    "lsquo": "‘", "lt": "<", "nbsp": " ", "pp": "++", "plus": "+", "quot": '"', "rdquo": "”", "rsquo": "’",
    "sp": " ", "startsb": "[", "tilde": "~", "two-colons": "::", "two-semicolons": ";;", "vbar": "|",
    "wj": "", "zwsp": "",
}  # fmt: skip


class Attributes:
    """What names stand for, in the order in which a page sets them."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.unset: set[str] = set()
        self._left = MOST

    def takes(self, line: str) -> bool:
        """Return whether a line sets or unsets an attribute, which it then does."""
        found = _ATTRIBUTE.match(line)
        if not found:
            return False
        before, name, after, value = found.groups()
        name = name.lower()
        if before or after:
            self.values.pop(name, None)
            self.unset.add(name)
        else:
            self.values[name] = self.replaced(_PASSED.sub(r"\1", (value or "").strip()))[:LONGEST]
            self.unset.discard(name)
        return True

    def replaced(self, text: str) -> str:
        """Return a text with what its attributes stand for; unknown ones stay."""
        return _REFERENCE.sub(self._value, text) if "{" in text else text

    def affords(self, count: int) -> bool:
        """Return whether a page may still grow by so many characters."""
        self._left -= count
        return self._left >= 0

    def _value(self, found: re.Match[str]) -> str:
        name = found[1].lower()
        value = self.values.get(name, _CHARACTERS.get(name))
        if value is None or found.string[found.start() - 1 : found.start()] == "\\":
            return found[0]
        return value if self.affords(len(value)) else found[0]

    def holds(self, test: str, names: str) -> bool | None:
        """Return whether a condition holds; None where the page does not say."""
        known = [self._is_set(name) for name in re.split(r"[,+]", names.lower())]
        decisive = "+" not in names  # one that is set; where a + joins them one that is not
        if decisive not in known and None in known:
            return None
        holds = decisive if decisive in known else not decisive
        return holds if test == "ifdef" else not holds

    def _is_set(self, name: str) -> bool | None:
        if name in self.values or name in ("backend-html5", "basebackend-html"):
            return True
        if name in self.unset or name.startswith(("env-", "backend-", "basebackend-")):
            return False
        return None


def shown_lines(lines: list[str]) -> Iterator[str]:
    """Yield the lines that hold under a page's own attributes, without directives; in doubt a line stays."""
    attributes = Attributes()
    hidden: list[bool] = []  # of the conditions that are open
    depth = 0  # of those, how many hide
    for line in _joined(lines):
        if found := _CONDITION.match(line) if "::" in line else None:
            test, names, inline = found.groups()
            if test == "endif":
                depth -= hidden.pop() if hidden else 0
            elif inline and test != "ifeval":
                if not depth and attributes.holds(test, names) is not False:
                    yield inline
            else:
                hides = test != "ifeval" and attributes.holds(test, names) is False
                hidden.append(hides)
                depth += hides
        elif not depth and not _INCLUDED.match(line):
            attributes.takes(line)
            yield line.removeprefix("\\") if line.startswith("\\") and _is_directive(line[1:]) else line


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, a value of several as one."""
    begun = ""
    for line in lines:
        goes_on = line.endswith(" \\") and (begun or _ATTRIBUTE.match(line))
        if goes_on:
            begun += line[:-1]
        else:
            yield begun + line.lstrip() if begun else line
            begun = ""
    if begun:
        yield begun


def _is_directive(line: str) -> bool:
    return bool(_CONDITION.match(line) or _INCLUDED.match(line))
