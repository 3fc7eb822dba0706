"""Write the reference answer to a generated prompt, in layers: content, shape, frame, style."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence

from pipelines.writing.instruction_types import (
    BULLETS,
    CONSTRAINED,
    DIVIDED,
    FIRST_WORD,
    JSON,
    LANGUAGE,
    LOWER,
    REPEAT,
    SECTIONS,
    TWO,
    UPPER,
    Instructions,
    Kwargs,
    texts,
)


def reference_answer(rng: random.Random, topic: str, instructions: Instructions, padding: int) -> str:
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
    templates = texts()["sentences"] if language is None else texts()["languages"][language][1:]
    while True:
        for template in rng.sample(templates, len(templates)):
            first, second = rng.sample(texts()["adjectives"], 2)
            yield template.format(t=topic, a=first, b=second)


def _keywords(instructions: Instructions) -> Iterator[str]:
    """Yield sentences that hold the words which must occur."""
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
    names = iter(texts()["placeholders"])
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
        title = rng.choice(texts()["titles"]) if in_english else next(sentences).rstrip(".")
        text = f"<<{title}>>\n{text}"
    if "detectable_content:postscript" in instructions:
        marker = instructions["detectable_content:postscript"]["postscript_marker"]
        text = f"{text}\n{marker} {next(sentences)}"
    if "startend:end_checker" in instructions:
        text = f"{text}\n{instructions['startend:end_checker']['end_phrase']}"
    if REPEAT in instructions:
        text = f"{instructions[REPEAT]['prompt_to_repeat']}\n\n{text}"
    return f'"{text}"' if "startend:quotation" in instructions else text
