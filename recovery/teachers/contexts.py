"""Build the teacher's prompts: a context that the student does not see, added by a template.

A template with {prompt} replaces the user turn; one without it becomes the system message. {context} is
filled from the prompt's row, else from the text given for all rows, else (demonstrations only) from the
training pairs most similar to the prompt. A given text that contains {prompt} is used as the template.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from recovery.errors import InputError
from recovery.unspaced_scripts import UNSPACED

if TYPE_CHECKING:
    from recovery.batches.rollouts import Dialogue
    from recovery.models.chat_model import ChatModel

Messages = list[dict[str, Any]]
KEPT_IDS = 4096  # prompts whose token ids are cached

TEMPLATES = {
    "demonstrations": (
        "{prompt}\n\nThis is how such requests are answered:\n\n{context}\n\n"
        "Now answer with a response of your own."
    ),
    "rules": "Follow these rules in every answer, without mentioning them:\n\n{context}",
    "system": "{context}",
    "answer": (
        "{prompt}\n\nFor reference, this is a correct answer:\n\n{context}\n\n"
        "With that in mind, answer in your own way, step by step where that helps."
    ),
    "hints": "{prompt}\n\nHints:\n\n{context}\n\nUse them, and answer as if you had not been given any.",
    "passage": "{context}\n\n{prompt}",
}
OPTIONAL = ("passage",)  # of some rows: the teacher reads the others as the student does
EXAMPLE = "Request: {prompt}\nResponse: {context}"
_UNSPACED = UNSPACED + "\U00020000-\U0003ffff"  # and rare Han
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_RUN = re.compile(rf"[{_UNSPACED}]+|[^\W{_UNSPACED}]+")
ABSENT: tuple[object, ...] = (None, "", [], {})  # values of a field that say nothing; 0 is an answer


class PromptRow(Protocol):
    """A prompt that ends with a user turn, and the other fields of its row: response, answer, hints, ..."""

    @property
    def messages(self) -> Messages: ...
    @property
    def fields(self) -> Mapping[str, Any]: ...


class Context:
    """Map a prompt to the messages that the teacher reads in its place."""

    def __init__(
        self, kind: str, given: str | None = None, examples: Sequence[PromptRow] = (), shots: int = 1
    ) -> None:
        if kind not in TEMPLATES:
            raise InputError(f"context {kind!r} is not one of {', '.join(TEMPLATES)}")
        self.kind = kind
        self.shots = shots
        self.fields = ("answer", "response") if kind == "answer" else (kind,)  # of a row, the first present
        self.template, self.given = TEMPLATES[kind], given
        if given is not None and "{prompt}" in given:
            self.template, self.given = given, None
        self.examples = Examples(examples) if kind == "demonstrations" and examples else None

    def __call__(self, item: PromptRow) -> Messages:
        messages = list(item.messages)
        if self.needs_text and self.kind in OPTIONAL and self._text(item) is None:
            return messages
        shown = self._shown(item) if self.needs_text else ""
        filled = fill(self.template, prompt(item), shown)
        if "{prompt}" in self.template:
            place = _last_user_turn(messages)
            messages[place] = {**messages[place], "content": filled}
            return messages
        if messages[0]["role"] == "system":
            messages[0] = {**messages[0], "content": f"{filled}\n\n{messages[0]['content']}"}
            return messages
        return [{"role": "system", "content": filled}, *messages]

    @property
    def needs_text(self) -> bool:
        return "{context}" in self.template

    @property
    def adds_system_turn(self) -> bool:
        return "{prompt}" not in self.template

    def check(self, items: Iterable[PromptRow]) -> None:
        """Raise InputError if a prompt has no context (optional: if none has); call it before any work."""
        if not self.needs_text or self.given is not None or self.examples:
            return
        rows = list(items)
        if self.kind in OPTIONAL and any(self._text(item) is not None for item in rows):
            return
        for item in rows:
            self._shown(item)

    def _text(self, item: PromptRow) -> str | None:
        """Return the row's own context, or that of all rows; None where there is neither."""
        own = next((item.fields[name] for name in self.fields if has(item.fields, name)), self.given)
        if own is None:
            return None
        return "\n".join(map(str, own)) if isinstance(own, list) else str(own)

    def _shown(self, item: PromptRow) -> str:
        own = self._text(item)
        if own is not None:
            return own
        if self.examples:
            alike = self.examples.like(prompt(item), self.shots)
            return "\n\n".join(fill(EXAMPLE, prompt(pair), str(response(pair))) for pair in alike)
        wanted = " or ".join(map(repr, self.fields))
        more = ", or pairs to learn from" if self.kind == "demonstrations" else ""
        raise InputError(
            f"context {self.kind}: nothing to show the teacher for the prompt {prompt(item)[:60]!r}: "
            f"set distill.context (--context TEXT or FILE), or give a field {wanted} in its row{more}"
        )


