"""What every writer offers, and what it writes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

CUT_OFF = "cut off"
REFUSED = "refused by the endpoint"
TOO_LONG = "too long for the writer"


class Text(NamedTuple):
    """A written text; `flaw` is CUT_OFF where it does not end.

    There is none where an endpoint refuses, for a reason (REFUSED), or a model cannot read what is asked
    (TOO_LONG).
    """

    said: str
    flaw: str | None = None
    reason: str = ""

    @property
    def says_something(self) -> bool:
        return bool(self.said.strip())

    @property
    def whole_lines(self) -> str:
        """Return the text without the line in which it was cut off."""
        return self.said.rpartition("\n")[0] if self.flaw else self.said


class Writer(Protocol):
    """`name` identifies the writer in a cache; `at_once` says how many requests are under way together.

    `together` says that a text depends on what else is requested in the same call.
    """

    name: str
    at_once: int
    together: bool

    def write(self, requests: Sequence[str]) -> Iterable[tuple[int, Text]]:
        """Yield the place of each request with its text, as it is there."""
        ...


def is_endpoint(writer: str) -> bool:
    """Return whether a writer is named by its URL, and is no checkpoint of the home."""
    return writer.startswith(("http://", "https://"))
