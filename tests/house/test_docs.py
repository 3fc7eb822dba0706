"""What the documentation shows exists: commands, options, make targets, files, settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest
from pydantic import BaseModel

from pipelines.cli.commands import COMMANDS, cli
from pipelines.cli.options import shared
from pipelines.config.settings import Config
from recovery.methods.method import dials
from recovery.methods.table import METHODS

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "pipelines", "dashboard")
PACKAGES = ("recovery", "db", "evals", "pipelines", "dashboard")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/**/*.md"))])
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
WITH_VALUE = {"--home", "--db"}


def code(page: Path) -> Iterator[str]:
    """Every line of a code block and every piece of inline code; a line's continuation belongs to it."""
    for block, inline in CODE.findall(page.read_text(encoding="utf-8")):
        yield from (inline or block.replace("\\\n", " ")).splitlines()


def commands(page: Path) -> Iterator[list[str]]:
    """The words after `recover`, of every time that it is called."""
    for line in code(page):
        for call in re.split(r"&&|\|\s|;|\$\(", line.split(" #")[0]):
            words = _words(call.strip().removeprefix("$ "))
            if words and Path(words[0]).name == "recover":
                yield words[1:]


def _words(call: str) -> list[str]:
    try:
        return shlex.split(call)
    except ValueError:  # an apostrophe in prose
        return call.split()


@click.command()
@shared
def bare() -> None:
    """Only the options that every command takes."""


SHARED = {name for option in bare.params for name in option.opts} | {"--help", "-h", "--version"}


def examples(command: click.Command) -> list[list[str]]:
    """The words after `recover` of each example in a command's help."""
    shown = re.findall(r"^ *recover (.+)", command.help or "", re.MULTILINE)
    return [shlex.split(re.split("  +", line)[0]) for line in shown]


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


def unknown(words: list[str]) -> str | None:
    """What in a call does not exist, if anything."""
    rest = iter(word.strip("[]") for word in words)
    for word in rest:
        if word.isupper():  # COMMAND, in a synopsis
            return None
        if not word.startswith("-"):
            return _unknown_option(word, list(rest)) if word in COMMANDS else f"command {word}"
        if word.split("=")[0] not in SHARED:
            return f"option {word}"
        if word in WITH_VALUE:
            next(rest, None)
    return None


def _unknown_option(name: str, words: list[str]) -> str | None:
    command = command_of(name)
    if isinstance(command, click.Group):
        inner = command.commands[words[0]]
        return _unknown_in(f"{name} {words[0]}", inner, words[1:])
    return _unknown_in(name, command, words)


