"""Write lines of Markdown, in the lists and quotations that they stand in."""

from __future__ import annotations

from dataclasses import dataclass, field

DEEPEST = 12  # quotations within one another


@dataclass(frozen=True, slots=True)
class _Item:
    indent: int  # of its bullet
    prefix: str  # of its lines


@dataclass(slots=True)
class _Level:
    """A block, or the page, and the lists in it that are open."""

    end: int  # its last line
    prefix: str = ""
    quote: str = ""  # what stands before an empty line
    items: list[_Item] = field(default_factory=list)


class Written:
    """What is written, and where the next line belongs."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._gap = False  # an empty line comes before the next one
        self._quote = ""  # of the last line
        self._levels = [_Level(-1)]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n" if self._lines else ""

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    @property
    def prefix(self) -> str:
        """Return what stands before a line."""
        level = self._levels[-1]
        return level.items[-1].prefix if level.items else level.prefix

    @property
    def end(self) -> int:
        """Return the line that ends the innermost block."""
        return self._levels[-1].end

    def gap(self) -> None:
        """Ask for an empty line before the next one."""
        self._gap = True

    def add(self, line: str, lead: str | None = None) -> None:
        """Write a line, with what stands before it."""
        quote = self._levels[-1].quote
        if self._gap and self._lines:
            self._lines.append(min(quote, self._quote, key=len))
        self._gap, self._quote = False, quote
        self._lines.append((self.prefix if lead is None else lead) + line if line or lead else quote)

    # Lists and blocks

    def leaves(self, indent: int) -> bool:
        """Return whether a line of this indentation is not in the innermost list."""
        items = self._levels[-1].items
        return bool(items) and items[-1].indent >= indent

    def place(self, indent: int) -> bool:
        """End the lists that a line of this indentation is not in; return whether there was one."""
        items = self._levels[-1].items
        before = len(items)
        while items and items[-1].indent >= indent:
            items.pop()
        return len(items) < before

    def item(self, indent: int, bullet: str) -> str:
        """Begin an item; return what stands before its first line."""
        self.place(indent)
        lead = f"{self.prefix}{bullet} "
        self._levels[-1].items.append(_Item(indent, self.prefix + " " * (len(bullet) + 1)))
        return lead

    def end_lists(self) -> None:
        self._levels[-1].items.clear()

    def begin(self, end: int, quoted: bool) -> None:
        """Begin a block that a line ends."""
        prefix, quote = self.prefix, self._levels[-1].quote
        if quoted and len(self._levels) <= DEEPEST:
            prefix, quote = f"{prefix}> ", f"{prefix}>"
        self._levels.append(_Level(end, prefix, quote))

    def close(self) -> None:
        """End the innermost block."""
        self._levels.pop()

    def close_all(self) -> None:
        self._levels = [_Level(-1)]
