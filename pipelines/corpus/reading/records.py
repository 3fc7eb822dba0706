"""Rows into text: every line of a jsonl file is a document, a table is one document with a line a row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import Facts, Piece, Source, characters, pieces

LONGEST_LINE = 2**24  # characters; what is longer is no row of anything
LONGEST_CELL = 2**22
DEEPEST = 16  # levels of a row that are looked into
TEXT_FIELDS = ("text", "content", "body", "document", "page_content", "markdown", "passage", "article")
TURN_FIELDS = ("messages", "conversations", "conversation", "turns", "dialogue")


def read_jsonl(source: Source, facts: Facts) -> Iterator[Piece]:
    """One document a line; lines that are no JSON or hold no text are left out and counted."""
    found = broken = empty = 0
    for line in lines(characters(source, facts)):
        if not line.strip():
            continue
        try:
            text = row_text(json.loads(line)) if len(line) <= LONGEST_LINE else None
        except (ValueError, RecursionError):
            text = None
        if text is None:
            broken += 1
        elif not text.strip():
            empty += 1
        else:
            found += 1
            yield from pieces([_whole(text) if "\\u" in line else text])
    if broken and not found:
        raise Unreadable("no line of it is JSON")
    for count, what in ((broken, "are no JSON"), (empty, "hold no text")):
        if count:
            facts.add_note(f"{count} of {found + broken + empty} lines {what}")


def _whole(text: str) -> str:
    """JSON may spell half of a character (a lone surrogate), which no encoding can write."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def row_text(row: Any) -> str:
    """A row's text: its text field, its turns as a transcript, or all its values with their names."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for name in TEXT_FIELDS:
            if isinstance(row.get(name), str):
                return _titled(row.get("title"), row[name])
        for name in TURN_FIELDS:
            if isinstance(row.get(name), list):
                return "\n\n".join(filter(None, map(_turn, row[name])))
    return "\n".join(_values("", row, 0))


def _titled(title: Any, text: str) -> str:
    if not isinstance(title, str) or not title.strip() or text.lstrip().startswith(title.strip()):
        return text
    return f"{title.strip()}\n\n{text}"


def _turn(turn: Any) -> str:
    """Who said what: `role: content` in the words of the usual field names."""
    if not isinstance(turn, dict):
        return turn if isinstance(turn, str) else ""
    who = next((turn[name] for name in ("role", "from", "speaker", "name") if turn.get(name)), None)
    said = next((turn[name] for name in ("content", "value", "text") if isinstance(turn.get(name), str)), "")
    return f"{who}: {said}" if who and said else said


def _values(name: str, value: Any, depth: int) -> Iterator[str]:
    if depth > DEEPEST or value is None:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _values(f"{name}.{key}" if name else str(key), inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(name, inner, depth + 1)
    elif isinstance(value, str) and value.strip():
        yield f"{name}: {value}" if name else value
    elif not isinstance(value, str) and name:
        yield f"{name}: {json.dumps(value)}"


def read_csv(source: Source, facts: Facts) -> Iterator[Piece]:
    """One document: a line a row, each value with its column's name."""
    yield from pieces(_rows(lines(characters(source, facts)), facts))


def _rows(text_lines: Iterator[str], facts: Facts) -> Iterator[str]:
    first = next(text_lines, "")
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(_with(first, text_lines), delimiter=_delimiter(first))
    try:
        header = next(rows, [])
        yield ", ".join(filter(None, (cell.strip() for cell in header))) + "\n"
        for row in rows:
            if line := _row(header, row):
                yield line + "\n"
    except csv.Error as error:
        raise Unreadable(f"line {rows.line_num} is no row of a table: {error}") from error


def _row(header: list[str], row: list[str]) -> str:
    names = [*header, *([""] * (len(row) - len(header)))]
    cells = [(name.strip(), cell.strip()) for name, cell in zip(names, row, strict=False)]
    return "; ".join(f"{name}: {cell}" if name else cell for name, cell in cells if cell)


def _delimiter(header: str) -> str:
    return max(",;\t|", key=header.count)


def _with(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def lines(parts: Iterable[str]) -> Iterator[str]:
    """Lines with their ends, of text in any parts; one longer than LONGEST_LINE is cut to that and one."""
    held = ""
    skipping = False
    for part in parts:
        *whole, rest = (held + part if not skipping else part).split("\n")
        for line in whole:
            if not skipping:
                yield line + "\n"
            skipping = False
        if len(rest) > LONGEST_LINE and not skipping:
            yield rest[: LONGEST_LINE + 1]
            skipping = True
        held = "" if skipping else rest
    if held:
        yield held
