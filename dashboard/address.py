"""Parse and build addresses. The address is the whole state of a page, so every view is a permalink."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

LONGEST = 4_096  # characters per value: the next page begins after a path or a key
LONGEST_URL = 40_000  # characters: a value of that length in a script of which each letter is nine of them
MOST = 30  # parameters
PROJECT = "project"  # the parameter that every link of a page keeps


@dataclass(frozen=True)
class Address:
    """A path and its parameters; invalid parameters count as missing."""

    path: str = "/"
    given: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str) -> Address:
        """Parse an address such as /cycle?n=3."""
        try:
            parts = urlsplit(url)
            pairs = parse_qsl(parts.query[:LONGEST_URL], max_num_fields=MOST)
        except ValueError:
            return cls()
        return cls(parts.path or "/", {key[:LONGEST]: value[:LONGEST] for key, value in pairs if value})

    def text(self, name: str, default: str = "") -> str:
        return self.given.get(name, default)

    def choice(self, name: str, options: Collection[str], default: str) -> str:
        """Return the parameter if it is one of the options, or the default."""
        return value if (value := self.given.get(name)) is not None and value in options else default

    def number(self, name: str, default: int | None = None) -> int | None:
        value = self.given.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else default

    def link(self, **changes: str | int | None) -> str:
        """Return this view's address with changed parameters; None removes one."""
        given = self.given | {name: str(value) for name, value in changes.items() if value is not None}
        return _url(
            self.path, {name: value for name, value in given.items() if changes.get(name, "") is not None}
        )

    def page(self, path: str, **parameters: str | int | None) -> str:
        """Return a page's address in the same project."""
        project = {PROJECT: self.given[PROJECT]} if PROJECT in self.given else {}
        given = {name: str(value) for name, value in parameters.items() if value is not None}
        return _url(path, project | given)


def _url(path: str, given: dict[str, str]) -> str:
    return path + (f"?{urlencode(given, errors='replace')}" if given else "")
