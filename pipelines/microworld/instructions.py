"""Generate the microworld's instruction prompts in IFEval's format, over sixteen of its types, with answers.

An answer is built in layers: shape (bullets, sections, JSON, ...), content (a keyword, a highlight), frame (a
title, a closing phrase), style (capitals, no commas). Instructions are combined where their layers allow.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipelines.microworld import words


@dataclass
class Draft:
    """The parts of an answer under construction."""

    topic: str
    rng: random.Random
    commas: bool = True
    parts: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    separator: str = " "
    unused: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Return a sentence about the topic in a form that this answer has not used."""
        if not self.unused:
            forms = words.COMMA_SENTENCES if self.commas else words.PLAIN_SENTENCES
            self.unused = self.rng.sample(forms, len(forms))
        a, b = self.rng.sample(words.ADJECTIVES, 2)
        return self.unused.pop().format(t=self.topic, a=a, b=b)

    def text(self) -> str:
        return "\n".join([*self.before, self.separator.join(self.parts), *self.after])


Kwargs = dict[str, Any]


def _as_it_is(text: str) -> str:
    return text


@dataclass(frozen=True)
class Instruction:
    """One of IFEval's instruction types: its phrasings, and how an answer follows it."""

    id: str
    layer: str  # "shape" | "content" | "frame" | "style"
    phrasings: tuple[str, ...]
    draw: Callable[[random.Random], Kwargs]
    obey: Callable[[Draft, Kwargs], None]
    finish: Callable[[str], str] = _as_it_is

    def ask(self, kwargs: Kwargs, rng: random.Random) -> str:
        shown = {key: value[0] if isinstance(value, list) else value for key, value in kwargs.items()}
        return rng.choice(self.phrasings).format(**shown)


def _nothing(_: random.Random) -> Kwargs:
    return {}


def _leave(_: Draft, __: Kwargs) -> None:
    return None


def _between(key: str, low: int, high: int) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {key: rng.randint(low, high)}


