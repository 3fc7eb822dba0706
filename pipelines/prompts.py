"""Where recovery prompts come from: a file, a hub data set, or the microworld; checked against the evaluation."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.errors import InputError

Messages = list[dict[str, str]]
HUB_LIMIT = 50_000


@dataclass(frozen=True)
class Prompt:
    messages: Messages
    fields: dict[str, Any] = field(default_factory=dict)  # whatever else the row holds: answer, route, kind

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for message in self.messages)


def read_prompts(source: str, seed: int = 0) -> list[Prompt]:
    """Prompts from FILE (.jsonl, .json or a prompt a line), hub:NAME:SPLIT:FIELD, or `microworld`."""
    if source == "microworld":
        from pipelines.microworld.world import prompt_rows

        return [_prompt(row, source) for row in prompt_rows(seed, 0)]
    if source.startswith("hub:"):
        return _from_hub(source, seed)
    return _from_file(Path(source))


def _from_file(path: Path) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: prompts cannot be read: {error}") from error
    if path.suffix in (".jsonl", ".json"):
        rows = [_json_row(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    else:
        rows = [{"prompt": line} for line in lines if line.strip()]
    if not rows:
        raise InputError(f"{path} holds no prompt: give one a line")
    return [_prompt(row, f"{path}:{number}") for number, row in enumerate(rows, 1)]


def _json_row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    if isinstance(row, str):
        return {"prompt": row}
    if not isinstance(row, dict):
        raise InputError(f'{where}: expected an object with "prompt" or "messages"')
    return row


def _prompt(row: dict[str, Any], where: str) -> Prompt:
    rest = {key: value for key, value in row.items() if key not in ("prompt", "messages")}
    if isinstance(row.get("prompt"), str) and row["prompt"].strip():
        return Prompt([{"role": "user", "content": row["prompt"]}], rest)
    messages = _before_answer(row.get("messages"))
    if messages:
        return Prompt(messages, rest)
    raise InputError(f'{where}: expected a "prompt" text or "messages" with a user turn')


def _before_answer(messages: Any) -> Messages:
    """The dialogue up to and with its first user turn: what the student has to answer."""
    kept: Messages = []
    for message in messages if isinstance(messages, list) else []:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            return []
        kept.append({"role": str(message.get("role")), "content": message["content"]})
        if message.get("role") == "user":
            return kept if message["content"].strip() else []
    return []


def _from_hub(source: str, seed: int) -> list[Prompt]:
    parts = source.split(":")
    if len(parts) != 4 or not all(parts):
        raise InputError(f"{source}: expected hub:NAME:SPLIT:FIELD, as in hub:allenai/tulu-3-sft-mixture:train:messages")
    _, name, split, column = parts
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split, streaming=True).shuffle(seed=seed, buffer_size=HUB_LIMIT)
        found = [_hub_prompt(row, column) for row in rows.take(HUB_LIMIT)]
    except Exception as error:  # the hub raises a different class for each way of being out of reach
        raise InputError(
            f"{source}: the data set cannot be loaded ({type(error).__name__}): check its name and the network, "
            "or give --prompts FILE"
        ) from error
    prompts = [prompt for prompt in found if prompt is not None]
    if not prompts:
        raise InputError(f"{source}: no row of {column!r} holds a prompt: choose another field")
    return prompts


def _hub_prompt(row: dict[str, Any], column: str) -> Prompt | None:
    value = row.get(column)
    if isinstance(value, str) and value.strip():
        return Prompt([{"role": "user", "content": value}])
    messages = _before_answer(value)
    return Prompt(messages) if messages else None


def normalised(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


OPENING_WORDS = 8


def drop_leaks(prompts: Sequence[Prompt], evaluation: Sequence[str]) -> tuple[list[Prompt], int]:
    """Prompts that equal an evaluation prompt, or hold a whole one of eight words or more, are left out."""
    normal = [normalised(text) for text in evaluation]
    openings: dict[str, list[str]] = {}
    for text in normal:
        words = text.split()
        if len(words) >= OPENING_WORDS:
            openings.setdefault(" ".join(words[:OPENING_WORDS]), []).append(text)
    exact = set(normal)
    kept = [prompt for prompt in prompts if not _leaks(normalised(prompt.text), exact, openings)]
    return kept, len(prompts) - len(kept)


def _leaks(text: str, exact: set[str], openings: dict[str, list[str]]) -> bool:
    if text in exact:
        return True
    words = text.split()
    windows = (" ".join(words[i : i + OPENING_WORDS]) for i in range(len(words) - OPENING_WORDS + 1))
    return any(whole in text for window in windows for whole in openings.get(window, ()))
