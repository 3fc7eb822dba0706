"""Read recovery prompts from a file, a data set on the hub or the microworld.

A prompt is a dialogue whose last turn needs an answer. Of several turns, the last of the assistant is the
row's response, and all turns before it are the prompt. Tool schemas in "tools" are attached to the first
message, where the chat encoder reads them.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from evals import dialogues
from evals.dialogues import Messages
from pipelines.corpus.as_markdown.table_rows import DELIMITERS, opening_of
from pipelines.prompts.row_layouts import EXPECTED, INSTRUCTED, NAMES, SYSTEM, TEXTS, as_text, in_one_layout
from recovery import untrusted_json
from recovery.errors import InputError, first_line
from recovery.hub_data import one_try, undelivered
from recovery.storage.atomic_dirs import storage_errors, whole_file

Rows = Iterator[tuple[Any, str]]  # a row and its location
HUB = "hub:"  # what the source of a data set on the hub begins with
HUB_LIMIT = 50_000
HUB_EXAMPLE = "hub:allenai/tulu-3-sft-mixture:train:messages"
KEPT = "prompts"  # folder in a home for samples of hub data sets


class HubAway(InputError):
    """A data set is neither in reach on the hub, which may answer and not deliver it, nor in its cache."""


@dataclass(frozen=True)
class Prompt:
    messages: Messages
    fields: dict[str, Any] = field(default_factory=dict)  # other fields of the row: answer, route, kind
    weight: float = 1.0  # loss weight of each of its tokens
    where: str = field(default="", compare=False)  # the file and the line that it was read from

    @property
    def text(self) -> str:
        return dialogues.contents(self.messages)


def read_prompts(
    source: str, seed: int = 0, home: Path | None = None, on_answer: Callable[[], None] | None = None
) -> list[Prompt]:
    """Read prompts from a FILE, hub:NAME:SPLIT:FIELD, or `microworld`.

    The sample of a hub data set is stored in `home` and reused by later runs; `on_answer` is called where the
    hub has answered and is about to be read."""
    if source == "microworld":
        from pipelines.microworld.world import prompt_rows

        return [_prompt(row, source) for row in prompt_rows(seed, 0)]
    if source.startswith(HUB):
        return _from_hub(source, seed, home, on_answer)
    return _from_file(Path(source))


# Files ---------------------------------------------------------------------------------------------------


def _from_file(path: Path) -> list[Prompt]:
    read = FORMATS.get(path.suffix.lower())
    if read is None:
        raise InputError(
            f"{path}: a {path.suffix} file is not a prompt file: give .jsonl, .json, .csv, .parquet or .txt"
        )
    try:
        found = [_prompt(row, where) for row, where in read(path)]
    except OSError as error:
        raise InputError(f"{path}: prompts cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: prompts cannot be read as UTF-8 text: {error}") from error
    if not found:
        raise InputError(f"{path} holds no prompt: give one a line")
    return found


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    r"""Yield non-blank lines. Split at \n only: JSON strings may hold other Unicode line separators."""
    text = path.read_text(encoding="utf-8-sig")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield line.strip(), f"{path}:{number}"


def _json_lines(path: Path) -> Rows:
    for line, where in _lines(path):
        yield dialogues.parsed(line, where), where


def _json_file(path: Path) -> Rows:
    """Read rows from a JSON list, or one row per line."""
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        yield from _json_lines(path)
        return
    for number, row in enumerate(dialogues.parsed(text, str(path)), 1):
        yield row, f"{path}, entry {number}"


def _csv(path: Path) -> Rows:
    """Read rows below a header that names a prompt's column; cells may hold JSON. Rows of empty cells, as
    spreadsheets leave them below the last one, are none."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header, guessed, before, _ = opening_of(file)
        separator = next((mark for mark in (guessed, *DELIMITERS) if _names_prompts(header, mark)), guessed)
        reader = csv.DictReader(chain([header], file), delimiter=separator)
        try:
            _require_column(path, reader.fieldnames or [])
            for row in reader:
                where = f"{path}:{before + reader.line_num}"
                _refuse_surplus(row.pop(None, []), separator, where)
                if any(value and value.strip() for value in row.values()):
                    yield {name: _cell(name, value) for name, value in row.items() if name and value}, where
        except csv.Error as error:
            raise InputError(f"{path}:{before + reader.line_num}: not a CSV row: {error}") from error


