"""Draw requests for JSON with given keys and types, and check answers strictly.

A schema is the name of a type ("string", "integer", "number", "boolean"), [schema] for an array with at least
one entry, or {key: schema} for an object with exactly these keys. The whole answer must be one JSON value,
alone or in one code fence; what the values say is not judged.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evals.families import words
from evals.families.family import Question, user
from recovery import untrusted_json

Schema = Any
FENCE = "```"
OPENING = re.compile(r"```(?:json|JSON)?[ \t]*\n")
TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: _is_integer(value),
    "number": lambda value: _is_integer(value) or (isinstance(value, float) and math.isfinite(value)),
    "boolean": lambda value: isinstance(value, bool),
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Field:
    """A key of a record, its type, how its value is drawn, and how a text states it."""

    key: str
    schema: Schema
    draw: Callable[[random.Random], Any]
    says: str


def _one_of(values: tuple[Any, ...]) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(values)


def _several(values: tuple[str, ...]) -> Callable[[random.Random], list[str]]:
    return lambda rng: rng.sample(values, rng.randint(2, 3))


def _between(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(low, high)


def _price(rng: random.Random) -> float:
    return rng.randint(2, 90) + rng.choice((0.25, 0.5, 0.75))


def _either(rng: random.Random) -> bool:
    return rng.random() < 0.5


RECORDS = {
    "person": (
        Field("name", "string", words.full_name, "The name is {v}"),
        Field("age", "integer", _between(18, 80), "The age is {v}"),
        Field("city", "string", _one_of(words.CITIES), "They live in {v}"),
        Field("job", "string", _one_of(words.JOBS), "They work as a {v}"),
        Field("languages", ["string"], _several(words.LANGUAGES), "They speak {v}"),
        Field("has_car", "boolean", _either, "Owns a car: {v}"),
    ),
    "product": (
        Field("title", "string", _one_of(words.THINGS), "It is a {v}"),
        Field("price", "number", _price, "It costs {v} euros"),
        Field("stock", "integer", _between(1, 500), "There are {v} in stock"),
        Field("colours", ["string"], _several(words.COLOURS), "It comes in {v}"),
        Field("maker", "string", words.full_name, "It is made by {v}"),
        Field("in_sale", "boolean", _either, "On sale: {v}"),
    ),
    "trip": (
        Field("start", "string", _one_of(words.CITIES), "It starts in {v}"),
        Field("end", "string", _one_of(words.CITIES), "It ends in {v}"),
        Field("days", "integer", _between(2, 30), "It takes {v} days"),
        Field("cost", "number", _price, "It costs {v} euros a day"),
        Field("packing", ["string"], _several(words.THINGS), "Things to pack: {v}"),
        Field("by_train", "boolean", _either, "By train: {v}"),
    ),
}
OPENINGS = (
    "Turn this description of a {record} into JSON.",
    "Give me the following {record} as JSON.",
    "Write a JSON value for this {record}.",
    "I need this {record} as machine-readable JSON.",
)
CLOSINGS = (
    "Answer with the JSON only.",
    "Reply with nothing but the JSON.",
    "Do not write anything before or after the JSON.",
)


def draw(rng: random.Random) -> Question:
    """Draw a flat object, one with an object inside, or an array of objects."""
    kind = rng.choice(("flat", "nested", "array"))
    record = rng.choice(tuple(RECORDS))
    chosen = rng.sample(RECORDS[record], rng.randint(3, 5))
    if kind == "array":
        facts, schema, value = _array(rng, chosen)
    elif kind == "nested":
        facts, schema, value = _nested(rng, chosen)
    else:
        facts, schema, value = _flat(rng, chosen)
    opening = rng.choice(OPENINGS).format(record=record)
    closing = rng.choice(CLOSINGS)
    text = f"{opening} {facts}\n\n{described(schema)}\n{closing}"
    return Question([user(text)], kind, {"schema": schema}, json.dumps(value))


def _flat(rng: random.Random, fields: list[Field]) -> tuple[str, Schema, Any]:
    values = {field.key: field.draw(rng) for field in fields}
    facts = [field.says.format(v=words.said(values[field.key], ", ")) for field in fields]
    return ". ".join(facts) + ".", {field.key: field.schema for field in fields}, values


def _nested(rng: random.Random, fields: list[Field]) -> tuple[str, Schema, Any]:
    """Put the last two fields into an object of their own."""
    facts, schema, values = _flat(rng, fields)
    inner = [field.key for field in fields[-2:]]
    outer = [field.key for field in fields[:-2]]
    name = rng.choice(("details", "more", "extra"))
    nested_schema = {key: schema[key] for key in outer} | {name: {key: schema[key] for key in inner}}
    nested = {key: values[key] for key in outer} | {name: {key: values[key] for key in inner}}
    return facts, nested_schema, nested


def _array(rng: random.Random, fields: list[Field]) -> tuple[str, Schema, Any]:
    entries = [_flat(rng, fields[:3]) for _ in range(rng.randint(2, 3))]
    facts = " ".join(f"({number}) {text}" for number, (text, _, _) in enumerate(entries, 1))
    return facts, [entries[0][1]], [value for _, _, value in entries]


def described(schema: Schema) -> str:
    """State a schema in words."""
    if isinstance(schema, list):
        return f"Return an array with one object for each; {_keys(schema[0])}."
    return f"Return one object; {_keys(schema)}."


def _keys(schema: dict[str, Schema]) -> str:
    return f"its keys are exactly {', '.join(_key(key, inner) for key, inner in schema.items())}"


def _key(key: str, schema: Schema) -> str:
    if isinstance(schema, dict):
        return f'"{key}" (an object; {_keys(schema)})'
    kind = f"array of {schema[0]}s" if isinstance(schema, list) else schema
    return f'"{key}" ({kind})'


def judge(question: Question, answer: str) -> str:
    """Return what is wrong with the answer as JSON of the asked schema."""
    try:
        value = untrusted_json.parse(_unfenced(answer.strip()))
    except ValueError as error:
        return f"not JSON alone: {error}"
    return fault(value, question.expected["schema"])


def _unfenced(text: str) -> str:
    """Return what stands between the fences, if they are all around a text."""
    opening = OPENING.match(text)
    if opening is None or not text.endswith(FENCE) or len(text) < opening.end() + len(FENCE):
        return text
    return text[opening.end() : -len(FENCE)]


def fault(value: Any, schema: Schema, where: str = "the value") -> str:
    """Return the first place where a value does not have the schema; nothing if it has."""
    if isinstance(schema, str):
        return "" if TYPES[schema](value) else f"{where} is no {schema}"
    if isinstance(schema, list):
        return _array_fault(value, schema[0], where)
    if not isinstance(value, dict):
        return f"{where} is no object"
    if set(value) != set(schema):
        differing = ", ".join(sorted(set(value) ^ set(schema)))
        return f"{where} has other keys than asked: {differing}"
    return next((found for key in schema if (found := fault(value[key], schema[key], key))), "")


def _array_fault(value: Any, schema: Schema, where: str) -> str:
    if not isinstance(value, list) or not value:
        return f"{where} is no array with entries"
    entries = enumerate(value, 1)
    return next((found for n, one in entries if (found := fault(one, schema, f"{where}, entry {n}"))), "")
