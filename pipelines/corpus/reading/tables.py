"""Turn rows into text: each line of a jsonl file is a document, a csv file is one document with a line a row.

Rows, cells and names are bounded, so that no row needs more memory than a few times its own limit.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any

from pipelines.corpus.as_markdown.heads import holds_figures
from pipelines.corpus.as_markdown.table_rows import Rows
from pipelines.corpus.reading.formats import Unreadable
from pipelines.corpus.reading.plain import FileFacts, Source, TextPiece, characters, pieces
from recovery import untrusted_json

LONGEST_LINE = 2**24  # characters; a longer line is no row
LONGEST_NAME = 200  # characters of a column's or a field's name, which is written with every value
DEEPEST = 16  # levels of nested values that are written
TEXT_FIELDS = ("text", "content", "body", "document", "page_content", "markdown", "passage", "article")
TURN_FIELDS = ("messages", "conversations", "conversation", "turns", "dialogue")
ROLE_FIELDS = ("role", "from", "speaker", "name")
SAID_FIELDS = ("content", "value", "text")
NAMELESS = "its first row holds numbers as the second does: it is read as a row, and columns have no names"


# jsonl ---------------------------------------------------------------------------------------------------


def read_jsonl(source: Source, facts: FileFacts) -> Iterator[TextPiece]:
    """Yield one document a line; count the lines that are no JSON or hold no text, and leave them out."""
    read = broken = empty = long = 0
    for line in lines(characters(source, facts)):
        if not line.strip():
            continue
        if len(line) > LONGEST_LINE:
            long += 1
            continue
        text = _line_text(line)
        if text is None:
            broken += 1
        elif not text.strip():
            empty += 1
        else:
            read += 1
            yield from pieces([text])
    too_long = f"longer than {LONGEST_LINE:,} characters"
    if (broken or long) and not read:
        raise Unreadable("no line of it is JSON" if broken else f"each of its lines is {too_long}")
    for count, what in ((broken, "are no JSON"), (empty, "hold no text"), (long, f"are {too_long}")):
        if count:
            facts.add_note(f"{count} of {read + broken + empty + long} lines {what}")


def _line_text(line: str) -> str | None:
    """Return the text of a line of JSON; None where it is no JSON."""
    try:
        return row_text(untrusted_json.parse(line))
    except (ValueError, RecursionError):
        return None


def row_text(row: Any) -> str:
    """Return a row's text, or its turns as a transcript, or all its values with their names: the first that
    is not blank."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for name in TEXT_FIELDS:
            if isinstance(row.get(name), str) and row[name].strip():
                return _titled(row.get("title"), row[name])
        for name in TURN_FIELDS:
            if isinstance(row.get(name), list) and (said := _transcript(row[name])):
                return said
    return "\n".join(_values("", row, 0))


def _transcript(turns: list[Any]) -> str:
    return "\n\n".join(said for said in map(_turn, turns) if said.strip())


def _titled(title: Any, text: str) -> str:
    if not isinstance(title, str) or not title.strip() or text.lstrip().startswith(title.strip()):
        return text
    return f"{title.strip()}\n\n{text}"


def _turn(turn: Any) -> str:
    """Write a turn as `role: content`, by the usual names of these fields."""
    if not isinstance(turn, dict):
        return turn if isinstance(turn, str) else ""
    role = next((turn[name] for name in ROLE_FIELDS if turn.get(name)), None)
    said = next(filter(None, (_said(turn.get(name)) for name in SAID_FIELDS)), "")
    return f"{str(role)[:LONGEST_NAME]}: {said}" if role and said else said


