"""One noun for one thing, and the field's own terms, in documentation, docstrings and help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipelines.cli.commands import COMMANDS, cli

ROOT = Path(__file__).parents[2]
PACKAGES = ("recovery", "db", "evals", "pipelines", "dashboard")
PAGES = [
    path for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]) if path.name != "CHANGELOG.md"
]
BANNED = ("nobody", "hears", "is told", "whoever", "lest", "tutor", "pupil")
UNKNOWN = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
WORDS = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def docstrings() -> Iterator[tuple[str, str]]:
    """Every docstring of the packages, with the place where it stands."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_the_projects_words(page: Path) -> None:
    assert UNKNOWN.findall(page.read_text(encoding="utf-8")) == []


def test_docstrings_use_the_projects_words() -> None:
    assert [(place, found) for place, text in docstrings() if (found := UNKNOWN.findall(text))] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_uses_the_projects_words(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert UNKNOWN.findall(command.get_help(click.Context(command, info_name=name))) == []


def test_modules_say_first_what_they_do() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.stat().st_size]
    silent = [path for path in modules if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))]
    assert [path.relative_to(ROOT).as_posix() for path in silent] == []


def test_the_glossary_has_each_word_once() -> None:
    words = re.findall(r"^\| \*\*([a-z ]+)\*\*", WORDS, re.MULTILINE)
    assert words == sorted(set(words)) and len(words) >= 30
