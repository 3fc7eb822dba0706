"""Generate prompts in IFEval's format over its 25 instruction types, each with a reference answer.

A prompt is a request about a topic with one to three compatible instructions. Its reference answer is checked
with the checkers that score a model; a draw whose answer does not pass is discarded. Prompts of the published
set are excluded by hashes of their words.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from evals import harness
from evals.families.family import fingerprint
from pipelines.prompts.near_copies import published
from pipelines.writing.instruction_types import (
    ARGUMENTS,
    CONSTRAINED,
    LANGUAGE,
    REPEAT,
    Instructions,
    Kwargs,
    compatible,
    texts,
)
from pipelines.writing.reference_answers import reference_answer
from recovery.errors import InputError, RecoverError

PADDING = (0, 2, 5, 10, 20, 40, 80)  # sentences added until a lower limit on length is met
ATTEMPTS = 200  # draws for one prompt before giving up; one or two are usual
MOST = 40_000  # prompts: every 25th has the type of which there are the fewest, 1,920


@dataclass(frozen=True)
class InstructionPrompt:
    """One prompt, its instructions with their arguments, and an answer that follows them all."""

    text: str
    instructions: Instructions
    answer: str

    def row(self, key: int) -> dict[str, Any]:
        """Return the prompt as a row in IFEval's format."""
        return {
            "key": key,
            "prompt": self.text,
            "instruction_id_list": list(self.instructions),
            "kwargs": list(self.instructions.values()),
        }


def generate(count: int, seed: int = 0, exclude: Iterable[str] = ()) -> list[InstructionPrompt]:
    """Return `count` different prompts, none of them in the published set or in `exclude`.

    Each prompt is drawn from a generator of its own: a smaller count gives the beginning of a larger one, and
    an excluded prompt is replaced without changing the others.
    """
    if count > MOST:
        raise InputError(f"{count:,} prompts: at most {MOST:,} different ones can be written: ask for fewer")
    used = set(published()) | {fingerprint(text) for text in exclude}
    found = []
    types = _balanced(random.Random(f"instruction types:{seed}"), count)
    for number, first in enumerate(types):
        prompt = _new_prompt(random.Random(f"instruction prompt:{seed}:{number}"), first, used)
        used.add(fingerprint(prompt.text))
        found.append(prompt)
    return found


def rows(prompts: Sequence[InstructionPrompt], seed: int = 0) -> list[dict[str, Any]]:
    """Return the prompts as rows in IFEval's format, with keys that depend on the seed."""
    return [prompt.row(seed * 1_000_000 + number) for number, prompt in enumerate(prompts, 1)]


# Drawing ---------------------------------------------------------------------------------------------------


def _balanced(rng: random.Random, count: int) -> Iterator[str]:
    """Yield `count` instruction types, every type equally often."""
    waiting: list[str] = []
    for _ in range(count):
        if not waiting:
            waiting = rng.sample(sorted(ARGUMENTS), len(ARGUMENTS))
        yield waiting.pop()


def _new_prompt(rng: random.Random, first: str, used: set[str]) -> InstructionPrompt:
    for _ in range(ATTEMPTS):
        prompt = _draw(rng, first)
        if prompt is not None and fingerprint(prompt.text) not in used:
            return prompt
    raise RecoverError(f"{first}: no new prompt in {ATTEMPTS} draws: ask for fewer, or --avoid fewer")


def _draw(rng: random.Random, first: str) -> InstructionPrompt | None:
    """Draw one prompt with the given instruction type; return None if no reference answer passes."""
    instructions = {name: ARGUMENTS[name](rng) for name in _combination(rng, first)}
    topic = rng.choice(texts()["topics"])
    text = _request(rng, topic, instructions)
    names = list(instructions)
    kwargs = list(instructions.values())
    for padding in PADDING:
        answer = reference_answer(rng, topic, instructions, padding)
        if all(harness.check(answer, text, names, kwargs)):
            return InstructionPrompt(text, instructions, answer)
    return None


def _combination(rng: random.Random, first: str) -> list[str]:
    """Draw up to two types that can be combined with the given one; return all in random order."""
    chosen = [first]
    for _ in range(rng.choices((0, 1, 2), weights=(50, 35, 15))[0]):
        fitting = [name for name in sorted(ARGUMENTS) if all(compatible(name, one) for one in chosen)]
        if fitting:
            chosen.append(rng.choice(fitting))
    return rng.sample(chosen, len(chosen))


# Asking ----------------------------------------------------------------------------------------------------


def _request(rng: random.Random, topic: str, instructions: Instructions) -> str:
    """Return the prompt's text; set the argument of an instruction that repeats the request."""
    openings = texts()["questions" if CONSTRAINED in instructions else "requests"]
    opening = rng.choice(openings).format(t=topic)
    asked = [_phrase(rng, name, kwargs) for name, kwargs in instructions.items() if name != REPEAT]
    text = rng.choice(LAYOUTS)(opening, asked)
    if REPEAT not in instructions:
        return text
    instructions[REPEAT] = {"prompt_to_repeat": text}
    return f"{text}\n\n{_phrase(rng, REPEAT, {})}"


def _in_line(opening: str, asked: Sequence[str]) -> str:
    return " ".join([opening, *asked])


def _in_lines(opening: str, asked: Sequence[str]) -> str:
    return "\n".join([opening, *asked])


def _in_paragraphs(opening: str, asked: Sequence[str]) -> str:
    return f"{opening}\n\n{' '.join(asked)}".strip()


LAYOUTS = (_in_line, _in_line, _in_lines, _in_paragraphs)


def _phrase(rng: random.Random, name: str, kwargs: Kwargs) -> str:
    shown = {key: _shown(value) for key, value in kwargs.items()}
    if name == LANGUAGE:
        shown["language"] = texts()["languages"][kwargs["language"]][0]
    phrase: str = rng.choice(texts()["phrasings"][name])
    return phrase.format(**shown)


def _shown(value: Any) -> str:
    """Format an argument as plain English."""
    if isinstance(value, list):
        quoted = [f'"{word}"' for word in value]
        return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
    return {"less than": "fewer than"}.get(value, str(value))