def _said(content: Any) -> str:
    """Return a turn's text, also where it is given in parts; parts that are no text are left out."""
    if isinstance(content, list):
        texts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def _values(name: str, value: Any, depth: int) -> Iterator[str]:
    """Yield `name: value` for every value inside a value; nested names are joined by dots."""
    if depth > DEEPEST or value is None:
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            inner_name = f"{name}.{key[:LONGEST_NAME]}" if name else key[:LONGEST_NAME]
            yield from _values(inner_name, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(name, inner, depth + 1)
    elif isinstance(value, str) and value.strip():
        yield f"{name}: {value}" if name else value
    elif not isinstance(value, str) and name:
        yield f"{name}: {json.dumps(value)}"


# csv -----------------------------------------------------------------------------------------------------


def read_csv(source: Source, facts: FileFacts) -> Iterator[TextPiece]:
    """Yield one document: a line a row, each value with its column's name."""
    rows = Rows(lines(characters(source, facts)))
    try:
        yield from pieces(_rows(rows, facts))
    except csv.Error as error:
        raise Unreadable(f"line {rows.line} is no row of a table: {error}") from error


def _rows(rows: Rows, facts: FileFacts) -> Iterator[str]:
    """Yield the titles of the table, the columns' names, then each row; the first row is one of these where
    it holds numbers."""
    yield from (f"{title}\n\n" for title in rows.titles)
    found = iter(rows)
    above = _first_filled(found)
    while len(above) > 2 and sum(map(bool, map(str.strip, above))) == 1:  # one cell names no column
        yield f"{_row([], above)}\n\n"
        above = _first_filled(found)
    second = _first_filled(found)
    header = [_on_one_line(cell.strip())[:LONGEST_NAME] for cell in above]
    rest = chain([second], found)
    if above and second and _is_a_row(header, second):
        facts.add_note(NAMELESS)
        rest = chain([above, second], found)
        header = above = []
    elif above:
        yield ", ".join(filter(None, header)) + "\n"
    for row in rest:
        if row != above and (line := _row(header, row)):  # pages repeat the names
            yield line + "\n"


def _first_filled(rows: Iterator[list[str]]) -> list[str]:
    return next((row for row in rows if any(map(str.strip, row))), [])


def _on_one_line(text: str) -> str:
    return text if len(text.splitlines()) < 2 else " ".join(text.split())


def _is_a_row(first: list[str], second: list[str]) -> bool:
    """Return whether the first row holds numbers just where the second one does: but names that count up
    evenly (0, 1, 2; wavelengths) are names."""
    if [_number(cell) is None for cell in first] != [_number(cell.strip()) is None for cell in second]:
        return False
    numbers = [number for cell in first if (number := _number(cell)) is not None]
    steps = {round(higher - lower, 9) for lower, higher in pairwise(numbers)}
    return bool(numbers) and not (len(steps) == 1 and min(steps) > 0)


def _number(cell: str) -> float | None:
    """Return the number that a cell is; years, dates and times name columns too."""
    if not holds_figures([cell]):
        return None
    with suppress(ValueError):
        return float(cell)
    return None


def _row(header: list[str], row: list[str]) -> str:
    named = []
    for column, cell in enumerate(row):
        name = header[column] if column < len(header) else ""
        value = cell.strip()
        if value:
            named.append(f"{name}: {value}" if name else value)
    return _on_one_line("; ".join(named))


# Lines ---------------------------------------------------------------------------------------------------


def lines(parts: Iterable[str]) -> Iterator[str]:
    """Yield lines with their ends from text in any parts; cut a longer line after LONGEST_LINE + 1."""
    held: list[str] = []
    size = 0
    cut = False  # the rest of the current line is left out
    for part in parts:
        first, *others = part.split("\n")
        if not cut:
            held.append(first)
            size += len(first)
        if others:
            if not cut:
                yield "".join(held) + "\n"
            *whole, last = others
            for line in whole:
                yield line + "\n"
            held = [last]
            size = len(last)
            cut = False
        if size > LONGEST_LINE and not cut:
            yield "".join(held)[: LONGEST_LINE + 1]
            held = []
            size = 0
            cut = True
    if size:
        yield "".join(held)
