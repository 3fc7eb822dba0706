"""Generate prompts in IFEval's format over its 25 instruction types, each with a reference answer.

A prompt is a request about a topic with one to three compatible instructions. Its reference answer is built
in layers (content, shape, frame, style) and checked with the checkers that score a model; a draw whose answer
does not pass is discarded. Prompts of the published set are excluded by hashes of their words.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from evals import harness
from recovery.errors import RecoverError

Kwargs = dict[str, Any]
Instructions = dict[str, Kwargs]  # instruction type -> its arguments

HERE = Path(__file__).parent
RELATIONS = ("at least", "less than")
PADDING = (0, 2, 5, 10, 20, 40, 80)  # sentences added until a lower limit on length is met
ATTEMPTS = 200  # draws for one prompt before giving up; one or two are usual

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

# In addition to the conflicts in the checkers' table: an answer has one shape, a section's name is matched
# with its case, and an English first word does not belong in a text of another language.
CONFLICTS = {
    *(frozenset(pair) for pair in combinations(SHAPES, 2)),
    *(frozenset((SECTIONS, style)) for style in (UPPER, LOWER)),
    frozenset((LANGUAGE, FIRST_WORD)),
}


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
    used = set(_published()) | {fingerprint(text) for text in exclude}
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


def fingerprint(text: str) -> str:
    """Hash of a prompt's words; case, punctuation and spacing do not count."""
    words = re.findall(r"\w+", text.casefold())
    return hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]


@cache
def _published() -> frozenset[str]:
    """Fingerprints of the 541 published IFEval prompts."""
    return frozenset((HERE / "ifeval_fingerprints.txt").read_text(encoding="utf-8").split())


@cache
def _texts() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((HERE / "instruction_texts.yaml").read_text(encoding="utf-8"))
    return found


# --- drawing ---------------------------------------------------------------------------------------------


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
    raise RecoverError(f"{first}: no new prompt in {ATTEMPTS} draws: ask for fewer, or use several seeds")


def _draw(rng: random.Random, first: str) -> InstructionPrompt | None:
    """Draw one prompt with the given instruction type; return None if no reference answer passes."""
    instructions = {name: ARGUMENTS[name](rng) for name in _combination(rng, first)}
    topic = rng.choice(_texts()["topics"])
    text = _request(rng, topic, instructions)
    names = list(instructions)
    kwargs = list(instructions.values())
    for padding in PADDING:
        answer = _answer(rng, topic, instructions, padding)
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


def compatible(one: str, other: str) -> bool:
    """Return whether two different instruction types can be combined in one prompt."""
    if one == other or frozenset((one, other)) in CONFLICTS:
        return False
    table = harness.instruction_conflicts()
    return other not in table[one] and one not in table[other]


def _relation(
    rng: random.Random, prefix: str, name: str, least: Sequence[int], less: Sequence[int]
) -> Kwargs:
    """Draw a lower or an upper limit, each from its own range."""
    relation = rng.choice(RELATIONS)
    limits = least if relation == "at least" else less
    return {f"{prefix}relation": relation, name: rng.choice(limits)}


def _number(name: str, low: int, high: int) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {name: rng.randint(low, high)}


def _nothing(_: random.Random) -> Kwargs:
    return {}


def _pick(name: str, choices: str) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {name: rng.choice(sorted(_texts()[choices]))}


def _words(name: str, choices: str, low: int, high: int) -> Callable[[random.Random], Kwargs]:
    return lambda rng: {name: sorted(rng.sample(_texts()[choices], rng.randint(low, high)))}


def _keyword_frequency(rng: random.Random) -> Kwargs:
    limit = _relation(rng, "", "frequency", range(2, 6), range(2, 6))
    return limit | {"keyword": rng.choice(_texts()["keywords"])}


def _letter_frequency(rng: random.Random) -> Kwargs:
    limit = _relation(rng, "let_", "let_frequency", range(5, 31), range(3, 9))
    letters = "aeinorst" if limit["let_relation"] == "at least" else "jkqvwxz"
    return limit | {"letter": rng.choice(letters)}


def _first_word(rng: random.Random) -> Kwargs:
    paragraphs = rng.randint(2, 5)
    return {
        "num_paragraphs": paragraphs,
        "nth_paragraph": rng.randint(1, paragraphs),
        "first_word": rng.choice(_texts()["first_words"]),
    }


def _sections(rng: random.Random) -> Kwargs:
    return {"section_spliter": rng.choice(("Section", "SECTION", "Part")), "num_sections": rng.randint(2, 5)}


ARGUMENTS: dict[str, Callable[[random.Random], Kwargs]] = {
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
    "detectable_content:postscript": lambda rng: {"postscript_marker": rng.choice(("P.S.", "P.P.S"))},
    BULLETS: _number("num_bullets", 2, 7),
    CONSTRAINED: _nothing,
    "detectable_format:number_highlighted_sections": _number("num_highlights", 2, 5),
    SECTIONS: _sections,
    JSON: _nothing,
    "detectable_format:title": _nothing,
    TWO: _nothing,
    REPEAT: _nothing,  # its argument is the request itself
    "startend:end_checker": _pick("end_phrase", "end_phrases"),
    "change_case:capital_word_frequency": lambda rng: _relation(
        rng, "capital_", "capital_frequency", range(2, 9), range(3, 9)
    ),
    UPPER: _nothing,
    LOWER: _nothing,
    "punctuation:no_comma": _nothing,
    "startend:quotation": _nothing,
}


# --- asking ----------------------------------------------------------------------------------------------


def _request(rng: random.Random, topic: str, instructions: Instructions) -> str:
    """Return the prompt's text; set the argument of an instruction that repeats the request."""
    openings = _texts()["questions" if CONSTRAINED in instructions else "requests"]
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
        shown["language"] = _texts()["languages"][kwargs["language"]][0]
    phrase: str = rng.choice(_texts()["phrasings"][name])
    return phrase.format(**shown)


