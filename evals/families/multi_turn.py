"""Draw dialogues in which the last answer must keep an earlier instruction, or remember an earlier fact.

The assistant's earlier turns are written here and are right, so that every model continues the same dialogue.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from evals.answer_matching import matches
from evals.families import words
from evals.families.family import Chat, Question, assistant, normalised, user

SMALL_TALK = (
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("Name a fruit that is yellow.", "A banana is yellow."),
    ("How many days does a week have?", "A week has seven days."),
    ("What do bees make?", "Bees make honey."),
    ("What is two plus three?", "Two plus three is five."),
    ("Which season comes after winter?", "Spring comes after winter."),
    ("What colour is grass?", "Grass is green."),
    ("What is frozen water called?", "Frozen water is called ice."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("Where do fish live?", "Fish live in water."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ("Which animal barks?", "A dog barks."),
)


@dataclass(frozen=True)
class Rule:
    """A standing instruction: how it is said, how an answer obeys it, and the check."""

    name: str
    says: tuple[str, ...]
    apply: Callable[[str, str], str]  # text and word -> text that obeys
    obeyed: Callable[[str, str], bool]  # answer and word


RULES = (
    Rule(
        "ends with a word",
        (
            'End every answer with the word "{word}".',
            'The last word of each of your answers must be "{word}".',
        ),
        lambda text, word: f"{text} {word}",
        lambda answer, word: normalised(answer).split()[-1:] == [word],
    ),
    Rule(
        "begins with a word",
        (
            'Begin every answer with the word "{word}".',
            'The first word of all your answers must be "{word}".',
        ),
        lambda text, word: f"{word.capitalize()}: {text}",
        lambda answer, word: normalised(answer).split()[:1] == [word],
    ),
    Rule(
        "lower case",
        ("Write all your answers in lower case letters only.", "From now on, never use capital letters."),
        lambda text, word: text.lower(),
        lambda answer, word: bool(answer.strip()) and answer == answer.lower(),
    ),
    Rule(
        "capitals",
        ("Write all your answers in capital letters only.", "From now on, use capital letters only."),
        lambda text, word: text.upper(),
        lambda answer, word: bool(answer.strip()) and answer == answer.upper() != answer.lower(),
    ),
    Rule(
        "brackets",
        ("Put each of your answers in square brackets.", "Enclose every whole answer in [ and ]."),
        lambda text, word: f"[{text}]",
        lambda answer, word: re.fullmatch(r"\[.+\]", answer.strip(), re.DOTALL) is not None,
    ),
)
BY_NAME = {rule.name: rule for rule in RULES}
RELATIONS = ("sister", "brother", "neighbour", "cousin", "uncle", "best friend")
FACTS: tuple[tuple[str, str, Sequence[str]], ...] = (
    ("My {who} {name} lives in {value}.", "In which city does my {who} live?", words.CITIES),
    ("My {who} {name} works as a {value}.", "What is my {who}'s job?", words.JOBS),
    ("My {who} {name} is learning {value}.", "Which language is my {who} learning?", words.LANGUAGES),
    ("My {who} {name} has lost a {value}.", "What has my {who} lost?", words.THINGS),
)


def draw(rng: random.Random) -> Question:
    return (_instruction if rng.random() < 0.5 else _fact)(rng)


def _instruction(rng: random.Random) -> Question:
    """State a rule in the first turn; it must hold in the last."""
    rule, word = rng.choice(RULES), rng.choice(words.COLOURS)
    first, last = rng.sample(SMALL_TALK, 2)
    middle = rng.randint(0, 1)
    between = [one for one in rng.sample(SMALL_TALK, 3) if one not in (first, last)][:middle]
    says = rng.choice(rule.says).format(word=word)
    chat: Chat = [user(f"{says} {first[0]}"), assistant(rule.apply(first[1], word))]
    for question, answer in between:
        chat += [user(question), assistant(rule.apply(answer, word))]
    expected = {"rule": rule.name, "word": word}
    return Question([*chat, user(last[0])], "instruction", expected, rule.apply(last[1], word))


def _fact(rng: random.Random) -> Question:
    """State facts about two people in the first turn; ask for one of them in the last."""
    says, asks, values = rng.choice(FACTS)
    who, other = rng.sample(RELATIONS, 2)
    name, namesake = rng.sample(words.FIRST_NAMES, 2)
    value, wrong = rng.sample(list(values), 2)
    facts = [
        says.format(who=who, name=name, value=value),
        says.format(who=other, name=namesake, value=wrong),
    ]
    rng.shuffle(facts)
    chat: Chat = [user(" ".join(facts)), assistant("I will remember that.")]
    for question, answer in rng.sample(SMALL_TALK, rng.randint(1, 2)):
        chat += [user(question), assistant(answer)]
    expected = {"value": value, "wrong": wrong}
    return Question([*chat, user(asks.format(who=who))], "fact", expected, f"It is {value}.")


def judge(question: Question, answer: str) -> str:
    """Return what is wrong with the last answer: a broken rule, or a fact that it does not name."""
    expected: dict[str, Any] = question.expected
    if question.kind == "instruction":
        rule = BY_NAME[expected["rule"]]
        return "" if rule.obeyed(answer, expected["word"]) else f"breaks the rule: {rule.name}"
    if matches(answer, [expected["wrong"]]):
        return "names the other person's"
    return "" if matches(answer, [expected["value"]]) else f"does not name {expected['value']}"
