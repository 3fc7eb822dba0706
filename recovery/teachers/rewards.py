"""Verifiable rewards: score finished responses and turn the scores into advantages.

A reward is any callable `reward(response, item) -> float`; `item` is the prompt's row in the prompts file.
Its name is `exact`, `module:function`, `path/to/file.py:function`, or one that the caller registers
(`resolve(..., known={"ifeval": ...})`: the IFEval checkers live in a higher package).
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from recovery.errors import InputError, RecoverError
from recovery.teachers.contexts import has
from recovery.teachers.same_answer import same_answer
from recovery.teachers.stated_number import last, plain, stated, value

Reward = Callable[[str, Mapping[str, Any]], float]

_COMMA = r"((?:\d{1,3}(?:\.\d{3})+|\d+)),"  # a decimal one behind digits, with or without thousands
_DECIMAL_COMMA = re.compile(rf"[-+\s$€£]*{_COMMA}(?!\d{{3}}(?!\d))\d+[\s$€£%.]*")
_AROUND_COMMA = re.compile(rf"(?<![\d.,]){_COMMA}(\d+)(?![.,]?\d)")
MAX_MARKS, MAX_ANSWER = 50, 400  # last marks considered, and characters read after each
_MARK = re.compile(  # what introduces a final answer; no number may stand between "answer" and its verb
    r"""\#{4}
    | \\boxed\{
    | (?<!this\s)\banswer\b [^.\n\d\#]{0,60}? (?: \b(?:is|equals|be|comes\s+to)\b | [:=] )
    | ^[^\w\n]{0,20}(?:final\s+)?answer
      (?:\s+(?:is|equals|(?:would|will|should|must)\s+be|comes\s+to)\b)?
      (?:(?!\.\d)[^\w+\-(\[{<>\\]){1,20}  # up to a sign or a bracket
    """,
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_CONTENT = re.compile(r"[^\s:*]")
_FURTHER_SENTENCE = re.compile(r"[.!?]\s")


def exact_answer(response: str, item: Mapping[str, Any]) -> float:
    """Return 1 if the response's final answer is the item's `answer`, else 0 (GSM8K).

    Numbers and fractions compare by value, other answers by their words, operators, signs and brackets. Where
    `answer` has a decimal comma (3,5), those of the response are read so too. The final answer follows
    "####", "\\boxed{" or "the answer is"; without such a mark it is the last number, or line. One that holds
    several numbers (2, 3), or a formula, is not the number.
    """
    if item.get("answer") is None:
        raise InputError(
            f"reward exact: the prompt {str(item.get('prompt', item))[:60]!r} has no 'answer': add the "
            f"field to every row of the prompts file"
        )
    wanted = plain(str(item["answer"]))
    wanted = wanted.rpartition("####")[2].strip()  # the form of GSM8K's references
    response = plain(response)
    if _DECIMAL_COMMA.fullmatch(wanted):
        wanted, response = _with_point(wanted), _with_point(response)
    number = value(wanted)
    given = final_answer(response, numeric=number is not None)
    if given is None:
        return 0.0
    if number is not None:
        return float(value(given) == number)
    said = (given, _FURTHER_SENTENCE.split(given, maxsplit=1)[0])  # "B. Paris lies on the Seine."
    return float(any(same_answer(one, wanted) for one in said))


def _with_point(text: str) -> str:
    """Write numbers with a decimal comma with a point: 3,5 as 3.5, and 1.234,56 as 1234.56."""
    return _AROUND_COMMA.sub(lambda found: f"{found[1].replace('.', '')}.{found[2]}", text)


def final_answer(response: str, numeric: bool = True) -> str | None:
    """Return the last marked answer of a response, else its last number, or its last line."""
    marks = deque(_MARK.finditer(response), maxlen=MAX_MARKS)
    marked = [_marked_text(response, mark, numeric) for mark in marks]
    if not numeric:
        lines = marked or response.strip().splitlines()
        return lines[-1] if lines else None
    for text in reversed(marked):
        number = stated(text)
        if number is not None:
            return number or None
    return last(response)


def _marked_text(response: str, mark: re.Match[str], numeric: bool) -> str:
    """Return what follows a mark: up to the closing brace of a box, else to the end of the line.

    An answer in words may stand on a later line ("The answer is:"); below a number's, it may be worked out.
    """
    rest = response[mark.end() : mark.end() + MAX_ANSWER]
    if mark.group().endswith("{"):
        return _braced(rest)
    lines = rest.lstrip(" \t").split("\n")
    return lines[0] if numeric else next(filter(_CONTENT.search, lines), lines[0])


def _braced(text: str) -> str:
    """Return the text up to the brace that closes the one before it."""
    open_braces = 1
    for place, character in enumerate(text):
        open_braces += (character == "{") - (character == "}")
        if not open_braces:
            return text[:place]
    return text


def resolve(name: str, known: Mapping[str, Reward] | None = None) -> Reward:
    """Return the reward with this name: built in, registered by the caller, or module:function."""
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
    """Import a module by its name or by its file's path."""
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
    except Exception as error:  # user code may raise anything
        raise InputError(
            f"reward {name!r}: importing {place} failed ({type(error).__name__}: {error}): "
            f"fix the module, or install what it needs"
        ) from error


def where(reward: Reward, field: str) -> Reward:
    """Restrict a reward to rows with a field; other rows get 0, and so no advantage within their group."""
    return lambda response, item: reward(response, item) if has(item, field) else 0.0


def rewards_of(reward: Reward, responses: Sequence[str], items: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the rewards (B) of responses; raise RecoverError on a reward that fails or is not finite."""
    rewards: list[float] = []
    for row, (response, item) in enumerate(zip(responses, items, strict=True)):
        try:
            value = float(reward(response, item))
        except RecoverError:
            raise
        except Exception as error:  # user code may raise anything
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


def group_advantages(rewards_B: Tensor, group_B: Tensor, baseline: str) -> Tensor:
    """Return each rollout's reward relative to the other rollouts of its prompt, `group_B`.

    group: minus the group's mean. leave-one-out: minus the mean of the others. group-std: the first, divided
    by the group's standard deviation (GRPO). none: the reward itself. Equal rewards in a group give 0.
    """
    if baseline == "none":
        return rewards_B
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