def _names_prompts(header: str, separator: str) -> bool:
    with suppress(csv.Error):  # who reads the rows says what is wrong with the first
        return bool(set(NAMES) & set(next(csv.reader([header], delimiter=separator), [])))
    return False


def _refuse_surplus(cells: Iterable[str], separator: str, where: str) -> None:
    """Refuse text behind the last column: it was cut from the one before."""
    if any(map(str.strip, cells)):
        raise InputError(
            f"{where}: more cells than the header has columns: put texts that hold {separator!r} in "
            "quotation marks"
        )


def _parquet(path: Path) -> Rows:
    import pyarrow
    import pyarrow.parquet

    try:
        with path.open("rb") as stream:
            file = pyarrow.parquet.ParquetFile(stream)
            _require_column(path, file.schema_arrow.names)
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield _without_nulls(row), f"{path}, row {number}"
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: prompts cannot be read as Parquet: {str(error)[:120]}") from error


FORMATS = {
    ".jsonl": _json_lines,
    ".json": _json_file,
    ".csv": _csv,
    ".parquet": _parquet,
    ".txt": _lines,
    "": _lines,
}


def _require_column(path: Path, names: Iterable[str]) -> None:
    listed = list(names)
    if not set(NAMES) & set(listed):
        columns = ", ".join(listed)[:120] or "none"
        raise InputError(f"{path}: no column named {', '.join(NAMES)}: its columns are {columns}")


def _cell(name: str, value: str) -> Any:
    """Return a cell as text, or parsed if it holds a JSON list or object, such as messages."""
    if name not in TEXTS and isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return untrusted_json.parse(value)
        except ValueError:
            return value
    return value


def _without_nulls(value: Any) -> Any:
    """Drop null fields: Parquet gives every object the keys of all objects."""
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [_without_nulls(entry) for entry in value] if isinstance(value, list) else value


# Rows ----------------------------------------------------------------------------------------------------


def _prompt(row: Any, where: str) -> Prompt:
    row = {"prompt": row} if isinstance(row, str) else row
    if not isinstance(row, dict):
        raise InputError(f"{where}: expected an object with {EXPECTED}")
    row = in_one_layout(row)
    read = ("prompt", "messages", "tools", "response")
    rest = {key: value for key, value in row.items() if key not in read}
    asked = _dialogue_of_prompt(row, where) or dialogues.find(row, where)
    if asked is None:
        raise InputError(f"{where}: expected {EXPECTED}, with a user turn")
    return Prompt(asked.messages, _answer(row, asked.response) | rest, where=where)


def _dialogue_of_prompt(row: dict[str, Any], where: str) -> dialogues.Dialogue | None:
    """Return the messages of a row that repeat its prompt as a user turn: they go on to its answer.

    A row with a response of its own, which answers the prompt, is no such row."""
    text = row.get("prompt")
    if not row.get("messages") or _own_response(row) or not isinstance(text, str) or not text.strip():
        return None
    found = dialogues.find({**row, "prompt": None}, where)
    turns = found.messages if found else []
    repeated = any(turn["role"] == "user" and turn["content"].strip() == text.strip() for turn in turns)
    return found if repeated else None


def _answer(row: dict[str, Any], last_turn: str) -> dict[str, Any]:
    """Return the row's own response, else that of its last turn."""
    found = _own_response(row) or last_turn
    return {"response": found} if found else {}


def _own_response(row: dict[str, Any]) -> Any:
    """Return the response that the row states; None where it is blank."""
    own = as_text(row.get("response"))
    return own if own and str(own).strip() else None


# The hub -------------------------------------------------------------------------------------------------


def _from_hub(
    source: str, seed: int, home: Path | None, on_answer: Callable[[], None] | None
) -> list[Prompt]:
    if home and (kept := kept_sample(source, seed, home)):
        return _from_file(kept)
    revision, prompts = _sample(source, seed, on_answer)
    if home is None:
        return prompts
    before, after = _around_commit(source, seed)
    _keep(home / KEPT / f"{before}{revision[:12]}{after}", prompts)
    return prompts


