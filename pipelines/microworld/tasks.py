"""Draw prompts in IFEval's format, each with an answer that follows its instructions."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pipelines.microworld import words
from pipelines.microworld.answer_drafts import Draft, Kwargs
from pipelines.microworld.instructions import INSTRUCTIONS, LAYERS, PAIRS, Instruction

SINGLES = 0.4  # share of prompts with one instruction


@dataclass(frozen=True)
class Task:
    """One prompt, its instructions and an answer that follows them."""

    prompt: str
    instruction_ids: tuple[str, ...]
    kwargs: tuple[Kwargs, ...]
    answer: str


def draw_task(rng: random.Random, instructions: tuple[Instruction, ...]) -> Task:
    """Draw one prompt about a random topic under the given instructions (none: a plain request)."""
    topic = rng.choice(words.TOPICS)
    kwargs = {instruction.id: instruction.draw(rng) for instruction in instructions}
    asked = rng.sample(instructions, len(instructions))
    yes_no = any(i.id == "detectable_format:constrained_response" for i in instructions)
    request = rng.choice(words.OPINION_QUESTIONS if yes_no else words.REQUESTS).format(t=topic)
    prompt = " ".join([request, *(i.ask(kwargs[i.id], rng) for i in asked)])
    return Task(
        prompt,
        tuple(i.id for i in asked),
        tuple(kwargs[i.id] for i in asked),
        answer(topic, instructions, kwargs, rng),
    )


def answer(
    topic: str, instructions: tuple[Instruction, ...], kwargs: dict[str, Kwargs], rng: random.Random
) -> str:
    """Write a text about the topic that follows the instructions."""
    draft = Draft(topic, rng)
    ordered = sorted(instructions, key=lambda i: LAYERS.index(i.layer))
    for instruction in ordered:  # a style may decide how every sentence is written
        if instruction.layer == "style":
            instruction.obey(draft, kwargs[instruction.id])
    if not any(instruction.layer == "shape" for instruction in instructions):
        draft.parts = [draft.sentence(), draft.sentence()]
    for instruction in ordered:
        if instruction.layer != "style":
            instruction.obey(draft, kwargs[instruction.id])
    text = draft.text()
    for instruction in ordered:
        text = instruction.finish(text)
    return text


def draw_instructions(rng: random.Random) -> tuple[Instruction, ...]:
    """Draw one instruction, or two compatible ones."""
    return (rng.choice(INSTRUCTIONS),) if rng.random() < SINGLES else rng.choice(PAIRS)
