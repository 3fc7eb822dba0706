"""Parse JSON of untrusted files and servers: every fault is a ValueError, and every text can be encoded."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Parse JSON; half characters, which JSON may spell and no encoding can write, become U+FFFD."""
    try:
        value = json.loads(text)
        return _whole(value) if _may_hold_halves(text) else value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


loads = parse  # as Python's json calls it, for code of others that is given this module


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse JSON that has to be an object."""
    value = parse(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def whole_characters(text: str) -> str:
    """Join the halves of a character, and replace a half without the other."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _may_hold_halves(text: str | bytes) -> bool:
    return b"\\u" in text if isinstance(text, bytes) else "\\u" in text


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [_whole(entry) for entry in value]
    if isinstance(value, dict):
        return {whole_characters(key): _whole(entry) for key, entry in value.items()}
    return value
