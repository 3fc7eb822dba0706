"""Types that every suite returns: a score with its interval and items, as plain values."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any, TypeVar

from recovery.counted import counted
from recovery.errors import InputError

T = TypeVar("T")
_SAMPLE = re.compile(r"#\d+$")
LIKELY_LOST = (
    "a loss is shown, by its estimate no smaller than the margin: more questions would hardly clear it"
)
LIMIT_SEED = 0  # of the sample that --limit takes: the same items for every checkpoint
Message = dict[str, Any]
Generate = Callable[[list[list[Message]]], list[str]]
"""Map chats to one answer each, in order. Suites pass all their prompts in one call."""

Asked = str | list[Message]
"""A text to continue, or a chat to answer."""


def digest(text: str) -> str:
    """Return a short hash of a text, by which items tell what they were judged by."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True)
class ModelCalls:
    """The two functions of a model that a task calls."""

    generate: Callable[[list[Asked], int, float], list[str]]  # prompts, max_new_tokens, temperature
    loglikelihood: Callable[[list[tuple[Asked, str]]], list[tuple[float, bool]]]


@dataclass(frozen=True)
class Item:
    """One prompt, its answer and whether it passed. `key` pairs it with the same prompt in another score."""

    key: str
    prompt: str
    response: str
    passed: bool
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def cluster(self) -> str:
        """The item's cluster: samples of one prompt, or questions about one fact, have the same."""
        return str(self.detail.get("cluster") or self.detail.get("fact") or self.key)

    @property
    def value(self) -> float:
        """The item's score from 0 to 1: a task of lm-eval gives one, all else passes or fails."""
        return float(self.detail["value"] if "task" in self.detail else self.passed)


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
        """Return nested dicts and lists, for JSON and for the database."""
        row = asdict(self)
        return row | {"interval": list(self.interval), "items": list(row["items"])}


def samples_of(items: Iterable[tuple[str, str]]) -> int:
    """Return how many answers each prompt got, by keys and prompts of their items: X#0, X#1, ...; else 1.

    Other prompts may have such names of their own: page#0, page#1, ..."""
    numbers: dict[tuple[str, str], set[int]] = {}
    for key, prompt in items:
        found = _SAMPLE.search(key)
        if found is None:
            return 1
        numbers.setdefault((key[: found.start()], prompt), set()).add(int(found[0][1:]))
    samples = max(map(len, numbers.values()), default=1)
    sampled = all(some == set(range(samples)) for some in numbers.values())  # else their own names end so
    return samples if sampled else 1


def prompts_for(answers: int | None, items: Sequence[Item]) -> int | None:
    """Return how many prompts give so many answers, where each is answered as often as in these items."""
    if answers is None:
        return None
    return ceil(answers / samples_of((item.key, item.prompt) for item in items))


def enough_in_words(needed: int | None, what: str = "prompts") -> str:
    """Say how many prompts or questions would decide an underpowered claim; None: no number would."""
    if needed is None:
        return f"no number of {what} decides a difference so near the margin"
    return f"about {needed:,} {what} would decide"


def is_likely_lost(row: Mapping[str, Any]) -> bool:
    """Return whether a claim shows a loss whose estimate is no smaller than the margin."""
    upper = row.get("upper_bound")
    return upper is not None and upper < 0 and row["difference"] < -row["margin"] + 1e-9


def deciding_in_words(row: Mapping[str, Any], what: str = "prompts") -> str:
    """Say what would decide an underpowered claim: more questions hardly clear one that is likely lost."""
    return LIKELY_LOST if is_likely_lost(row) else enough_in_words(row.get("needed_n"), what)


def bound_in_points(bound: float, margin: float) -> str:
    """Format a bound in percentage points: one digit, or as many as tell it from minus the margin."""
    digits = next((n for n in (1, 2, 3) if round(100 * bound, n) != round(-100 * margin, n)), 1)
    return f"{100 * bound:+.{digits}f}"


def prompts_in_words(answers: int, samples: int) -> str:
    """Say how many prompts were asked, behind the number of answers where each got several."""
    if samples == 1:
        return counted(answers, "prompt")
    return f"{answers:,} answers ({counted(ceil(answers / samples), 'prompt')})"


def notes_by_suite(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say by suite what was noted as it was scored, such as prompts that were left out."""
    return [f"{suite}: {note}" for suite, row in scores.items() for note in row.get("notes", ())]


def halves_counted(cycle: Mapping[str, Any]) -> str:
    """Say which questions each number of a judged cycle counts, where half of them chose the recovery."""
    if not cycle["verdict"] or not cycle.get("recovery_chosen"):
        return ""
    bounds = "only those that had no part in choosing the recovery"
    return f"scores count all questions; the verdict's bounds {bounds}"


def subsample(items: Sequence[T], limit: int | None) -> list[T]:
    """Return the first `limit` items of a shuffle that depends only on their number; None: all, in order.

    So a smaller limit takes some of those that a larger one takes."""
    if limit is None or limit >= len(items):
        return list(items)
    return random.Random(LIMIT_SEED).sample(list(items), len(items))[:limit]


def repeated(asked: Sequence[str], what: str) -> list[str]:
    """Say how many of the questions or prompts that are asked repeat an earlier one, where any does."""
    again = len(asked) - len(set(asked))
    if not again:
        return []
    return [f"{again:,} of {len(asked):,} {what} repeat an earlier one: equal ones count as one"]


def chat(prompt: str) -> list[Message]:
    """Return a chat of one user turn."""
    return [{"role": "user", "content": prompt}]


def share(passed: Sequence[float]) -> float:
    """Return the share that passed, or the mean of scores; 0 for an empty sequence."""
    return sum(passed) / len(passed) if passed else 0.0


def pairs(after: Sequence[Item], before: Sequence[Item], suite: str = "suite") -> list[tuple[Item, Item]]:
    """Pair the items of two checkpoints by key, in the order of `before`; keys and prompts must agree."""
    by_key = {item.key: item for item in after}
    unpaired = [item.key for item in before if item.key not in by_key]
    if unpaired or len(by_key) != len(before):
        raise InputError(
            f"{suite}: {len(by_key)} items against {len(before)}, {len(unpaired)} without a partner: "
            "evaluate both checkpoints on the same prompts"
        )
    changed = [item.key for item in before if by_key[item.key].prompt != item.prompt]
    if changed:
        raise InputError(
            f"{suite}: item {changed[0]} has another prompt in one evaluation ({len(changed)} in all): "
            "evaluate both checkpoints on the same prompts"
        )
    return [(by_key[item.key], item) for item in before]
