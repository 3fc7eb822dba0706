"""What every suite returns: a score with its interval and its items, as plain values."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT_SEED = 0  # of the sample that --limit takes: the same items for every checkpoint
Message = dict[str, str]
Generate = Callable[[list[list[Message]]], list[str]]
"""Chats in, one answer each out, in order. Suites hand over all their prompts in one call."""

Asked = str | list[Message]
"""A text to go on with, or a chat to answer."""


@dataclass(frozen=True)
class ModelCalls:
    """A model as the functions that any task needs."""

    generate: Callable[[list[Asked], int, float], list[str]]  # asked, longest answer, temperature
    loglikelihood: Callable[[list[tuple[Asked, str]]], list[tuple[float, bool]]]


@dataclass(frozen=True)
class Item:
    """One prompt, its answer and whether it passed. `key` pairs it with the same prompt elsewhere."""

    key: str
    prompt: str
    response: str
    passed: bool
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """One number of one suite, with its 95 % interval; `value` is the share of `items` that passed."""

    suite: str
    metric: str
    value: float
    n: int
    interval: tuple[float, float]
    items: tuple[Item, ...]
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain dicts and lists all the way down, for JSON and for the database."""
        row = asdict(self)
        return row | {"interval": list(self.interval), "items": list(row["items"])}


def cluster(key: str, detail: Mapping[str, Any]) -> str:
    """What an item stands or falls with: several samples of one prompt, several questions about one fact."""
    return str(detail.get("cluster") or detail.get("fact") or key)


def drawn(items: Sequence[T], limit: int | None) -> list[T]:
    """The first `limit` items of a shuffle that depends on nothing but their number; None: all, in order."""
    if limit is None or limit >= len(items):
        return list(items)
    return random.Random(LIMIT_SEED).sample(list(items), limit)


def chat(prompt: str) -> list[Message]:
    """The chat that asks one question."""
    return [{"role": "user", "content": prompt}]


def share(passed: Sequence[bool]) -> float:
    """The share that passed; 0 for none at all."""
    return sum(passed) / len(passed) if passed else 0.0
