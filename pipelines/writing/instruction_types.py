"""The 25 instruction types of IFEval: which can be combined, how their arguments are drawn, their texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from evals import harness

Kwargs = dict[str, Any]
Instructions = dict[str, Kwargs]  # instruction type -> its arguments
Draw = Callable[[random.Random], Kwargs]

TEXTS = Path(__file__).parent / "instruction_texts.yaml"
RELATIONS = ("at least", "less than")

BULLETS = "detectable_format:number_bullet_lists"
SECTIONS = "detectable_format:multiple_sections"
DIVIDED = "length_constraints:number_paragraphs"
FIRST_WORD = "length_constraints:nth_paragraph_first_word"
TWO = "combination:two_responses"
JSON = "detectable_format:json_format"
CONSTRAINED = "detectable_format:constrained_response"
SHAPES = (BULLETS, SECTIONS, DIVIDED, FIRST_WORD, TWO, JSON, CONSTRAINED)
UPPER, LOWER = "change_case:english_capital", "change_case:english_lowercase"
LANGUAGE = "language:response_language"
REPEAT = "combination:repeat_prompt"
END, QUOTATION = "startend:end_checker", "startend:quotation"
POSTSCRIPT = "detectable_content:postscript"

# In addition to the conflicts in the checkers' table: an answer has one shape, a section's name is matched
# with its case, and an English first word does not belong in a text of another language. Checkers that ignore
# case and quotation marks pass answers to what the words rule out: to end with a phrase as it is written, in
# capitals or with a mark behind it, or to write "P.S." in lowercase.
CONFLICTS = {
    *(frozenset(pair) for pair in combinations(SHAPES, 2)),
    *(frozenset((SECTIONS, style)) for style in (UPPER, LOWER)),
    frozenset((LANGUAGE, FIRST_WORD)),
    *(frozenset((END, style)) for style in (UPPER, LOWER, QUOTATION)),
    frozenset((POSTSCRIPT, LOWER)),
}


@cache
def texts() -> dict[str, Any]:
    """Return topics, phrasings, sentences and words that prompts and answers are made of."""
    found: dict[str, Any] = yaml.safe_load(TEXTS.read_text(encoding="utf-8"))
    return found


def compatible(one: str, other: str) -> bool:
    """Return whether two different instruction types can be combined in one prompt."""
    if one == other or frozenset((one, other)) in CONFLICTS:
        return False
    table = harness.instruction_conflicts()
    return other not in table[one] and one not in table[other]


# Arguments -------------------------------------------------------------------------------------------------


def _relation(
    rng: random.Random, prefix: str, name: str, least: Sequence[int], less: Sequence[int]
) -> Kwargs:
    """Draw a lower or an upper limit, each from its own range."""
    relation = rng.choice(RELATIONS)
    limits = least if relation == "at least" else less
    return {f"{prefix}relation": relation, name: rng.choice(limits)}


def _number(name: str, low: int, high: int) -> Draw:
    return lambda rng: {name: rng.randint(low, high)}


def _nothing(_: random.Random) -> Kwargs:
    return {}


def _pick(name: str, choices: str) -> Draw:
    return lambda rng: {name: rng.choice(sorted(texts()[choices]))}


def _words(name: str, choices: str, low: int, high: int) -> Draw:
    return lambda rng: {name: sorted(rng.sample(texts()[choices], rng.randint(low, high)))}


def _keyword_frequency(rng: random.Random) -> Kwargs:
    limit = _relation(rng, "", "frequency", range(2, 6), range(2, 6))
    return limit | {"keyword": rng.choice(texts()["keywords"])}


def _letter_frequency(rng: random.Random) -> Kwargs:
    limit = _relation(rng, "let_", "let_frequency", range(5, 31), range(3, 9))
    letters = "aeinorst" if limit["let_relation"] == "at least" else "jkqvwxz"
    return limit | {"letter": rng.choice(letters)}


def _first_word(rng: random.Random) -> Kwargs:
    paragraphs = rng.randint(2, 5)
    return {
        "num_paragraphs": paragraphs,
        "nth_paragraph": rng.randint(1, paragraphs),
        "first_word": rng.choice(texts()["first_words"]),
    }


def _sections(rng: random.Random) -> Kwargs:
    return {"section_spliter": rng.choice(("Section", "SECTION", "Part")), "num_sections": rng.randint(2, 5)}


ARGUMENTS: dict[str, Draw] = {
    "keywords:existence": _words("keywords", "keywords", 2, 3),
    "keywords:frequency": _keyword_frequency,
    "keywords:forbidden_words": _words("forbidden_words", "common_words", 2, 4),
    "keywords:letter_frequency": _letter_frequency,
    LANGUAGE: _pick("language", "languages"),
    "length_constraints:number_sentences": lambda rng: _relation(
        rng, "", "num_sentences", range(3, 13), range(4, 13)
    ),
    DIVIDED: _number("num_paragraphs", 2, 5),
    "length_constraints:number_words": lambda rng: _relation(
        rng, "", "num_words", range(40, 260, 10), range(60, 260, 10)
    ),
    FIRST_WORD: _first_word,
    "detectable_content:number_placeholders": _number("num_placeholders", 2, 6),
    POSTSCRIPT: lambda rng: {"postscript_marker": rng.choice(("P.S.", "P.P.S"))},
    BULLETS: _number("num_bullets", 2, 7),
    CONSTRAINED: _nothing,
    "detectable_format:number_highlighted_sections": _number("num_highlights", 2, 5),
    SECTIONS: _sections,
    JSON: _nothing,
    "detectable_format:title": _nothing,
    TWO: _nothing,
    REPEAT: _nothing,  # its argument is the request itself
    END: _pick("end_phrase", "end_phrases"),
    "change_case:capital_word_frequency": lambda rng: _relation(
        rng, "capital_", "capital_frequency", range(2, 9), range(3, 9)
    ),
    UPPER: _nothing,
    LOWER: _nothing,
    "punctuation:no_comma": _nothing,
    QUOTATION: _nothing,
}
