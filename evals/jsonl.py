"""Read and write JSON lines; errors name the line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recovery import untrusted_json
from recovery.errors import InputError, first_line
from recovery.storage.atomic_dirs import storage_errors, write_text

LONGEST_KEY = 500  # characters, of up to four bytes: an index of PostgreSQL takes some 2,700


def check_key(row: Mapping[str, Any], name: str, where: str) -> None:
    """Refuse a key that a database would, once the answers are recorded."""
    if (length := len(str(row.get(name, "")))) > LONGEST_KEY:
        raise InputError(f"{where}: `{name}` has {length:,} characters: give one of at most {LONGEST_KEY}")


def lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the objects as the text of a JSONL file."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the objects to a JSONL file in one step; make its folder where there is none."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, lines(rows))


def read(path: str | Path, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file, each checked to hold `fields` of the given types."""
    return parse(text_of(path), str(path), fields)


def text_of(path: str | Path) -> str:
    """Return the text of a JSONL file."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}): give a JSONL file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error}): give a JSONL file") from error


def parse(text: str, where: str, fields: Mapping[str, type]) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file's text as `read` does; errors name the file as `where`."""
    numbered = enumerate(text.split("\n"), 1)
    rows = [_row(line, f"{where}:{number}", fields) for number, line in numbered if line.strip()]
    if not rows:
        raise InputError(f"{where}: holds no lines: give a JSONL file with {', '.join(fields)} on each line")
    return rows


def _row(line: str, where: str, fields: Mapping[str, type]) -> dict[str, Any]:
    try:
        row = untrusted_json.parse(line)
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}): one object a line is expected") from error
    if not isinstance(row, dict):
        raise InputError(f"{where}: {type(row).__name__} found: one JSON object a line is expected")
    for name, kind in fields.items():
        if not isinstance(row.get(name), kind):
            raise InputError(f"{where}: `{name}` ({kind.__name__}) is missing or of another type: add it")
    return row


def without_nulls(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without its fields that are null, which count as absent."""
    return {name: value for name, value in row.items() if value is not None}


def by_split(folder: str | Path, name: str) -> dict[str, Path]:
    """Return a task's files in a folder by their split: NAME.train.jsonl by "train", NAME.jsonl by ""."""
    found = {path.name.removesuffix(".jsonl"): path for path in Path(folder).glob("*.jsonl")}
    return {stem[len(name) + 1 :]: found[stem] for stem in found if f"{stem}.".startswith(f"{name}.")}


def dataset(
    rows: list[dict[str, Any]], path: str | Path, remedy: str = "give the field values of one type"
) -> Any:
    """Return the objects as a data set of Hugging Face's `datasets`; `remedy` is for mixed types."""
    import pyarrow
    from datasets import Dataset

    try:
        return Dataset.from_list(rows)
    except (pyarrow.ArrowException, TypeError) as error:
        raise InputError(
            f"{path}: a field has values of mixed types ({first_line(error)}): {remedy}"
        ) from error