def _bullets(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts = [f"* {draft.sentence()}" for _ in range(kwargs["num_bullets"])]
    draft.separator = "\n"


def _sections(draft: Draft, kwargs: Kwargs) -> None:
    name = kwargs["section_spliter"]
    count = kwargs["num_sections"]
    draft.parts = [f"{name} {number + 1}\n{draft.sentence()}" for number in range(count)]
    draft.separator = "\n"


def _paragraphs(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts = [draft.sentence() for _ in range(kwargs["num_paragraphs"])]
    draft.separator = "\n***\n"


def _two_responses(draft: Draft, _: Kwargs) -> None:
    draft.parts = [draft.sentence(), draft.sentence()]
    draft.separator = "\n******\n"


def _json(draft: Draft, _: Kwargs) -> None:
    draft.parts = [draft.sentence()]


def _as_json(text: str) -> str:
    return json.dumps({"text": text})


def _constrained(draft: Draft, _: Kwargs) -> None:
    draft.parts = [f"My answer is {draft.rng.choice(('yes', 'no', 'maybe'))}."]


def _keyword(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts[-1] += f" It makes me think of {kwargs['keywords'][0]}."


def _highlights(draft: Draft, kwargs: Kwargs) -> None:
    adjectives = draft.rng.sample(words.ADJECTIVES, kwargs["num_highlights"])
    draft.parts[-1] += " It is " + " and ".join(f"*{word}*" for word in adjectives) + "."


def _placeholders(draft: Draft, kwargs: Kwargs) -> None:
    names = draft.rng.sample(("name", "place", "date", "time"), kwargs["num_placeholders"])
    draft.parts[-1] += " Please ask " + " and ".join(f"[{name}]" for name in names) + "."


def _title(draft: Draft, _: Kwargs) -> None:
    draft.before.insert(0, f"<<{draft.topic.title()}>>")


def _postscript(draft: Draft, _: Kwargs) -> None:
    topic = draft.topic[0].upper() + draft.topic[1:]
    draft.after.insert(0, f"P.S. {topic} is {draft.rng.choice(words.ADJECTIVES)}.")


def _end(draft: Draft, kwargs: Kwargs) -> None:
    draft.after.append(str(kwargs["end_phrase"]))


def _no_comma(draft: Draft, _: Kwargs) -> None:
    draft.commas = False


INSTRUCTIONS = (
    Instruction(
        "detectable_format:number_bullet_lists",
        "shape",
        ("Use exactly {num_bullets} bullet points.", "Your answer must have {num_bullets} bullet points."),
        _between("num_bullets", 2, 4),
        _bullets,
    ),
    Instruction(
        "detectable_format:multiple_sections",
        "shape",
        (
            "Write {num_sections} sections and mark each with {section_spliter} X.",
            "Your answer must have {num_sections} sections marked {section_spliter} X.",
        ),
        lambda rng: {"section_spliter": rng.choice(("Section", "Part")), "num_sections": rng.randint(2, 3)},
        _sections,
    ),
    Instruction(
        "length_constraints:number_paragraphs",
        "shape",
        (
            "Write {num_paragraphs} paragraphs and separate them with ***.",
            "There should be {num_paragraphs} paragraphs separated by ***.",
        ),
        _between("num_paragraphs", 2, 3),
        _paragraphs,
    ),
    Instruction(
        "combination:two_responses",
        "shape",
        (
            "Give two different responses separated by ******.",
            "Write two different answers and separate them with ******.",
        ),
        _nothing,
        _two_responses,
    ),
    Instruction(
        "detectable_format:json_format",
        "shape",
        ("Wrap the whole output in JSON format.", "Your answer should be in JSON format."),
        _nothing,
        _json,
        _as_json,
    ),
    Instruction(
        "detectable_format:constrained_response",
        "shape",
        (
            "Answer with one of: My answer is yes. My answer is no. My answer is maybe.",
            "Choose from: My answer is yes. My answer is no. My answer is maybe.",
        ),
        _nothing,
        _constrained,
    ),
    Instruction(
        "keywords:existence",
        "content",
        ("Include the word {keywords}.", "Use the word {keywords} in your answer."),
        lambda rng: {"keywords": [rng.choice(words.KEYWORDS)]},
        _keyword,
    ),
    Instruction(
        "detectable_format:number_highlighted_sections",
        "content",
        (
            "Highlight at least {num_highlights} words with *stars*.",
            "Put at least {num_highlights} highlighted words in *stars*.",
        ),
        _between("num_highlights", 1, 3),
        _highlights,
    ),
    Instruction(
        "detectable_content:number_placeholders",
        "content",
        (
            "Use at least {num_placeholders} placeholders in [brackets].",
            "There must be at least {num_placeholders} placeholders in [brackets].",
        ),
        _between("num_placeholders", 1, 3),
        _placeholders,
    ),
    Instruction(
        "detectable_format:title",
        "frame",
        ("Add a title in <<double brackets>>.", "Your answer must have a title in <<double brackets>>."),
        _nothing,
        _title,
    ),
    Instruction(
        "detectable_content:postscript",
        "frame",
        (
            "Add a postscript starting with {postscript_marker}",
            "At the end add a note starting with {postscript_marker}",
        ),
        lambda _: {"postscript_marker": "P.S."},
        _postscript,
    ),
    Instruction(
        "startend:end_checker",
        "frame",
        ("Finish with this phrase: {end_phrase}", "The very last words must be: {end_phrase}"),
        lambda rng: {"end_phrase": rng.choice(words.END_PHRASES)},
        _end,
    ),
    Instruction(
        "startend:quotation",
        "frame",
        (
            "Wrap your whole answer in double quotation marks.",
            "Put the entire answer in double quotation marks.",
        ),
        _nothing,
        _leave,
        lambda text: f'"{text}"',
    ),
    Instruction(
        "change_case:english_capital",
        "style",
        ("Write in capital letters only.", "Your whole answer should be in all capital letters."),
        _nothing,
        _leave,
        str.upper,
    ),
    Instruction(
        "change_case:english_lowercase",
        "style",
        ("Write in lowercase letters only.", "Your whole answer should be in all lowercase letters."),
        _nothing,
        _leave,
        str.lower,
    ),
    Instruction(
        "punctuation:no_comma",
        "style",
        ("Do not use any commas.", "Your answer must not contain commas."),
        _nothing,
        _no_comma,
    ),
)
BY_ID = {instruction.id: instruction for instruction in INSTRUCTIONS}
LAYERS = ("shape", "content", "frame", "style")

# Incompatible pairs: a JSON object or a set phrase leaves no room for a frame or a style, section names are
# case-sensitive, a highlight's star counts as a bullet, and a quotation mark hides the first bullet.
CLASHES = {
    frozenset(pair)
    for pair in [
        *(
            ("detectable_format:json_format", other)
            for other in (
                "detectable_format:title",
                "detectable_content:postscript",
                "startend:end_checker",
                "startend:quotation",
                "change_case:english_capital",
                "change_case:english_lowercase",
                "detectable_format:number_highlighted_sections",
                "detectable_content:number_placeholders",
            )
        ),
        *(
            ("detectable_format:constrained_response", other)
            for other in (
                "change_case:english_capital",
                "change_case:english_lowercase",
                "punctuation:no_comma",
                "keywords:existence",
                "detectable_format:number_highlighted_sections",
                "detectable_content:number_placeholders",
                "detectable_content:postscript",
            )
        ),
        ("detectable_format:multiple_sections", "change_case:english_capital"),
        ("detectable_format:multiple_sections", "change_case:english_lowercase"),
        ("detectable_format:number_bullet_lists", "detectable_format:number_highlighted_sections"),
        ("detectable_format:number_bullet_lists", "startend:quotation"),
        ("combination:two_responses", "startend:quotation"),
        ("length_constraints:number_paragraphs", "detectable_format:number_highlighted_sections"),
        ("combination:two_responses", "detectable_format:number_highlighted_sections"),
    ]
}


def compatible(first: Instruction, second: Instruction) -> bool:
    if first.id == second.id or frozenset((first.id, second.id)) in CLASHES:
        return False
    return first.layer != second.layer or first.layer in ("content", "frame")


PAIRS = tuple(
    (first, second)
    for i, first in enumerate(INSTRUCTIONS)
    for second in INSTRUCTIONS[i + 1 :]
    if compatible(first, second)
)
COMBINATIONS: tuple[tuple[Instruction, ...], ...] = (*((one,) for one in INSTRUCTIONS), *PAIRS)
COPYING = tuple(  # combinations that repeat a part of the prompt
    kind
    for kind in COMBINATIONS
    if any(one.id in ("keywords:existence", "startend:end_checker") for one in kind)
)


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


def draw_instructions(rng: random.Random, singles: float = 0.4) -> tuple[Instruction, ...]:
    """Draw one instruction, or two compatible ones."""
    return (rng.choice(INSTRUCTIONS),) if rng.random() < singles else rng.choice(PAIRS)
