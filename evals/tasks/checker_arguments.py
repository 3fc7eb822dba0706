"""Refuse arguments that an IFEval checker would not use: in their place it draws others at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from recovery.errors import InputError

SEEDS = range(8)  # a limit's relation is one of two: eight draws show both


def require_used(checker: Any, given: Mapping[str, Any]) -> None:
    """Build a checker under several seeds; refuse an argument that differs, or a text in place of a list.

    The caller restores Python's random state.
    """
    built = [_built(checker, given, seed) for seed in SEEDS]
    for name, value in built[0].items():
        if any(other[name] != value for other in built):
            raise InputError(
                f"`{name}` is {given.get(name)!r}, and lm-eval's checker would draw another at random"
            )
        if isinstance(value, list) and not isinstance(given[name], list):
            raise InputError(f"`{name}` is {given[name]!r}, and must be a list of texts")


def _built(checker: Any, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the arguments that the checker takes; lm-eval leaves out those that are null, 0 or empty."""
    random.seed(seed)
    checker.build_description(**{name: value for name, value in given.items() if value})
    return dict(checker.get_instruction_args() or {})
