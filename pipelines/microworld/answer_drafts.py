"""Write an answer that follows instructions: a draft of its parts, and what each instruction does to it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from pipelines.microworld import words

Kwargs = dict[str, Any]  # an instruction's arguments, by IFEval's names


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


def leave(_: Draft, __: Kwargs) -> None:
    return None


def bullets(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts = [f"* {draft.sentence()}" for _ in range(kwargs["num_bullets"])]
    draft.separator = "\n"


def sections(draft: Draft, kwargs: Kwargs) -> None:
    name = kwargs["section_spliter"]
    count = kwargs["num_sections"]
    draft.parts = [f"{name} {number + 1}\n{draft.sentence()}" for number in range(count)]
    draft.separator = "\n"


def paragraphs(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts = [draft.sentence() for _ in range(kwargs["num_paragraphs"])]
    draft.separator = "\n***\n"


def two_responses(draft: Draft, _: Kwargs) -> None:
    draft.parts = [draft.sentence(), draft.sentence()]
    draft.separator = "\n******\n"


def one_sentence(draft: Draft, _: Kwargs) -> None:
    draft.parts = [draft.sentence()]


def as_json(text: str) -> str:
    return json.dumps({"text": text})


def constrained(draft: Draft, _: Kwargs) -> None:
    draft.parts = [f"My answer is {draft.rng.choice(('yes', 'no', 'maybe'))}."]


def keyword(draft: Draft, kwargs: Kwargs) -> None:
    draft.parts[-1] += f" It makes me think of {kwargs['keywords'][0]}."


def highlights(draft: Draft, kwargs: Kwargs) -> None:
    adjectives = draft.rng.sample(words.ADJECTIVES, kwargs["num_highlights"])
    draft.parts[-1] += " It is " + " and ".join(f"*{word}*" for word in adjectives) + "."


def placeholders(draft: Draft, kwargs: Kwargs) -> None:
    names = draft.rng.sample(("name", "place", "date", "time"), kwargs["num_placeholders"])
    draft.parts[-1] += " Please ask " + " and ".join(f"[{name}]" for name in names) + "."


def title(draft: Draft, _: Kwargs) -> None:
    draft.before.insert(0, f"<<{draft.topic.title()}>>")


def postscript(draft: Draft, _: Kwargs) -> None:
    topic = draft.topic[0].upper() + draft.topic[1:]
    draft.after.insert(0, f"P.S. {topic} is {draft.rng.choice(words.ADJECTIVES)}.")


def end_phrase(draft: Draft, kwargs: Kwargs) -> None:
    draft.after.append(str(kwargs["end_phrase"]))


def no_comma(draft: Draft, _: Kwargs) -> None:
    draft.commas = False
