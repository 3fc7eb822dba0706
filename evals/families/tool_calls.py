"""Draw requests that one of the offered tools serves, and check the call.

Tool schemas reach the model through its chat template. An answer passes if it holds exactly one call, of the
right tool, with all of its arguments, none that the schema lacks, and each of the right type. Calls are read
in the forms that templates teach: a JSON object with a name and arguments (Hermes, Qwen, Llama, Granite,
Mistral), a tool's name before an object of arguments (Mistral, DeepSeek), and <function=name> with parameters
(Qwen-Coder).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evals.families import words
from evals.families.family import Question
from evals.families.json_answers import TYPES
from recovery import untrusted_json

Arguments = dict[str, Any]
Call = tuple[str, Arguments]
LONGEST = 20_000  # characters of an answer that are searched for calls
MOST_IN_VAIN = 50 * LONGEST  # characters read of values that turn out to be none, before giving up
OPENING = re.compile(r"[\[{](?:\s*[\[{])*")
FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class Untyped(str):
    """An argument written as bare text: its type is that of the schema, if it can be read so."""


@dataclass(frozen=True)
class Tool:
    """A tool: the types of its arguments, and requests that state a value for each."""

    name: str
    does: str
    arguments: dict[str, str]
    requests: tuple[str, ...]
    draw: Callable[[random.Random], Arguments]

    def schema(self) -> dict[str, Any]:
        """Return the schema as chat templates take it."""
        properties = {name: _property(name, kind) for name, kind in self.arguments.items()}
        parameters = {"type": "object", "properties": properties, "required": list(self.arguments)}
        function = {"name": self.name, "description": self.does, "parameters": parameters}
        return {"type": "function", "function": function}


def _property(name: str, kind: str) -> dict[str, Any]:
    described = {"description": f"The {name.replace('_', ' ')}."}
    if kind == "strings":
        return {"type": "array", "items": {"type": "string"}, **described}
    return {"type": kind, **described}


TOOLS = (
    Tool(
        "get_weather",
        "Get the weather forecast of a city.",
        {"city": "string", "days": "integer"},
        (
            "What will the weather be in {city} over the next {days} days?",
            "Forecast for {city}, {days} days, please.",
        ),
        lambda rng: {"city": rng.choice(words.CITIES), "days": rng.randint(2, 9)},
    ),
    Tool(
        "convert_currency",
        "Convert an amount of money.",
        {"amount": "number", "source": "string", "target": "string"},
        ("How much are {amount} {source} in {target}?", "Convert {amount} {source} to {target}."),
        lambda rng: (
            dict(zip(("source", "target"), rng.sample(("EUR", "USD", "JPY", "NOK"), 2), strict=True))
            | {"amount": rng.randint(10, 900) + 0.5}
        ),
    ),
    Tool(
        "set_timer",
        "Set a timer with a label.",
        {"minutes": "integer", "label": "string"},
        (
            "Set a timer of {minutes} minutes for the {label}.",
            "Remind me of the {label} in {minutes} minutes.",
        ),
        lambda rng: {"minutes": rng.randint(3, 90), "label": rng.choice(words.THINGS)},
    ),
    Tool(
        "send_message",
        "Send a text message to a contact.",
        {"recipient": "string", "text": "string"},
        ("Tell {recipient} that the {text} is here.", "Write to {recipient}: I found the {text}."),
        lambda rng: {"recipient": words.full_name(rng), "text": rng.choice(words.THINGS)},
    ),
    Tool(
        "book_table",
        "Book a table in a restaurant.",
        {"restaurant": "string", "people": "integer", "outdoors": "boolean"},
        (
            "Book a table for {people} at {restaurant}. Outdoors: {outdoors}.",
            "We are {people} and want to eat at {restaurant}; outdoor seats: {outdoors}.",
        ),
        lambda rng: {
            "restaurant": f"Chez {rng.choice(words.FIRST_NAMES)}",
            "people": rng.randint(2, 12),
            "outdoors": rng.random() < 0.5,
        },
    ),
    Tool(
        "add_to_list",
        "Add entries to a shopping list.",
        {"list_name": "string", "entries": "strings"},
        ("Put {entries} on my {list_name} list.", "Add {entries} to the list called {list_name}."),
        lambda rng: {
            "list_name": rng.choice(("weekend", "holiday", "office", "kitchen")),
            "entries": rng.sample(words.THINGS, rng.randint(2, 3)),
        },
    ),
    Tool(
        "find_route",
        "Find a route between two cities.",
        {"start": "string", "end": "string", "avoid_tolls": "boolean"},
        (
            "How do I get from {start} to {end}? Avoid tolls: {avoid_tolls}.",
            "Route from {start} to {end}, please. Without tolls: {avoid_tolls}.",
        ),
        lambda rng: (
            dict(zip(("start", "end"), rng.sample(words.CITIES, 2), strict=True))
            | {"avoid_tolls": rng.random() < 0.5}
        ),
    ),
    Tool(
        "search_products",
        "Search a shop for products up to a price.",
        {"query": "string", "highest_price": "number"},
        (
            "Find a {query} for at most {highest_price} euros.",
            "Is there a {query} below {highest_price} euros?",
        ),
        lambda rng: {
            "query": f"{rng.choice(words.COLOURS)} {rng.choice(words.THINGS)}",
            "highest_price": rng.randint(5, 200) + 0.5,
        },
    ),
)
BY_NAME = {tool.name: tool for tool in TOOLS}


def draw(rng: random.Random) -> Question:
    """Draw a request and the tools that are offered with it."""
    tool = rng.choice(TOOLS)
    kind = rng.choice(("one tool", "several tools"))
    others = rng.sample([one for one in TOOLS if one is not tool], rng.randint(1, 3))
    offered = [tool, *(others if kind == "several tools" else ())]
    rng.shuffle(offered)
    arguments = tool.draw(rng)
    said = {name: words.said(value, " and ") for name, value in arguments.items()}
    turn = {
        "role": "user",
        "content": rng.choice(tool.requests).format(**said),
        "tools": [one.schema() for one in offered],
    }
    call = json.dumps({"name": tool.name, "arguments": arguments})
    return Question([turn], kind, {"tool": tool.name}, f"<tool_call>\n{call}\n</tool_call>")


def judge(question: Question, answer: str) -> str:
    """Return what is wrong with the answer as a call of the expected tool."""
    offered = [tool["function"]["name"] for tool in question.messages[0]["tools"]]
    found = calls(answer, offered)
    if len(found) != 1:
        return f"{len(found)} calls found, not one"
    name, arguments = found[0]
    wanted = question.expected["tool"]
    if name != wanted:
        return f"calls {name:.60}, not {wanted}"
    return _arguments_fault(arguments, BY_NAME[wanted].arguments)


def _arguments_fault(arguments: Arguments, kinds: dict[str, str]) -> str:
    if set(arguments) != set(kinds):
        differing = ", ".join(sorted(set(arguments) ^ set(kinds)))
        return f"other arguments than the schema's: {differing:.200}"
    wrong = [name for name, kind in kinds.items() if not _has_type(arguments[name], kind)]
    return f"argument {wrong[0]} is no {kinds[wrong[0]]}" if wrong else ""


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, Untyped):
        return kind == "string" or _has_type(_parsed(value), kind)
    if kind == "strings":
        return isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value)
    return TYPES[kind](value)


def _parsed(text: str) -> Any:
    try:
        return untrusted_json.parse(text.lower() if text in ("True", "False") else text)
    except ValueError:
        return None


def calls(answer: str, offered: Sequence[str]) -> list[Call]:
    """Return the calls in an answer, in the first form in which it holds any."""
    text = answer[:LONGEST]
    return list(_json_calls(text)) or list(_function_calls(text)) or list(_named_calls(text, offered))


def _json_calls(text: str) -> Iterator[Call]:
    """Read objects with a name and arguments, alone or in an array."""
    for _, value in _json_values(text):
        for entry in value if isinstance(value, list) else [value]:
            call = _call(entry)
            if call:
                yield call


def _json_values(text: str, place: int = 0) -> Iterator[tuple[int, Any]]:
    """Read every outermost JSON object or array from a place on, each with where it begins."""
    decoder, in_vain = json.JSONDecoder(), 0
    while in_vain < MOST_IN_VAIN and (opening := OPENING.search(text, place)):
        start = opening.start()
        try:
            value, place = decoder.raw_decode(text, start)
        except ValueError as error:
            place = start + 1
            in_vain += getattr(error, "pos", len(text)) - start
        except RecursionError:  # each of thousands of brackets in a row would be followed as deeply
            place = opening.end()
            in_vain += len(text) - start
        else:
            yield start, value


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    name = inner.get("name")
    arguments = inner.get("arguments", inner.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _function_calls(text: str) -> Iterator[Call]:
    for name, body in FUNCTION.findall(text):
        yield name, {key: Untyped(value) for key, value in PARAMETER.findall(body)}


def _named_calls(text: str, offered: Sequence[str]) -> Iterator[Call]:
    """Read an offered tool's name with nothing but marks between it and an object."""
    names = "|".join(re.escape(name) for name in offered)
    start, value = -1, None
    for found in re.finditer(rf"\b({names})\b(?:\W|ARGS|json)*?(?=\{{)", text):
        if start < found.end():  # else no object is nearer than the one that was read for the name before
            start, value = next(_json_values(text, found.end()), (len(text), None))
        if isinstance(value, dict):
            yield found[1], value
