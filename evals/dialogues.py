"""Read what a row asks: a "prompt" text, or chat "messages" with earlier turns, a system turn and tools.

The last turn needs an answer. If the last turns are the assistant's, the last of them is the row's response,
unless it calls tools, and the turns before all of them are asked. Tool schemas in "tools" are attached to the
first message, where the chat encoder reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from recovery import untrusted_json
from recovery.errors import InputError

Messages = list[dict[str, Any]]
TURN_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "tools")
ANSWERABLE = ("user", "tool")  # roles that an assistant turn answers


@dataclass(frozen=True)
class Dialogue:
    """The turns to answer, and the answer that the row gives, if any."""

    messages: Messages
    response: str = ""


def read(row: Mapping[str, Any], where: str) -> Dialogue:
    """Return a row's turns; InputError, with the place, where it has neither prompt nor messages."""
    found = find(row, where)
    if found is None:
        raise InputError(f"{where}: expected a `prompt` text or `messages` with a user turn")
    return found


def find(row: Mapping[str, Any], where: str) -> Dialogue | None:
    """Return a row's turns; None where it has neither prompt nor messages."""
    tools = _tools(row.get("tools"), where)
    text = row.get("prompt")
    if isinstance(text, str) and text.strip():
        return Dialogue(_with_tools([{"role": "user", "content": text}], tools))
    found = _dialogue(row.get("messages"), where)
    return found and Dialogue(_with_tools(found.messages, tools), found.response)


def contents(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of all turns."""
    return "\n".join(message.get("content") or "" for message in messages)


def asked_texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the text of all turns, and that of the last user turn: behind a system turn it asks the same."""
    user_turns = [message for message in messages if message.get("role") == "user"]
    found = (contents(messages), contents(user_turns[-1:]))
    return list(dict.fromkeys(filter(str.strip, found)))


def shown(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a dialogue as text for people: one user turn as it is, several turns under their roles."""
    tools = [_name(tool) for message in messages for tool in message.get("tools") or ()]
    if len(messages) == 1 and messages[0]["role"] == "user" and not tools:
        return str(messages[0]["content"])
    parts = [f"[tools]\n{', '.join(tools)}"] if tools else []
    for message in messages:
        calls = [_name(call) for call in message.get("tool_calls") or ()]
        called = [f"(calls {', '.join(calls)})"] if calls else []
        text = message.get("content") or ""
        parts.append("\n".join([f"[{message['role']}]", *([text] if text else []), *called]))
    return "\n\n".join(parts)


def _name(tool: Any) -> str:
    """Return the function's name in a tool's schema or call."""
    function = tool.get("function", tool) if isinstance(tool, dict) else {}
    return str(function.get("name", "?")) if isinstance(function, dict) else "?"


def _dialogue(value: Any, where: str) -> Dialogue | None:
    """Return the turns up to the last one that needs an answer, and the answer; None if invalid."""
    turns = [_turn(entry, where) for entry in value] if isinstance(value, list) else []
    if not turns or any(turn is None for turn in turns):
        return None
    messages: Messages = [turn for turn in turns if turn is not None]
    answers: Messages = []  # the last of them first
    while messages and messages[-1]["role"] not in ANSWERABLE:
        dropped = messages.pop()
        answers += [dropped] if dropped["role"] == "assistant" else []
    asks = any(turn["role"] == "user" and turn["content"].strip() for turn in messages)
    return Dialogue(messages, _text_response(answers[:1])) if asks else None


def _text_response(answers: Messages) -> str:
    """Return the text of a row's last answer; none where the answer is, in part at least, a tool call."""
    return "".join(turn["content"] for turn in answers if not turn.get("tool_calls"))


def _turn(entry: Any, where: str) -> dict[str, Any] | None:
    """Return a message with the fields that chat templates read; None without text and tool calls."""
    if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
        return None
    turn = {name: entry[name] for name in TURN_FIELDS if entry.get(name) is not None}
    if isinstance(turn.get("content"), list):
        turn["content"] = _joined_parts(turn["content"])
    if turn.get("tool_calls"):
        turn["tool_calls"] = _calls(turn["tool_calls"], where)
    if turn.get("tools"):
        turn["tools"] = _tools(turn["tools"], where)
    if turn.get("content") is None and turn.get("tool_calls"):
        turn["content"] = ""
    return turn if isinstance(turn.get("content"), str) else None


def _calls(value: Any, where: str) -> list[Any]:
    """Return tool calls with their arguments as objects; refuse, with the place, what names no function."""
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(value, list) or not isinstance(name, str) or not name.strip():
            raise InputError(
                f"{where}: `tool_calls` must be a list of calls, each with the `name` of a function and its "
                f"`arguments`: {call!r:.80}"
            )
    return [_with_arguments(call) for call in calls]


def _with_arguments(call: dict[str, Any]) -> dict[str, Any]:
    """Return a tool call with its arguments as an object: logs of OpenAI's API hold them as JSON. Arguments
    that are missing or blank are none; those that are no JSON object stay, for the template to judge."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}
    with suppress(TypeError, ValueError):
        arguments = untrusted_json.parse_object(arguments)
    named = {**function, "arguments": arguments}
    return {**call, "function": named} if "function" in call else named


def _joined_parts(parts: list[Any]) -> str | None:
    """Join the text of a multi-part content; None if a part is not text."""
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return "\n".join(map(str, texts)) if texts and all(isinstance(text, str) for text in texts) else None


def _tools(value: Any, where: str) -> list[Any]:
    """Return tool schemas, given as a list or as its JSON text."""
    tools = parsed(value, where) if isinstance(value, str) and value.strip() else value
    if not tools:
        return []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise InputError(f'{where}: "tools" must be a list of tool schemas')
    return tools


def _with_tools(messages: Messages, tools: list[Any]) -> Messages:
    return [{**messages[0], "tools": tools}, *messages[1:]] if tools else messages


def parsed(text: str, where: str) -> Any:
    """Parse JSON; an error names the place."""
    try:
        return untrusted_json.parse(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
