"""Find blocks of code between fences, in lists and quotations too; underlines of headings are no fences."""

from __future__ import annotations

import re
from collections.abc import Callable

OPENING = re.compile(
    r"^(?P<before>(?:[ \t>]|(?:[-*+]|\d{1,9}[.)])[ \t])*+)(?P<bars>`{3,}+(?=[^`\n]*$)|~{3,}+)", re.M
)
_EMPTY_BEHIND = re.compile(r"[ \t]*(?:\n[ \t]*(?=\n|\Z)|\Z)")
_SHORTEST_UNDERLINE = {"`": 4, "~": 3}  # ``` below a short line opens code in Markdown


def end_of(text: str, opening: re.Match[str]) -> int | None:
    """Return where the block of an opening fence ends: behind a fence of the same marks that is as long,
    where the quotation ends, or with the text; None where the line underlines a heading."""
    if _underlines(text, opening):
        return None
    bars = opening["bars"]
    before, unquoted = (r"[ \t>]", r"|^(?![ \t]*>)") if ">" in opening["before"] else (r"[ \t]", "")
    closing = rf"^{before}*+{bars[0]}{{{len(bars)},}}+[ \t]*$"
    found = re.compile(closing + unquoted, re.M).search(text, opening.end())
    return found.end() if found else len(text)


def replaced(text: str, instead: Callable[[str], str]) -> str:
    """Return a text with something else for each of its blocks."""
    parts = []
    kept = at = 0  # up to where the text is in the parts, and where to look on
    while found := OPENING.search(text, at):
        end = end_of(text, found)
        at = found.end() if end is None else end
        if end is not None:
            parts += [text[kept : found.start()], instead(text[found.start() : end])]
            kept = end
    return "".join([*parts, text[kept:]])


def without(text: str) -> str:
    """Return a text with an empty line for each of its blocks."""
    return replaced(text, lambda block: "\n")


def _underlines(text: str, opening: re.Match[str]) -> bool:
    """Return whether bars stand below a title of reStructuredText, one line, no longer than they are, and
    above an empty line."""
    bars = opening["bars"]
    if opening["before"] or not _EMPTY_BEHIND.match(text, opening.end()):
        return False
    if len(bars) < _SHORTEST_UNDERLINE[bars[0]]:
        return False
    title, begin = _line_before(text, opening.start())
    above, _ = _line_before(text, begin)
    alone = not above.strip() or above.startswith("..")
    begins = title.lstrip("#")[:1]  # nothing in a line of # only, a space in one of Markdown's headings
    return alone and len(title.rstrip()) <= len(bars) and begins not in "`~ \t" and title[-1:] != ":"


def _line_before(text: str, at: int) -> tuple[str, int]:
    """Return the line that ends before a place where another one begins, and where it begins."""
    begin = text.rfind("\n", 0, max(0, at - 1)) + 1
    return text[begin : max(0, at - 1)], begin