class Examples:
    """Retrieve training pairs by TF-IDF similarity of their prompts."""

    def __init__(self, pairs: Sequence[PromptRow]) -> None:
        self.pairs = pairs
        self.holders: dict[str, list[int]] = defaultdict(list)
        for number, pair in enumerate(pairs):
            for word in _words(prompt(pair)):
                self.holders[word].append(number)
        squares = [sum(self._weight(word) ** 2 for word in _words(prompt(pair))) for pair in pairs]
        self.lengths = [math.sqrt(square) or 1.0 for square in squares]

    def like(self, text: str, count: int) -> list[PromptRow]:
        """Return the pairs most similar to a prompt by cosine; a pair with the same prompt comes first."""
        likeness: dict[int, float] = defaultdict(float)
        for word in sorted(_words(text)):
            for number in self.holders.get(word, ()):
                likeness[number] += self._weight(word) ** 2 / self.lengths[number]
        nearest = sorted(likeness, key=lambda number: (-round(likeness[number], 9), number))
        return [self.pairs[number] for number in nearest[:count]] or list(self.pairs[:count])

    def _weight(self, word: str) -> float:
        return math.log(1 + len(self.pairs) / len(self.holders[word]))


class RowEncoder:
    """Encode each row: student prompt, teacher prompt, and dialogue with the answer in the data."""

    def __init__(
        self, chat_model: ChatModel, items: Sequence[PromptRow], context: Context | None = None
    ) -> None:
        self.chat_model = chat_model
        self.items = items
        self.context = context
        # Not methods: a cache of one would refer to the encoder that holds it, and keep the model in memory.
        self.student = _cached_prompts(chat_model, items, None)
        self.teacher = _cached_prompts(chat_model, items, context) if context else self.student

    def check(self) -> None:
        """Render every row, so that a row that the template rejects stops the run before its first step."""
        refused: list[str] = []
        for item in self.items:
            seen = [item.messages]
            if self.context and self.context.adds_system_turn:
                seen.append(self.context(item))
            try:
                for messages in seen:
                    self.chat_model.encoder.prompt_text(messages)
            except InputError as error:
                refused.append(str(error))
        if refused:
            raise InputError(
                f"prompts: {len(refused)} of {len(self.items)} rows cannot be rendered, first: "
                f"{refused[0]}: change or drop them"
            )

    def dialogue(self, row: int) -> Dialogue:
        """Return the row's prompt and its answer from the data; True on the answer's tokens."""
        item = self.items[row]
        answer = {"role": "assistant", "content": str(response(item))}
        return self.chat_model.dialogue_ids([*item.messages, answer])


def _cached_prompts(
    chat_model: ChatModel, items: Sequence[PromptRow], context: Context | None
) -> Callable[[int], list[int]]:
    """Return a function from a row to its prompt's token ids, in the context if there is one."""

    @lru_cache(KEPT_IDS)
    def ids(row: int) -> list[int]:
        item = items[row]
        return chat_model.prompt_ids(context(item) if context else item.messages)

    return ids


def prompt(item: PromptRow) -> str:
    """Return the text of the last user turn; a tool result may follow it."""
    return str(item.messages[_last_user_turn(item.messages)]["content"])


def _last_user_turn(messages: Messages) -> int:
    return max(place for place, turn in enumerate(messages) if turn["role"] == "user")


def has(fields: Mapping[str, Any], name: str) -> bool:
    """Return whether a row has something in a field."""
    return fields.get(name) not in ABSENT


def response(item: PromptRow) -> str | None:
    """Return the answer in the data, or None if the row has none."""
    found = item.fields.get("response")
    return found if isinstance(found, str) and found.strip() else None


def fill(template: str, prompt: str, context: str) -> str:
    """Fill both placeholders in one pass, so that a prompt containing "{context}" is left unchanged."""
    values = {"prompt": prompt, "context": context}
    return re.sub(r"\{(prompt|context)\}", lambda found: values[found[1]], template)


def show(
    items: Iterable[PromptRow], context: Context | None, render: Callable[[Messages], str]
) -> list[dict[str, str]]:
    """Render each row as student and teacher read it, for `recover distill --show-prompts`."""
    rows = []
    for item in items:
        seen = context(item) if context else item.messages
        answer = response(item)
        row = {"student": render(item.messages), "teacher": render(seen)}
        rows.append(row if answer is None else row | {"response": answer})
    return rows


def _words(text: str) -> set[str]:
    """Return a text's words; in scripts without spaces, all pairs of neighbouring characters."""
    found: set[str] = set()
    for run in _RUN.findall(text.lower()):
        is_pairs = len(run) > 1 and _IS_UNSPACED.match(run)
        found |= {run[at : at + 2] for at in range(len(run) - 1)} if is_pairs else {run}
    return found
