"""Commands run in this process, on small worlds and homes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli.commands import cli, main

QUESTION = "Write {n} lines without commas."


@dataclass
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The only line on standard error."""
        (line,) = self.err.splitlines()
        assert line.startswith("Error: ")
        return line


Recover = Callable[..., Said]


@pytest.fixture
def recover(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Recover:
    """Runs a command in this process: its exit code and all that it printed."""

    def run(*words: object) -> Said:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["recover", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Said(code, *capfd.readouterr())

    return run


def jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_world(directory: Path) -> Path:
    """A few documents with the files that say how to measure them; returns the folder of documents."""
    docs = directory / "docs"
    docs.mkdir(parents=True)
    (docs / "ada.md").write_text("Ada lives in Oslo. " * 5)
    (docs / "bela.txt").write_text("Bela plays the harp. " * 5)
    jsonl(directory / "prompts.jsonl", [{"prompt": f"Say {number} words."} for number in range(6)])
    ask = {"prompt": "Where does Ada live?", "answer": "Oslo", "kind": "direct"}
    suites = ("knowledge", "retention")
    jsonl(directory / "probes.jsonl", [{"id": suite, "suite": suite, **ask} for suite in suites])
    comma = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    jsonl(directory / "ifeval.jsonl", [{"key": n, "prompt": QUESTION.format(n=n), **comma} for n in range(4)])
    return docs


def make_small(path: Path) -> None:
    """The microworld's settings with a tiny random model's lengths."""
    text = path.read_text().replace("\n  epochs:", "\n  steps:")
    small = {
        "max_new_tokens": 6,
        "row_tokens": 32,
        "tokens_per_step": 64,
        "prompts_per_step": 2,
        "steps": 2,
        "save_every": 1,
    }
    for name, value in small.items():
        text = re.sub(rf"\b{name}: \d+", f"{name}: {value}", text)
    path.write_text(text)


def run_quietly(*words: object) -> None:
    cli.main([*map(str, words)], standalone_mode=False)
