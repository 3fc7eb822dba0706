"""A post-training method: one setting of all dials, which the rules allow. Does not import torch.

`recovery/methods/table.py` holds the settings that have names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from recovery.errors import InputError
from recovery.methods.dials import Dials
from recovery.methods.rules import check, refuse, suggest

OFF = ("none", "off", "false")  # YAML reads `off` as false
MAIN = ("states", "signal", "teacher", "context")  # the dials that each row of the table sets


@dataclass(frozen=True)
class Method(Dials):
    """One method; settings that are wrong or have no effect are refused."""

    def __post_init__(self) -> None:
        check(self)

    def samples(self, asked: int) -> int:
        """Return the answers to each prompt of a step: as many as asked for, but a whole group."""
        return max(asked, self.group_size)

    def row(self) -> dict[str, Any]:
        """Return the row of `recover methods`."""
        names = ("name", *MAIN, "rails", "source", "summary", "keeps")
        return {name: getattr(self, name) for name in names} | {"dials": self.further_dials()}

    def further_dials(self) -> dict[str, Any]:
        """Return the dials that differ from their default, beside the main ones."""
        return {
            name: getattr(self, name)
            for name, dial in dials().items()
            if name not in MAIN and getattr(self, name) != dial.default
        }


def dials() -> dict[str, Field[Any]]:
    """Return every dial by its name; the metadata hold its one-line documentation and its limits."""
    return {dial.name: dial for dial in fields(Method) if dial.metadata}


def dial_rows() -> list[dict[str, str]]:
    """Return every dial as text: its default, and what it does, with the names that it may have, if any."""
    rows = []
    for name, dial in dials().items():
        default = "by row" if name in MAIN else in_words(dial.default)
        choices = ", ".join(dial.metadata.get("choices", ()))
        what = f"{dial.metadata['doc']} ({choices})" if choices else dial.metadata["doc"]
        rows.append({"dial": name, "default": default, "what": what})
    return rows


def in_words(value: Any) -> str:
    """Format a dial's value as it is set."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def set_dials(method: Method, values: dict[str, Any]) -> Method:
    """Return the method with some dials changed; text is parsed ('none' or 'off' clears a clip)."""
    known = dials()
    for name in values:
        if name not in known:
            raise InputError(f"no dial is called {name!r}{suggest(name, known)}: use {', '.join(known)}")
    return replace(method, **{name: _parse(method, known[name], value) for name, value in values.items()})


def _parse(method: Method, dial: Field[Any], value: Any) -> Any:
    """Convert text to the dial's type; pass anything else on to the check of its limits."""
    if "None" in str(dial.type) and str(value).lower() in OFF:
        return None
    if not isinstance(value, str) or dial.type == "str":
        return value
    kind: Callable[[str], Any] = int if dial.type == "int" else float
    try:
        return kind(value)
    except ValueError:
        refuse(method, f"{dial.name}={value!r} is not {'a whole number' if kind is int else 'a number'}")
