"""What an attack is: a name, a promise, and work that returns its evidence or raises NotHeld."""

from __future__ import annotations

import importlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.attacks import from_tests
from tests.attacks.outcome import LeftOut, NotHeld, require_some

__all__ = ["Attack", "LeftOut", "NotHeld", "Size", "require_some"]


@dataclass(frozen=True)
class Size:
    """How much is tried; the seed decides every input, so that what broke can be done again."""

    minutes: float = 1.0  # of each fuzz, and of the load
    kills: int = 200
    seed: int = 0
    quick: bool = False  # try a fixed number of inputs, the same on every machine; the minutes only cap it
    think: float = 0.0  # seconds that a reader of the load waits on average before the next page

    def random(self, *names: object) -> random.Random:
        """Return the random numbers of one part of an attack, the same at every run with this seed."""
        return random.Random("/".join(map(str, (self.seed, *names))))

    def rounds(self, quick: int, share: float = 1.0) -> Iterator[int]:
        """Yield 0, 1, 2, ... until a share of the minutes has passed; of a quick campaign `quick` numbers."""
        deadline = time.monotonic() + 60 * self.minutes * share
        number = 0
        while number == 0 or time.monotonic() < deadline:
            if self.quick and number == quick:
                return
            yield number
            number += 1

    def amount(self, unit: str) -> str:
        """Return how much is tried, in the unit that an attack is measured in, or "" if it has none."""
        if not unit:
            return ""
        if self.quick and unit == "minutes":
            return "a fixed number of inputs"
        return f"{getattr(self, unit):,g} {unit}"


@dataclass(frozen=True)
class Attack:
    """`work` is the function of this folder that attacks, as "module.function"; or it is done by tests."""

    name: str
    promise: str  # what holds, in the words of docs/security.md
    work: str = ""
    unit: str = ""  # the field of the size that says how much is tried
    tests: tuple[str, ...] = ()  # files below tests/, or names of tests, that `make test` runs too

    def run(self, size: Size) -> str:
        """Attack, and return what was tried; imports nothing before it is needed."""
        if self.tests:
            return from_tests.run(self.tests)
        module, _, function = self.work.rpartition(".")
        evidence = getattr(importlib.import_module(f"tests.attacks.{module}"), function)(size)
        return str(evidence)
