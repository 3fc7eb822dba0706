"""Define a family: its questions, how a model is asked them, and how two models are compared on it."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evals.scores import Item, ModelCalls

Chat = list[dict[str, Any]]


@dataclass(frozen=True)
class Question:
    """A chat to answer, with what its judge needs and a reference answer that passes."""

    messages: Chat
    kind: str
    expected: Any = None
    answer: str = ""
    cluster: str = ""  # questions that stand or fall together share one

    @property
    def text(self) -> str:
        """What all turns say."""
        return "\n".join(str(message["content"]) for message in self.messages)

    @property
    def key(self) -> str:
        return fingerprint(self.text)

    @property
    def shown(self) -> str:
        """The chat as a reader sees it: roles where there are several turns, and the names of the tools."""
        turns = self.messages
        said = [f"{turn['role']}: {turn['content']}" for turn in turns] if len(turns) > 1 else [self.text]
        tools = [tool["function"]["name"] for turn in turns for tool in turn.get("tools") or ()]
        return "\n".join([*said, f"[tools: {', '.join(tools)}]"] if tools else said)

    def item(self, response: str, fault: str, **detail: Any) -> Item:
        """Return the answered question; it passes if there is no fault."""
        named = {"kind": self.kind, "cluster": self.cluster or self.key, **detail}
        named |= {"fault": fault} if fault else {}
        return Item(self.key, self.shown, response, not fault, named)


Draw = Callable[[random.Random], Question]
Ask = Callable[[ModelCalls, Sequence[Question], int], list[Item]]
"""Map a model, questions and the most tokens of an answer to answered questions."""
Judge = Callable[[Question, str], str]
"""Return what is wrong with an answer; nothing if it passes."""


@dataclass(frozen=True)
class Family:
    """A row of the table of families."""

    name: str
    claim: str  # what an answer must be, in words
    draw: Draw
    ask: Ask
    recovery: str  # the prompts that bring it back, in words
    measure: str = "share"  # a row of evals/families/measures.py
    rates: tuple[str, ...] = field(default=())  # kinds of questions that must each be kept
    fixed: Callable[[str | None], Sequence[Question]] | None = None  # suite from a file of probes, not drawn


def written(judge: Judge) -> Ask:
    """Let the model write an answer to every question, greedily, and judge each."""

    def ask(model: ModelCalls, questions: Sequence[Question], max_new_tokens: int) -> list[Item]:
        answers = model.generate([question.messages for question in questions], max_new_tokens, 0.0)
        return [
            question.item(answer, judge(question, answer))
            for question, answer in zip(questions, answers, strict=True)
        ]

    return ask


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def normalised(text: str) -> str:
    """Return the words of a text; case, punctuation and spacing do not count."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def fingerprint(text: str) -> str:
    """Return a hash of a text's words."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:16]
