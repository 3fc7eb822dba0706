"""Draw a family's suite and its recovery prompts.

Every question belongs to the suite or to the recovery prompts by a hash of its first turn's words, so that no
recovery prompt is, or holds, a question of the suite, for any seed and number.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from evals.families.family import Family, Question, fingerprint
from evals.scores import subsample
from recovery.errors import RecoverError

SUITE, RECOVERY = "suite", "recovery"
SUITE_SEED = 0  # every checkpoint is asked the same questions
ATTEMPTS = 400  # draws for one question before giving up; two or three are usual


@dataclass(frozen=True)
class Unmeasured:
    """A family that cannot be asked of a model, and why."""

    suite: str
    reason: str

    def row(self) -> dict[str, Any]:
        """Return what stands in the place of a score."""
        empty = {"score": None, "n": 0, "interval": [None, None], "metric": None}
        return empty | {"not_measured": self.reason}


def part_of(question: Question) -> str:
    """Return the half that a question belongs to: the suite, or the recovery prompts."""
    return SUITE if int(fingerprint(question.messages[0]["content"])[-1], 16) % 2 == 0 else RECOVERY


def suite(family: Family, count: int, probes: str | None = None, limit: int | None = None) -> list[Question]:
    """Return the family's questions, drawn or of a file of probes; with a limit, a random sample."""
    found = list(family.fixed(probes)) if family.fixed else list(_drawn(family, count, SUITE_SEED, SUITE, ()))
    return subsample(found, limit)


def recovery(family: Family, count: int, seed: int = 0, exclude: Iterable[str] = ()) -> list[Question]:
    """Return different recovery prompts, none of them in the suite or in `exclude`."""
    fixed = [question.text for question in family.fixed(None)] if family.fixed else []
    return list(_drawn(family, count, seed, RECOVERY, [*fixed, *exclude]))


def _drawn(family: Family, count: int, seed: int, part: str, exclude: Iterable[str]) -> Iterator[Question]:
    """Draw each question with a generator of its own: a smaller count gives the beginning of a larger one."""
    used = {fingerprint(text) for text in exclude}
    for number in range(count):
        rng = random.Random(f"{family.name}:{part}:{seed}:{number}")
        fresh = (question for _ in range(ATTEMPTS) if _is_new(question := family.draw(rng), part, used))
        found = next(fresh, None)
        if found is None:
            raise RecoverError(f"{family.name}: there are only {number} different questions: ask for fewer")
        used.add(found.key)
        yield found


def _is_new(question: Question, part: str, used: set[str]) -> bool:
    return part_of(question) == part and question.key not in used


def row(question: Question) -> dict[str, Any]:
    """Return a recovery prompt as a line of a prompts file."""
    turns = [{key: turn[key] for key in ("role", "content")} for turn in question.messages]
    tools = [tool for turn in question.messages for tool in turn.get("tools") or ()]
    asked = {"prompt": question.text} if len(turns) == 1 else {"messages": turns}
    return asked | ({"tools": tools} if tools else {})
