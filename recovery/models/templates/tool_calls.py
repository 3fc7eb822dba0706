"""Find the form of a tool call that a chat template writes: arguments as an object, or as JSON text.

Most templates write an object as JSON themselves. Some join the arguments to a text, as DeepSeek's do: these
need JSON, and refuse an object or write it as Python does. Some write a call only where the turn's content is
null, not where it is empty; some only beside schemas of tools, or with a template of its own for these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recovery.errors import InputError

Message = dict[str, Any]
NAME, KEY, VALUE = "toolname", "toolkey", "toolvalue"
CALL = {
    "id": "abcdefghi",  # Mistral's templates take nine letters or digits
    "type": "function",
    "function": {"name": NAME, "arguments": {KEY: VALUE}},
}
CALLING: tuple[Message, ...] = (
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": NAME, "content": "b", "tool_call_id": CALL["id"]},
)
SCHEMA = {  # of another tool: what it writes is no sign of the call
    "type": "function",
    "function": {
        "name": "another",
        "description": "c",
        "parameters": {
            "type": "object",
            "properties": {"d": {"type": "string", "description": "e"}},
            "required": ["d"],
        },
    },
}
WITH_TOOLS: tuple[Message, ...] = ({**CALLING[0], "tools": [SCHEMA]}, *CALLING[1:])


@dataclass(frozen=True)
class CallForm:
    """How tool calls reach a template."""

    json_arguments: bool = False
    null_content: bool = False  # of a turn that holds nothing but calls

    def applied(self, turns: Sequence[Message]) -> list[Message]:
        """Return the turns with their calls in this form; turns without calls stay as they are."""
        return [self._turn(turn) if turn.get("tool_calls") else turn for turn in turns]

    def _turn(self, turn: Message) -> Message:
        calls = turn["tool_calls"]
        if self.json_arguments:
            calls = [_with_json(call) for call in calls]
        content = None if self.null_content and not turn.get("content") else turn.get("content")
        return {**turn, "content": content, "tool_calls": calls}


FORMS = (
    CallForm(),
    CallForm(json_arguments=True),
    CallForm(null_content=True),
    CallForm(json_arguments=True, null_content=True),
)


class CallForms:
    """The forms of tool calls that a template writes, in dialogues with schemas of tools and without."""

    def __init__(self, render: Callable[[Sequence[Message]], str]) -> None:
        self._render = render

    def applied(self, turns: Sequence[Message]) -> Sequence[Message]:
        """Return the turns with their calls, if any, in the form that the template writes."""
        if not any(turn.get("tool_calls") for turn in turns):
            return turns
        form = self._beside_tools if any(turn.get("tools") for turn in turns) else self._alone
        return form.applied(turns)

    @cached_property
    def _beside_tools(self) -> CallForm:
        return self._first_written(WITH_TOOLS, CALLING)

    @cached_property
    def _alone(self) -> CallForm:
        return self._first_written(CALLING, WITH_TOOLS)

    def _first_written(self, *dialogues: Sequence[Message]) -> CallForm:
        """Return the first form in which a dialogue's call is written whole; the usual one if none is."""
        for dialogue in dialogues:
            for form in FORMS:
                with suppress(InputError):
                    if _writes_call(self._render(form.applied(dialogue))):
                        return form
        return FORMS[0]


def _writes_call(rendered: str) -> bool:
    """Return whether a text holds the call's name, and its argument neither as Python writes it nor as JSON
    within JSON."""
    whole = all(part in rendered for part in (NAME, KEY, VALUE))
    return whole and f"'{KEY}'" not in rendered and f'\\"{KEY}\\"' not in rendered


def _with_json(call: Any) -> Any:
    """Return a call with its arguments as JSON text."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return call
    named = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    return {**call, "function": named} if "function" in call else named
