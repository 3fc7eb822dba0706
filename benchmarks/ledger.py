"""Store benchmark results as appended JSON lines, so that an interrupted run resumes; format tables."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evals.statistics import PairedComparison

Line = dict[str, Any]


class Ledger:
    """A file with one line per finished piece of work, identified by some of its fields."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.path, self.names = path, names
        self.lines = {self._name(line): line for line in self._read()}

    def get(self, **name: Any) -> Line | None:
        return self.lines.get(self._name(name))

    def add(self, line: Line) -> Line:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines[self._name(line)] = line
        return line

    def _name(self, line: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(line[name] for name in self.names)

    def _read(self) -> Iterator[Line]:
        """Read complete lines; a truncated line is dropped and its work repeated."""
        if not self.path.exists():
            return
        text = self.path.read_text(encoding="utf-8")
        if text and not text.endswith("\n"):
            self.path.write_text(_whole(text), encoding="utf-8")
        yield from read(self.path)


def read(path: Path) -> list[Line]:
    """Read a ledger that another process may be writing: the last line may be incomplete."""
    return [json.loads(line) for line in _whole(path.read_text(encoding="utf-8")).split("\n") if line]


def _whole(text: str) -> str:
    return text[: text.rfind("\n") + 1]


class Clock:
    """Print the current work and an estimate of the remaining time."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.begun = total, 0, time.monotonic()

    def say(self, text: str) -> None:
        each = (time.monotonic() - self.begun) / self.done if self.done else None
        left = f", about {each * (self.total - self.done) / 60:.0f} minutes left" if each else ""
        print(f"[{self.done + 1}/{self.total}{left}] {text}", file=sys.stderr, flush=True)


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """Format rows with the same columns as a table."""
    rows = list(rows)
    if not rows:
        return "nothing yet"
    columns = list(rows[0])
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(_cell(row[name]) for name in columns) + " |" for row in rows])


def sections(lines: Sequence[Line], parts: Iterable[str]) -> str:
    """Join the parts of a page, with a warning if some lines are of a run with --small."""
    small = any(line.get("small") for line in lines)
    warning = ["**A run with `--small`: two steps each, the numbers mean nothing.**"] if small else []
    return "\n\n".join([*warning, *parts])


def paired(found: PairedComparison) -> str:
    """Format a paired difference with its interval."""
    low, high = found.interval
    return f"{found.difference:+.3f} ({low:+.3f} to {high:+.3f})"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def put(page: Path, name: str, text: str) -> None:
    """Replace the text between two marks of a page."""
    first, last = f"<!-- {name} -->", f"<!-- end {name} -->"
    whole = page.read_text(encoding="utf-8")
    before, _, rest = whole.partition(first)
    _, found, after = rest.partition(last)
    if not found:
        raise SystemExit(f"{page}: the marks {first} and {last} are missing: put them where the table goes")
    page.write_text(f"{before}{first}\n{text}\n{last}{after}", encoding="utf-8")
