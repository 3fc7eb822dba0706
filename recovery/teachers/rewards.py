"""Verifiable rewards: what a finished response earns, and what that makes of its tokens.

A reward is any callable `reward(response, item) -> float`; `item` is the prompt's row as it stands in the
prompts file. Which one is named as `exact`, as `module:function` or `path/to/file.py:function`, or by a name
that the caller adds (`resolve(..., known={"ifeval": ...})`: the IFEval checkers live above this folder).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from recovery.errors import InputError, RecoverError

Reward = Callable[[str, Mapping[str, Any]], float]

_NUMBER = re.compile(r"(?<![\w.])-?[$€£]?-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\d])|(?<![\w.])-?\.\d+")
_FINAL = re.compile(r"####\s*(.+)|\\boxed\{([^{}]*)\}|answer(?:\s+is)?\s*[:=]?\s+(.+)", re.IGNORECASE)


def exact_answer(response: str, item: Mapping[str, Any]) -> float:
    """1 if the response's final answer is the item's `answer`, else 0; numbers compare as numbers (GSM8K).

    The final answer follows "####", "\\boxed{" or "answer is"; without such a mark it is the last number.
    """
    if item.get("answer") is None:
        raise InputError(
            f"reward exact: the prompt {str(item.get('prompt', item))[:60]!r} has no 'answer': add the "
            f"field to every row of the prompts file"
        )
    wanted = str(item["answer"])
    wanted = wanted.rpartition("####")[2].strip()  # GSM8K's own references end that way
    number = _number(wanted)
    given = final_answer(response, numeric=number is not None)
    if given is None:
        return 0.0
    return float(_number(given) == number if number is not None else _words(given) == _words(wanted))


def final_answer(response: str, numeric: bool = True) -> str | None:
    """What the response ends up saying: the last marked answer, else its last number, or its last line."""
    marked = [next(filter(None, match.groups()), "") for match in _FINAL.finditer(response)]
    if marked and not numeric:
        return marked[-1]
    numbers = _NUMBER.findall(marked[-1].rpartition("=")[2]) if marked else []
    if numbers:
        return numbers[0]
    if numeric:
        numbers = _NUMBER.findall(response)
        return numbers[-1] if numbers else None
    lines = response.strip().splitlines()
    return lines[-1] if lines else None


def _number(text: str) -> Decimal | None:
    """'$1,200.50' -> 1200.50; None where the text is not a number."""
    try:
        number = Decimal(re.sub(r"[\s,$€£%]", "", text).rstrip("."))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def resolve(name: str, known: Mapping[str, Reward] | None = None) -> Reward:
    """The reward of that name: built in, added by the caller, or a Python callable by entry point."""
    table: dict[str, Reward] = {"exact": exact_answer, **(known or {})}
    if name in table:
        return table[name]
    place, colon, function = name.rpartition(":")
    if not colon or not place or not function:
        raise InputError(
            f"reward {name!r} is unknown: use {', '.join(table)}, or a callable as module:function"
        )
    reward = getattr(_load(place, name), function, None)
    if not callable(reward):
        raise InputError(f"reward {name!r}: {place} has no callable {function!r}: check the name")
    return reward


def _load(place: str, name: str) -> ModuleType:
    """A module by import name, or by the path of its file."""
    path = Path(place)
    try:
        if path.suffix != ".py":
            return importlib.import_module(place)
        spec = importlib.util.spec_from_file_location(f"recover_reward_{path.stem}", path)
        if spec is None or spec.loader is None or not path.is_file():
            raise InputError(f"reward {name!r}: there is no file {place}: check the path")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    except InputError:
        raise
    except Exception as error:  # a user's module may fail in any way while it is imported
        raise InputError(
            f"reward {name!r}: importing {place} failed ({type(error).__name__}: {error}): "
            f"fix the module, or install what it needs"
        ) from error


def where(reward: Reward, field: str) -> Reward:
    """The reward where a row has what it needs; elsewhere 0, which says nothing in any group."""
    return lambda response, item: reward(response, item) if item.get(field) else 0.0


def score(reward: Reward, responses: Sequence[str], items: Sequence[Mapping[str, Any]]) -> Tensor:
    """Rewards (B) of responses to their items; one that fails or is not a finite number stops the work."""
    rewards: list[float] = []
    for row, (response, item) in enumerate(zip(responses, items, strict=True)):
        try:
            value = float(reward(response, item))
        except RecoverError:
            raise
        except Exception as error:  # a user's callable may fail in any way
            raise RecoverError(
                f"reward {_name(reward)} failed on response {row} ({type(error).__name__}: {error}): "
                f"make it return a number for every response"
            ) from error
        if not math.isfinite(value):
            raise RecoverError(
                f"reward {_name(reward)} gave {value} for response {row}: it must be a finite number"
            )
        rewards.append(value)
    return torch.tensor(rewards, dtype=torch.float32)


def _name(reward: Reward) -> str:
    return getattr(reward, "__name__", type(reward).__name__)


def group_advantages(rewards_B: Tensor, group_B: Tensor, baseline: str = "group") -> Tensor:
    """What each rollout earned beyond the others at the same prompt (`group_B`: the prompt of each rollout).

    group: minus the group's mean. leave-one-out: minus the mean of the others. group-std: the first, over
    the group's standard deviation (GRPO). none: the reward itself. Equal rewards in a group say nothing: 0.
    """
    if baseline == "none":
        return rewards_B.clone()
    _, row_B, count_G = group_B.unique(return_inverse=True, return_counts=True)
    mean_G = rewards_B.new_zeros(len(count_G)).index_add_(0, row_B, rewards_B) / count_G
    centred_B = rewards_B - mean_G[row_B]
    if baseline == "leave-one-out":
        return centred_B * (count_G / (count_G - 1).clamp_min(1))[row_B]
    if baseline == "group-std":
        variance_G = rewards_B.new_zeros(len(count_G)).index_add_(0, row_B, centred_B.square()) / count_G
        return centred_B / (variance_G.sqrt()[row_B] + 1e-4)
    if baseline != "group":
        raise InputError(f"reward_baseline={baseline} is not one of group, leave-one-out, group-std, none")
    return centred_B
