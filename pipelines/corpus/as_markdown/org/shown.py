"""What a page shows for links without a text, for macros and for dates."""

from __future__ import annotations

import re

from pipelines.corpus.as_markdown.org.settings import Settings

MOST = 300_000  # characters by which macros and titles that links call may lengthen a page
_PLACE = r"(?:file:|attachment:|https?:|[.~]{0,2}/)"
_KIND = r"\.(?:png|jpe?g|gif|svg|webp|avif|tiff?|bmp|eps)"
_PICTURE = re.compile(rf"(?:{_PLACE}[^\n]*|[^\s:]*){_KIND}", re.I)
_PICTURE_FOR_TEXT = re.compile(rf"\s*{_PLACE}\S*{_KIND}\s*", re.I)
_ADDRESS = re.compile(r"(?:https?|ftp|news|gopher|ircs?):\S+|mailto:(\S+)", re.I)
_FILE = re.compile(r"(?:file(?:\+\w+)?:|attachment:|docview:)(.*)|(?=[.~]{0,2}/)(.+)")
_ESCAPED = re.compile(r"\\([\[\]\\])")
_CANNOT_KNOW = frozenset(("time", "modification-time", "input-file", "property", "keyword", "n"))
_ARGUMENT = re.compile(r"\$(\d)")
_COMMA = re.compile(r"(?<!\\),")
_DATE = (
    r"(\d{4}-\d\d-\d\d)(?:\s+[^\W\d_]{1,12}\.?)?(?:\s+(\d?\d:\d\d(?:-\d?\d:\d\d)?))?"
    r"(?:\s+(?:[.+]?\+|--?)\d+[hdwmy](?:/\d+[hdwmy])?)*[ \t]*"
)
_STAMP = re.compile(rf"<{_DATE}>|\[{_DATE}\]")


class Shown:
    """What stands for something that is named elsewhere in the page."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._left = MOST

    def title(self, target: str) -> str | None:
        """Return the title of the heading that a link calls, by its words or its id, as it is written."""
        if target[:1] == "*" and target[1:].strip():
            return " ".join(target[1:].split())
        title = self._settings.titles.get(target)
        return title if title is not None and self._affords(len(title) - len(target)) else None

    def is_block(self, name: str) -> bool:
        """Return whether a block has this name, so that a line may call it."""
        return name in self._settings.blocks

    def link(self, target: str) -> str:
        """Return what a link without a text shows, in Markdown: nothing for a picture."""
        target = self._unabridged(_ESCAPED.sub(r"\1", " ".join(target.split())))
        if _PICTURE.fullmatch(target):
            return ""
        if address := _ADDRESS.fullmatch(target):
            return f"<{address[1] or target}>"
        if file := _FILE.match(target):
            path, _, _ = (file[1] or file[2] or "").partition("::")
            return path or target
        return target[1:] if target[:1] == "#" and target[1:] else target

    def macro(self, name: str, arguments: str | None) -> str | None:
        """Return what Org puts in place of a macro: its arguments, where the page does not define it."""
        template = self._settings.macros.get(name.lower())
        if template is None or template.startswith("(eval"):
            known = arguments is not None and name.lower() not in _CANNOT_KNOW
            return (arguments or "").replace("\\,", ",") if known else None
        given = arguments or ""
        grown = len(template) - len(name)
        if grown <= self._left:
            grown += len(given) * (len(_ARGUMENT.findall(template)) - 1)
        if not self._affords(grown):
            return None
        parts = [part.replace("\\,", ",") for part in _COMMA.split(given)]
        return _ARGUMENT.sub(lambda found: _argument(parts, int(found[1])), template)

    def _unabridged(self, target: str) -> str:
        name, colon, rest = target.partition(":")
        template = self._settings.links.get(name) if colon else None
        if template is None or not self._affords(len(template)):
            return target
        return template.replace("%s", rest, 1) if "%s" in template else template + rest

    def _affords(self, grown: int) -> bool:
        self._left -= max(0, grown)
        return self._left >= 0


def _argument(parts: list[str], number: int) -> str:
    if number == 0:
        return ",".join(parts)
    return parts[number - 1] if number <= len(parts) else ""


def is_picture(text: str) -> bool:
    """Return whether a link has a picture in place of a text."""
    return bool(_PICTURE_FOR_TEXT.fullmatch(text))


def date_at(text: str, at: int, limit: int) -> tuple[str, int] | None:
    """Return the date and time that stand here, or the first and the last of several days, and their end."""
    first = _STAMP.match(text, at, limit)
    if first is None:
        return None
    last = _STAMP.match(text, first.end() + 2, limit) if text.startswith("--", first.end()) else None
    said = _date(first) + (f"–{_date(last)}" if last else "")
    return said, (last or first).end()


def _date(stamp: re.Match[str]) -> str:
    return " ".join(filter(None, stamp.groups()))