def _shown(value: Any) -> str:
    """Format an argument as plain English."""
    if isinstance(value, list):
        quoted = [f'"{word}"' for word in value]
        return " and ".join([", ".join(quoted[:-1]), quoted[-1]]) if len(quoted) > 1 else quoted[0]
    return {"less than": "fewer than"}.get(value, str(value))


# --- answering -------------------------------------------------------------------------------------------


def _answer(rng: random.Random, topic: str, instructions: Instructions, padding: int) -> str:
    """Write an answer meant to follow all instructions, with `padding` extra sentences."""
    if CONSTRAINED in instructions:
        return rng.choice(("My answer is yes.", "My answer is no.", "My answer is maybe."))
    sentences = _sentences(rng, topic, instructions.get(LANGUAGE, {}).get("language"))
    body = " ".join([*(next(sentences) for _ in range(2 + padding)), *_keywords(instructions)])
    body = _mark_words(body, instructions)
    text = _shaped(body, sentences, instructions, topic)
    text = _framed(rng, text, sentences, instructions)
    if UPPER in instructions:
        return text.upper()
    return text.lower() if LOWER in instructions else text


def _sentences(rng: random.Random, topic: str, language: str | None) -> Iterator[str]:
    """Yield sentences without commas, in a new order each time that all have been used."""
    templates = _texts()["sentences"] if language is None else _texts()["languages"][language][1:]
    while True:
        for template in rng.sample(templates, len(templates)):
            first, second = rng.sample(_texts()["adjectives"], 2)
            yield template.format(t=topic, a=first, b=second)


def _keywords(instructions: Instructions) -> Iterator[str]:
    """Sentences that hold the words which must occur."""
    for keyword in instructions.get("keywords:existence", {}).get("keywords", ()):
        yield f"Somebody might mention the word {keyword} here."
    frequency = instructions.get("keywords:frequency", {"relation": ""})
    if frequency["relation"] == "at least":
        for _ in range(frequency["frequency"]):
            yield f"Then think of the word {frequency['keyword']}."


def _mark_words(body: str, instructions: Instructions) -> str:
    """Highlight, capitalise and follow by a placeholder as many of the body's words as asked."""
    capitals = instructions.get("change_case:capital_word_frequency", {"capital_relation": ""})
    highlights = instructions.get("detectable_format:number_highlighted_sections", {})
    placeholders = instructions.get("detectable_content:number_placeholders", {})
    words = body.split(" ")
    if capitals["capital_relation"] == "at least":
        words = _each(words, capitals["capital_frequency"], str.upper)
    words = _each(words, highlights.get("num_highlights", 0), lambda word: f"*{word}*")
    names = iter(_texts()["placeholders"])
    words = _each(words, placeholders.get("num_placeholders", 0), lambda word: f"{word} [{next(names)}]")
    return " ".join(words)


def _each(words: Sequence[str], count: int, change: Callable[[str], str]) -> list[str]:
    """Change the first `count` plain words of two letters or more; never the very first word."""
    plain = [index for index, word in enumerate(words) if index and word.isalpha() and len(word) > 1]
    chosen = set(plain[:count])
    return [change(word) if index in chosen else word for index, word in enumerate(words)]


def _shaped(body: str, sentences: Iterator[str], instructions: Instructions, topic: str) -> str:
    if BULLETS in instructions:
        points = [f"* {next(sentences)}" for _ in range(instructions[BULLETS]["num_bullets"])]
        return "\n".join([body, *points])
    if SECTIONS in instructions:
        name, count = instructions[SECTIONS]["section_spliter"], instructions[SECTIONS]["num_sections"]
        parts = [body, *(next(sentences) for _ in range(count - 1))]
        return "\n\n".join(f"{name} {number}\n{part}" for number, part in enumerate(parts, 1))
    if DIVIDED in instructions:
        count = instructions[DIVIDED]["num_paragraphs"]
        return "\n***\n".join([body, *(next(sentences) for _ in range(count - 1))])
    if FIRST_WORD in instructions:
        return _with_first_word(body, sentences, instructions[FIRST_WORD], topic)
    if TWO in instructions:
        return f"{body}\n******\n{next(sentences)}"
    return json.dumps({"answer": body}, ensure_ascii=False) if JSON in instructions else body


def _with_first_word(body: str, sentences: Iterator[str], kwargs: Kwargs, topic: str) -> str:
    parts = [body, *(next(sentences) for _ in range(kwargs["num_paragraphs"] - 1))]
    nth = kwargs["nth_paragraph"] - 1
    parts[nth] = f"{kwargs['first_word'].capitalize()} people talk about {topic}. {parts[nth]}"
    return "\n\n".join(parts)


def _framed(rng: random.Random, text: str, sentences: Iterator[str], instructions: Instructions) -> str:
    """Add title, postscript, closing phrase, repeated request and quotation marks, from the inside out."""
    if "detectable_format:title" in instructions:
        in_english = LANGUAGE not in instructions
        title = rng.choice(_texts()["titles"]) if in_english else next(sentences).rstrip(".")
        text = f"<<{title}>>\n{text}"
    if "detectable_content:postscript" in instructions:
        marker = instructions["detectable_content:postscript"]["postscript_marker"]
        text = f"{text}\n{marker} {next(sentences)}"
    if "startend:end_checker" in instructions:
        text = f"{text}\n{instructions['startend:end_checker']['end_phrase']}"
    if REPEAT in instructions:
        text = f"{instructions[REPEAT]['prompt_to_repeat']}\n\n{text}"
    return f'"{text}"' if "startend:quotation" in instructions else text
