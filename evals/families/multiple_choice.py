"""Ask multiple-choice questions by the probabilities of their options, for a model's calibration.

The probabilities of the letters A to D as the answer, rescaled to add up to one, say which option the model
chooses and how sure it is. The suite are the retention probes, with three answers of other probes of their
kind as wrong options; recovery prompts are arithmetic and comparisons in the same form.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence

from evals.answer_matching import matches, normalise
from evals.families.family import Question, user
from evals.families.words import CITIES, THINGS
from evals.probes import RETENTION, Probe, suite_probes
from evals.scores import Asked, Item, Message, ModelCalls

LETTERS = "ABCD"
CLOSING = "Answer with the letter only."


def multiple_choice(
    asks: Sequence[Message], right: str, wrong: Sequence[str], rng: random.Random, cluster: str = ""
) -> Question:
    """Return the question with its options in random order, below its last turn."""
    options = [right, *wrong]
    rng.shuffle(options)
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(LETTERS, options, strict=True))
    letter = LETTERS[options.index(right)]
    *before, last = asks
    chat = [*before, {**last, "content": f"{last['content']}\n{listed}\n{CLOSING}"}]
    return Question(chat, "choice", {"letter": letter, "options": options}, letter, cluster)


def from_probes(path: str | None) -> list[Question]:
    """Return the retention probes of a file, or the shipped general ones, as multiple choice, each once.

    Of few answers, a question that is asked again may get the same options in the same order."""
    probes = [probe for probe in suite_probes(path, RETENTION) if probe.counts]
    answers: dict[str, list[str]] = defaultdict(list)
    for probe in probes:
        answers[probe.kind].append(probe.answers[0])
    found = (_question(probe, answers[probe.kind]) for probe in probes)
    return list({question.key: question for question in found if question}.values())


def _question(probe: Probe, answers: Sequence[str]) -> Question | None:
    """Choose three wrong options by the probe's id; None where its kind has too few other answers."""
    others = {normalise(answer): answer for answer in answers if not matches(answer, probe.answers)}
    if len(others) < len(LETTERS) - 1:
        return None
    rng = random.Random(f"multiple choice:{probe.id}")
    wrong = [others[name] for name in rng.sample(sorted(others), len(LETTERS) - 1)]
    return multiple_choice(probe.chat, probe.answers[0], wrong, rng, probe.fact)


def ask(model: ModelCalls, questions: Sequence[Question], max_new_tokens: int) -> list[Item]:
    """Choose each question's most probable letter; nothing is generated."""
    asked: list[tuple[Asked, str]] = [
        (question.messages, letter) for question in questions for letter in LETTERS
    ]
    totals = [total for total, _ in model.loglikelihood(asked)]
    rows = [totals[start : start + len(LETTERS)] for start in range(0, len(totals), len(LETTERS))]
    return [_item(question, row) for question, row in zip(questions, rows, strict=True)]


def _item(question: Question, logprobs: Sequence[float]) -> Item:
    most = max(logprobs)
    weights = [math.exp(one - most) for one in logprobs]
    shares = [weight / sum(weights) for weight in weights]
    confidence = max(shares)
    letter = LETTERS[shares.index(confidence)]
    fault = "" if letter == question.expected["letter"] else f"{question.expected['letter']} is right"
    return question.item(letter, fault, confidence=confidence, shares=shares)


def draw(rng: random.Random) -> Question:
    """Draw a question of arithmetic or comparison with three wrong options."""
    asks, right, near = rng.choice((_sum, _product, _largest, _first_in_alphabet))(rng)
    wrong = rng.sample(sorted(set(near) - {right}), len(LETTERS) - 1)
    return multiple_choice([user(asks)], right, wrong, rng)


Drawn = tuple[str, str, list[str]]  # question, right answer, wrong ones to choose from


def _numbers(rng: random.Random, right: int) -> list[str]:
    return [str(right + step) for step in rng.sample([n for n in range(-12, 13) if n], 6)]


def _sum(rng: random.Random) -> Drawn:
    a, b = rng.randint(11, 89), rng.randint(11, 89)
    return f"What is {a} plus {b}?", str(a + b), _numbers(rng, a + b)


def _product(rng: random.Random) -> Drawn:
    a, b = rng.randint(3, 19), rng.randint(3, 19)
    return f"What is {a} times {b}?", str(a * b), _numbers(rng, a * b)


def _largest(rng: random.Random) -> Drawn:
    numbers = rng.sample(range(100, 1000), 4)
    return "Which of these numbers is the largest?", str(max(numbers)), [str(number) for number in numbers]


def _first_in_alphabet(rng: random.Random) -> Drawn:
    named = rng.sample([word.lower() for word in (*CITIES, *THINGS)], 4)
    return "Which of these words comes first in the alphabet?", min(named), named