def kept_sample(source: str, seed: int, home: Path) -> Path | None:
    """Return the file in which a home keeps its sample of a hub data set; None until it is read."""
    return min((home / KEPT).glob("*".join(_around_commit(source, seed))), default=None)


def _around_commit(source: str, seed: int) -> tuple[str, str]:
    """Return how the name of a kept sample begins and ends, before and after the data set's commit."""
    name, split, column = _parts(source)
    return f"{_file_name(name)}@", f"-{_file_name(split)}-{_file_name(column)}-seed{seed}.jsonl"


def _parts(source: str) -> tuple[str, str, str]:
    """Return the data set, the split and the field that a source on the hub names."""
    parts = source.split(":")
    if len(parts) != 4 or not all(parts):
        raise InputError(f"{source}: expected hub:NAME:SPLIT:FIELD, as in {HUB_EXAMPLE}")
    return parts[1], parts[2], parts[3]


def _sample(source: str, seed: int, on_answer: Callable[[], None] | None) -> tuple[str, list[Prompt]]:
    """Return a data set's commit, and a seeded sample of all its rows that hold a prompt."""
    name, split, column = _parts(source)
    try:
        with one_try(name) as revision:
            if revision is None:
                raise HubAway(
                    f"{source}: the data set cannot be loaded: the hub is out of reach: "
                    "check the network, or give --prompts FILE or --prompts self"
                )
            if on_answer:
                on_answer()
            found = _reservoir(_stream(name, split, column, revision), random.Random(f"{seed}:{source}"))
    except InputError:
        raise
    except Exception as error:  # the hub raises many classes for network errors
        said = f"{source}: the data set cannot be loaded ({type(error).__name__}: {first_line(error)[:200]})"
        other = "or give --prompts FILE or --prompts self"
        if undelivered(error):
            raise HubAway(f"{said}: the hub does not deliver it: check the network, {other}") from error
        raise InputError(f"{said}: check its name, its split and the network, {other}") from error
    if not found:
        raise InputError(f"{source}: no row of {column!r} holds a prompt: choose another field")
    return revision, found


def _stream(name: str, split: str, column: str, revision: str) -> Iterator[Prompt]:
    """Yield every row of a data set that holds a prompt in the column."""
    import datasets

    rows = datasets.load_dataset(name, split=split, revision=revision, streaming=True)
    read = (*(INSTRUCTED if column == "instruction" else (column, "tools")), SYSTEM)
    if rows.column_names:
        rows = rows.select_columns([one for one in rows.column_names if one in read])
    for row in rows:
        try:
            yield _prompt(_without_nulls(_hub_row(row, column)), name)
        except InputError:  # a row without a prompt
            continue


def _hub_row(row: dict[str, Any], column: str) -> dict[str, Any]:
    """Return what the column holds as a prompt or as messages; an instruction with its input and output."""
    if column == "instruction":
        return row
    value = row.get(column)
    if column == "conversations" and not isinstance(value, str):
        return {column: value, "tools": row.get("tools"), SYSTEM: row.get(SYSTEM)}
    return {"prompt" if isinstance(value, str) else "messages": value, "tools": row.get("tools")}


def _reservoir(prompts: Iterable[Prompt], random_: random.Random) -> list[Prompt]:
    """Return at most HUB_LIMIT prompts, sampled uniformly, in random order."""
    kept: list[Prompt] = []
    for number, prompt in enumerate(prompts):
        if number < HUB_LIMIT:
            kept.append(prompt)
            continue
        place = random_.randrange(number + 1)
        if place < HUB_LIMIT:
            kept[place] = prompt
    random_.shuffle(kept)
    return kept


def _keep(path: Path, prompts: Iterable[Prompt]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(path.parent), whole_file(path) as file:
        for prompt in prompts:
            row = {"messages": prompt.messages, **prompt.fields}
            file.write(json.dumps(row).encode() + b"\n")


def _file_name(part: str) -> str:
    return re.sub(r"[^\w.-]+", "--", part)
