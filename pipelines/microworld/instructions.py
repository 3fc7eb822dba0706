"""List the instruction types of the microworld, sixteen of IFEval's, and which of them go together.

An answer is built in layers: shape (bullets, sections, JSON, ...), content (a keyword, a highlight), frame (a
title, a closing phrase), style (capitals, no commas). Instructions are combined where their layers allow.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.microworld import answer_drafts as drafts
from pipelines.microworld import words
from pipelines.microworld.answer_drafts import Draft, Kwargs


@dataclass(frozen=True)
class Instruction:
    """One of IFEval's instruction types: its phrasings, and how an answer follows it."""

    id: str
    layer: str  # "shape" | "content" | "frame" | "style"
    phrasings: tuple[str, ...]
    draw: Callable[[random.Random], Kwargs]
    obey: Callable[[Draft, Kwargs], None]
    finish: Callable[[str], str] = str

    def ask(self, kwargs: Kwargs, rng: random.Random) -> str:
        shown = {key: value[0] if isinstance(value, list) else value for key, value in kwargs.items()}
        return rng.choice(self.phrasings).format(**shown)


def _nothing(_: random.Random) -> Kwargs:
    return {}


def _between(key: str, low: int, high: int) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {key: rng.randint(low, high)}


INSTRUCTIONS = (
    Instruction(
        "detectable_format:number_bullet_lists",
        "shape",
        ("Use exactly {num_bullets} bullet points.", "Your answer must have {num_bullets} bullet points."),
        _between("num_bullets", 2, 4),
        drafts.bullets,
    ),
    Instruction(
        "detectable_format:multiple_sections",
        "shape",
        (
            "Write {num_sections} sections and mark each with {section_spliter} X.",
            "Your answer must have {num_sections} sections marked {section_spliter} X.",
        ),
        lambda rng: {"section_spliter": rng.choice(("Section", "Part")), "num_sections": rng.randint(2, 3)},
        drafts.sections,
    ),
    Instruction(
        "length_constraints:number_paragraphs",
        "shape",
        (
            "Write {num_paragraphs} paragraphs and separate them with ***.",
            "There should be {num_paragraphs} paragraphs separated by ***.",
        ),
        _between("num_paragraphs", 2, 3),
        drafts.paragraphs,
    ),
    Instruction(
        "combination:two_responses",
        "shape",
        (
            "Give two different responses separated by ******.",
            "Write two different answers and separate them with ******.",
        ),
        _nothing,
        drafts.two_responses,
    ),
    Instruction(
        "detectable_format:json_format",
        "shape",
        ("Wrap the whole output in JSON format.", "Your answer should be in JSON format."),
        _nothing,
        drafts.one_sentence,
        drafts.as_json,
    ),
    Instruction(
        "detectable_format:constrained_response",
        "shape",
        (
            "Answer with one of: My answer is yes. My answer is no. My answer is maybe.",
            "Choose from: My answer is yes. My answer is no. My answer is maybe.",
        ),
        _nothing,
        drafts.constrained,
    ),
    Instruction(
        "keywords:existence",
        "content",
        ("Include the word {keywords}.", "Use the word {keywords} in your answer."),
        lambda rng: {"keywords": [rng.choice(words.KEYWORDS)]},
        drafts.keyword,
    ),
    Instruction(
        "detectable_format:number_highlighted_sections",
        "content",
        (
            "Highlight at least {num_highlights} words with *stars*.",
            "Put at least {num_highlights} highlighted words in *stars*.",
        ),
        _between("num_highlights", 1, 3),
        drafts.highlights,
    ),
    Instruction(
        "detectable_content:number_placeholders",
        "content",
        (
            "Use at least {num_placeholders} placeholders in [brackets].",
            "There must be at least {num_placeholders} placeholders in [brackets].",
        ),
        _between("num_placeholders", 1, 3),
        drafts.placeholders,
    ),
    Instruction(
        "detectable_format:title",
        "frame",
        ("Add a title in <<double brackets>>.", "Your answer must have a title in <<double brackets>>."),
        _nothing,
        drafts.title,
    ),
    Instruction(
        "detectable_content:postscript",
        "frame",
        (
            "Add a postscript starting with {postscript_marker}",
            "At the end add a note starting with {postscript_marker}",
        ),
        lambda _: {"postscript_marker": "P.S."},
        drafts.postscript,
    ),
    Instruction(
        "startend:end_checker",
        "frame",
        ("Finish with this phrase: {end_phrase}", "The very last words must be: {end_phrase}"),
        lambda rng: {"end_phrase": rng.choice(words.END_PHRASES)},
        drafts.end_phrase,
    ),
    Instruction(
        "startend:quotation",
        "frame",
        (
            "Wrap your whole answer in double quotation marks.",
            "Put the entire answer in double quotation marks.",
        ),
        _nothing,
        drafts.leave,
        lambda text: f'"{text}"',
    ),
    Instruction(
        "change_case:english_capital",
        "style",
        ("Write in capital letters only.", "Your whole answer should be in all capital letters."),
        _nothing,
        drafts.leave,
        str.upper,
    ),
    Instruction(
        "change_case:english_lowercase",
        "style",
        ("Write in lowercase letters only.", "Your whole answer should be in all lowercase letters."),
        _nothing,
        drafts.leave,
        str.lower,
    ),
    Instruction(
        "punctuation:no_comma",
        "style",
        ("Do not use any commas.", "Your answer must not contain commas."),
        _nothing,
        drafts.no_comma,
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
