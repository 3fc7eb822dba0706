"""Bring the rows of prompt files into one layout: a "prompt" text or "messages", with a "response" if any.

Beside these two, rows may be laid out as in Alpaca ("instruction", "input", "output"), as in Self-Instruct
("instruction", and "instances" of inputs and outputs, of which the first counts) or as in ShareGPT
("conversations" of turns with "from" and "value"). A "system" prompt beside an instruction or a
conversation is its first turn. Of rows with both a prompt and messages, prompt_sources
reads the messages where they repeat the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = ("prompt", "messages", "instruction", "conversations")  # a row holds one of them; the first counts
EXPECTED = (
    "a `prompt`, `messages`, `instruction` (with `input`, `output`) or `conversations` (`from`, `value`)"
)
ALPACA = ("instruction", "input", "output")
SELF_INSTRUCT = "instances"
SYSTEM = "system"
INSTRUCTED = (*ALPACA, SELF_INSTRUCT)  # what a row with an instruction may hold
TEXTS = ("prompt", "response", SYSTEM, *ALPACA)  # fields that hold text, whatever it looks like
ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}


def in_one_layout(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of any accepted layout with "prompt" or "messages"; any other row as it is."""
    layout = next((name for name in NAMES if row.get(name)), "")
    if layout in ("messages", "conversations"):
        rest = {name: value for name, value in row.items() if name != layout}
        found = {**rest, "messages": _turns(row[layout])}
        return _led(found) if layout == "conversations" else found
    if layout == "instruction":
        rest = {name: value for name, value in row.items() if name not in INSTRUCTED}
        row = {**_first_instance(row), **row}
        asked = [_text(row, name) for name in ("instruction", "input")]
        answer = _text(row, "output")
        given = {"response": answer} if answer.strip() else {}
        return _led({**given, **rest, "prompt": "\n\n".join(filter(str.strip, asked))})
    return dict(row)


def _led(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose system prompt, if it has one, is its first turn, unless its turns have their own."""
    system = row.get(SYSTEM)
    if not isinstance(system, str) or not system.strip():
        return row
    rest = {name: value for name, value in row.items() if name not in (SYSTEM, "prompt", "messages")}
    turns = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
    if not isinstance(turns, list):
        return row
    roles = [turn.get("role") for turn in turns if isinstance(turn, dict)]
    lead = [] if SYSTEM in roles[:1] else [{"role": SYSTEM, "content": system}]
    return {**rest, "messages": [*lead, *turns]}


def _first_instance(row: Mapping[str, Any]) -> dict[str, Any]:
    instances = row.get(SELF_INSTRUCT)
    first = instances[0] if isinstance(instances, list) and instances else None
    return first if isinstance(first, dict) else {}


def as_text(value: Any) -> Any:
    """Return a number as text; any other value as it is."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _text(row: Mapping[str, Any], name: str) -> str:
    value = as_text(row.get(name))
    return value if isinstance(value, str) else ""


def _turns(value: Any) -> Any:
    return [_turn(entry) for entry in value] if isinstance(value, list) else value


def _turn(entry: Any) -> Any:
    """Return a turn with "role" and "content"; an unknown speaker becomes no role, which readers refuse."""
    if not isinstance(entry, dict) or "from" not in entry or "role" in entry:
        return entry
    return {"role": ROLES.get(str(entry["from"]).lower()), "content": entry.get("value")}
