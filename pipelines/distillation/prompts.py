"""Where recovery prompts come from: a file, a hub data set, the microworld; none that the evaluation asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.errors import InputError

Messages = list[dict[str, str]]
HUB_LIMIT = 50_000
HUB_EXAMPLE = "hub:allenai/tulu-3-sft-mixture:train:messages"


@dataclass(frozen=True)
class Prompt:
    messages: Messages
    fields: dict[str, Any] = field(default_factory=dict)  # whatever else the row holds: answer, route, kind
    weight: float = 1.0  # of each of its tokens in the loss

    @property
    def text(self) -> str:
        return "\n".join(message["content"] for message in self.messages)


def read_prompts(source: str, seed: int = 0) -> list[Prompt]:
    """Prompts from FILE (.jsonl, a .json list, or a prompt a line), hub:NAME:SPLIT:FIELD, or `microworld`."""
    if source == "microworld":
        from pipelines.microworld.world import prompt_rows

        return [_prompt(row, source) for row in prompt_rows(seed, 0)]
    if source.startswith("hub:"):
        return _from_hub(source, seed)
    return _from_file(Path(source))


def _from_file(path: Path) -> list[Prompt]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: prompts cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: prompts cannot be read as UTF-8 text: {error}") from error
    found = [_prompt(row, where) for row, where in _rows(text, path)]
    if not found:
        raise InputError(f"{path} holds no prompt: give one a line")
    return found


def _rows(text: str, path: Path) -> Iterator[tuple[Any, str]]:
    """(row, where it stands). Lines end at \\n alone: JSON strings may hold Unicode's other line ends."""
    if path.suffix == ".json" and text.lstrip().startswith("["):
        rows = enumerate(_json(text, str(path)), 1)
        yield from ((row, f"{path}, entry {number}") for number, row in rows)
        return
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}:{number}"
        if line.strip():
            yield (_json(line, where) if path.suffix in (".jsonl", ".json") else line.strip()), where


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where}: not JSON: {error}") from error


def _prompt(row: Any, where: str) -> Prompt:
    row = {"prompt": row} if isinstance(row, str) else row
    if not isinstance(row, dict):
        raise InputError(f'{where}: expected an object with "prompt" or "messages"')
    rest = {key: value for key, value in row.items() if key not in ("prompt", "messages")}
    if isinstance(row.get("prompt"), str) and row["prompt"].strip():
        return Prompt([{"role": "user", "content": row["prompt"]}], rest)
    messages = _before_answer(row.get("messages"))
    if messages:
        return Prompt(messages, _answer(row["messages"], len(messages)) | rest)
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


def _answer(messages: Any, turns: int) -> dict[str, str]:
    """The assistant's turn that follows, as the row's own response."""
    following = messages[turns] if len(messages) > turns else None
    if not isinstance(following, dict) or following.get("role") != "assistant":
        return {}
    content = following.get("content")
    return {"response": content} if isinstance(content, str) else {}


def _from_hub(source: str, seed: int) -> list[Prompt]:
    parts = source.split(":")
    if len(parts) != 4 or not all(parts):
        raise InputError(f"{source}: expected hub:NAME:SPLIT:FIELD, as in {HUB_EXAMPLE}")
    _, name, split, column = parts
    import datasets

    try:
        rows = datasets.load_dataset(name, split=split, streaming=True)
        rows = rows.shuffle(seed=seed, buffer_size=HUB_LIMIT)
        found = [_hub_prompt(row, column) for row in rows.take(HUB_LIMIT)]
    except Exception as error:  # the hub raises a different class for each way of being out of reach
        raise InputError(
            f"{source}: the data set cannot be loaded ({type(error).__name__}): "
            "check its name and the network, or give --prompts FILE"
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
    return Prompt(messages, _answer(value, len(messages))) if messages else None
