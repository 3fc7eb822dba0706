"""Read elements and attributes by their names, which expat gives behind their namespace and a space."""

from __future__ import annotations

from collections.abc import Mapping

Attributes = Mapping[str, str]


def local(name: str) -> str:
    """Return a name without its namespace."""
    return name.rpartition(" ")[2]


def value(attributes: Attributes, name: str) -> str:
    """Return what the attribute of this name says, in whatever namespace; nothing where there is none."""
    return next((value for key, value in attributes.items() if local(key) == name), "")
