"""Find where blocks, drawers and LaTeX's environments end; what nothing closes is none."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

CODE = frozenset(("src", "example"))
EXPORTED = frozenset(("export", "html", "latex", "beamer", "texinfo", "odt", "ascii", "markdown", "md"))
UNSEEN = frozenset(("comment", "properties", "logbook"))
ENVIRONMENT, DRAWER = "\\begin", ":"
_WHOLE = CODE | EXPORTED | UNSEEN | {ENVIRONMENT}
HEADING = re.compile(r"\*+ ")
_BEGINS = re.compile(r"\*+ |[ \t]*(?:#\+|:\S|\\begin)")  # what may begin or end something
_BEGIN = re.compile(r"[ \t]*#\+begin_(\S+)[ \t]*(.*)", re.I)
_END = re.compile(r"[ \t]*#\+end_(\S+)[ \t]*$", re.I)
_DRAWER = re.compile(r"[ \t]*:([\w-]+):[ \t]*$")
_ENVIRONMENT = re.compile(r"[ \t]*\\begin\{([A-Za-z0-9]+\*?)\}")
_ENDS_ENVIRONMENT = re.compile(r"\\end\{([A-Za-z0-9]+\*?)\}[ \t]*$")


@dataclass(frozen=True, slots=True)
class Span:
    """Lines that belong together, or that end where a container does."""

    kind: str
    end: int  # the last line
    options: str = ""

    @property
    def whole(self) -> bool:
        """Return whether the lines are no paragraphs, lists and so on."""
        return self.kind in _WHOLE

    @property
    def exports_markdown(self) -> bool:
        name = self.options.partition(" ")[0] if self.kind == "export" else self.kind
        return name.lower() in ("md", "markdown", "gfm")


class _Places:
    """The numbers of the lines that begin, end or divide something, by what."""

    def __init__(self, lines: list[str]) -> None:
        self._of: dict[str, list[int]] = defaultdict(list)
        for number, line in enumerate(lines):
            for mark in _marks(line):
                self._of[mark].append(number)

    def next(self, mark: str, number: int) -> int:
        """Return the next line behind one, or a very high number."""
        places = self._of.get(mark, [])
        found = bisect_right(places, number)
        return places[found] if found < len(places) else 2**62


def _marks(line: str) -> Iterable[str]:
    if HEADING.match(line):
        return ("heading",)
    if "\\end{" not in line and not _BEGINS.match(line):
        return ()
    if "\\end{" in line and (found := _ENDS_ENVIRONMENT.search(line.rstrip()[-60:])):
        return (f"end {found[1]}",)
    if found := _END.match(line):
        return (f"end {found[1].lower()}",)
    if found := _BEGIN.match(line):
        return (f"begin {found[1].lower()}",)
    if found := _DRAWER.match(line):
        return ("end :",) if found[1].lower() == "end" else ()
    return ()


def spans(lines: list[str]) -> dict[int, Span]:
    """Return what spans several lines, by the number of its first line."""
    places = _Places(lines)
    found: dict[int, Span] = {}
    containers = _Containers(found)
    at = 0
    while at < len(lines):
        span = None
        if _BEGINS.match(lines[at]):
            span = _whole(lines[at], at, places)
            if span:
                found[at] = span
            else:
                containers.take(at, lines[at])
        at = span.end + 1 if span else at + 1
    return found


def _whole(line: str, at: int, places: _Places) -> Span | None:
    """Return the block, drawer or environment that begins in a line, if what is in it is not read as Org."""
    heading = places.next("heading", at)
    if begin := _BEGIN.match(line):
        kind = begin[1].lower()
        end = places.next(f"end {kind}", at)
        # A heading's mark may stand in code, but not where the block was left open
        closed = end < heading or places.next(f"begin {kind}", heading) > end
        span = Span(kind, end, begin[2])
        return span if span.whole and end < 2**62 and closed else None
    if (drawer := _DRAWER.match(line)) and drawer[1].lower() in UNSEEN:
        end = places.next("end :", at)
        return Span(drawer[1].lower(), end) if end < heading else None
    if environment := _ENVIRONMENT.match(line):
        end = places.next(f"end {environment[1]}", at - 1)
        return Span(ENVIRONMENT, end) if end < heading else None
    return None


class _Containers:
    """Pairs the lines around paragraphs, lists and so on; a heading ends them all."""

    def __init__(self, found: dict[int, Span]) -> None:
        self._found = found
        self._open: list[tuple[int, str, str]] = []
        self._kinds: Counter[str] = Counter()

    def take(self, at: int, line: str) -> None:
        if HEADING.match(line):
            self._open, self._kinds = [], Counter()
        elif begin := _BEGIN.match(line):
            self._begin(at, begin[1].lower(), begin[2])
        elif end := _END.match(line):
            self._end(at, end[1].lower())
        elif drawer := _DRAWER.match(line):
            is_end = drawer[1].lower() == "end"
            self._end(at, DRAWER) if is_end else self._begin(at, DRAWER, "")

    def _begin(self, at: int, kind: str, options: str) -> None:
        self._open.append((at, kind, options))
        self._kinds[kind] += 1

    def _end(self, at: int, kind: str) -> None:
        while self._kinds[kind]:
            begun, last, options = self._open.pop()
            self._kinds[last] -= 1
            if last == kind:
                self._found[begun] = Span(kind, at, options)
                return
