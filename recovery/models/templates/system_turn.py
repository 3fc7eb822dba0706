"""Fold a system turn into the first user turn, for templates that have none."""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def folded(messages: list[Message]) -> list[Message]:
    """Prepend the system turn to the first user turn."""
    system, *turns = messages
    for index, turn in enumerate(turns):
        if turn["role"] == "user":
            tools = [*(system.get("tools") or ()), *(turn.get("tools") or ())]
            turns[index] = {**turn, "content": f"{system['content']}\n\n{turn['content']}", "tools": tools}
            return turns
    return messages
