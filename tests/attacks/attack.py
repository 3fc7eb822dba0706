"""What an attack is: a name, a promise, and work that returns its evidence or raises NotHeld."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How much is tried; the seed decides every input, so that what broke can be done again."""

    minutes: float = 1.0  # of each fuzz, and of the load
    kills: int = 200
    seed: int = 0

    def random(self, *names: object) -> random.Random:
        """Return the random numbers of one part of an attack, the same at every run with this seed."""
        return random.Random("/".join(map(str, (self.seed, *names))))

    def rounds(self, share: float = 1.0) -> Iterator[int]:
        """Yield 0, 1, 2, ... until a share of the minutes has passed."""
        deadline = time.monotonic() + 60 * self.minutes * share
        number = 0
        while number == 0 or time.monotonic() < deadline:
            yield number
            number += 1


class NotHeld(Exception):
    """A promise that was broken; the message is the evidence, and names the input."""


class LeftOut(Exception):
    """An attack that this machine cannot run."""


@dataclass(frozen=True)
class Attack:
    name: str
    promise: str  # what holds, in the words of docs/security.md
    run: Callable[[Size], str]  # returns what was tried
    of_tests: bool = False  # runs tests that `make test` runs too