def _unknown_in(name: str, command: click.Command, words: list[str]) -> str | None:
    known = {opt for option in command.params for opt in (*option.opts, *option.secondary_opts)} | SHARED
    options = [re.split(r"[=|…]", word)[0] for word in words if word.startswith("-")]
    return next((f"{name} {option}" for option in options if option not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_is_shown_exists(page: Path) -> None:
    wrong = [(" ".join(words), found) for words in commands(page) if (found := unknown(words))]
    assert not wrong


def test_every_example_in_a_help_text_exists() -> None:
    shown = [words for command in (cli, *map(command_of, COMMANDS)) for words in examples(command)]
    assert len(shown) > 20
    assert not [(words, found) for words in shown if (found := unknown(words))]


def test_every_summary_in_the_list_of_commands_fits_its_line() -> None:
    _, *lines = cli.get_help(click.Context(cli, info_name="recover")).splitlines()
    assert not [line for line in lines if line.endswith("...")]
    assert {line.split()[0] for line in lines if re.match("  [a-z]+ {2,}", line)} >= set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_is_shown_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {word for line in code(page) for word in re.findall(r"^(?:\$ )?make ([a-z0-9-]+)", line)}
    assert shown <= targets


def settings(section: type[BaseModel], before: str = "") -> Iterator[str]:
    """Every key of recover.yaml, with those of its sections; free mappings and what is in them aside."""
    for name, setting in section.model_fields.items():
        yield before + name
        for kind in (setting.annotation, *get_args(setting.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from settings(kind, f"{before}{name}.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_that_is_shown_exists(page: Path) -> None:
    sections, known = "|".join(Config.model_fields), set(settings(Config))
    mappings = ("model.template_args.", "distill.routes.", "engine.arguments.")
    shown = {
        name
        for line in code(page)
        for name in re.findall(rf"(?<![\w./-])((?:{sections})\.[a-z_]+(?:\.[a-z_]+)*)(?!\w)", line)
        if not name.endswith((".py", ".jsonl", ".yaml")) and not name.startswith(mappings)
    }
    assert shown <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_is_shown_exists(page: Path) -> None:
    shown = {name for line in code(page) for name in re.findall(r"python -m ([\w.]+)", line)}
    own = {name for name in shown if (ROOT / name.partition(".")[0]).is_dir()}
    places = {name: ROOT / name.replace(".", "/") for name in own}
    gone = [
        n
        for n, at in places.items()
        if not (at.with_suffix(".py").is_file() or (at / "__main__.py").is_file())
    ]
    assert gone == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert not [link for link in local if not (page.parent / link).exists()]


def anchors(page: Path) -> set[str]:
    """The names under which a page's headings can be linked."""
    headings = re.findall(r"^#+ (.+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    wrong = [
        (file, name) for file, name in links if name not in anchors(page.parent / file if file else page)
    ]
    assert not wrong


def test_the_readme_links_every_page_of_the_documentation() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"(docs/{page.name})" not in text] == []


def test_the_map_of_the_readme_names_what_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    top = room = ROOT
    for line in text.partition("## Where things are")[2].split("```")[1].strip().splitlines():
        names = re.findall(r"\b[\w/]+(?:/|\.py)(?!\w)", line)
        if not line.startswith(" "):
            top = room = ROOT / names.pop(0)
        elif re.match(r"  \w", line):
            room = top / names.pop(0)
        assert room.is_dir()
        assert [name for name in names if not ((room / name).exists() or (top / name).exists())] == []


def test_the_dashboard_page_names_every_page_of_the_dashboard() -> None:
    from dashboard.pages import PAGES as SERVED

    text = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    assert [page.TITLE for page in SERVED if f"| {page.TITLE} |" not in text] == []


def strings_of_the_program() -> str:
    """The code of all packages, the pieces of each string joined, with … for what is filled in."""
    sources = [path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    joined = re.sub(r'"\s*f?"', "", "\n".join(sources))
    return re.sub("…+", "…", re.sub(r"\{[^{}\n]*\}", "…", joined))


def test_every_message_that_troubleshooting_quotes_is_one_of_the_program() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = "".join(re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).splitlines()
    assert len(quoted) > 40
    program = strings_of_the_program()
    assert [line for line in quoted if line not in program] == []


def test_the_methods_page_names_methods_that_exist() -> None:
    page = ROOT / "docs" / "methods.md"
    if not page.exists():
        pytest.skip("docs/methods.md is not written yet")
    rows = re.findall(r"^\| *`([a-z-]+)`", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(METHODS) <= set(rows)


def test_the_methods_page_has_every_dial() -> None:
    named = re.findall(
        r"^\| (`.+?`) \|", (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(dials()) <= {name for cell in named for name in re.findall(r"`([a-z_]+)`", cell)}


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("--json demo --cycles 2", None),
        ("--home DIR ls cycles", None),
        ("[--home DIR] [--db URL] COMMAND …", None),
        ("distill --teacher base [--student C] --set beta=0.5", None),
        ("eval --responses=FILE -q", None),
        ("dance", "command dance"),
        ("--colour ls", "option --colour"),
        ("midtrain --doc DIR", "midtrain --doc"),
    ],
)
def test_an_unknown_command_or_option_is_found_in_a_call(call: str, found: str | None) -> None:
    assert unknown(call.split()) == found


def test_the_readme_begins_with_the_name_and_shows_how_to_try_it() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"make demo", "make test"} <= {" ".join(line.split()[:2]) for line in code(ROOT / "README.md")}
    assert "recover" in text.splitlines()[0]
