"""What a typed option becomes: paths seen from the current folder, names with their values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pipelines.cli import setting_options
from pipelines.cli.commands import cli
from pipelines.cli.options import SHARED, Place
from pipelines.cli.setting_options import SettingOption
from recovery.errors import InputError
from tests.support.commands import Recover
from tests.support.present import present


def test_a_typed_reward_is_seen_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert setting_options.file("mine.py:score") == f"{tmp_path / 'mine.py'}:score"
    assert setting_options.file("exact") == "exact"


def test_a_built_in_name_is_no_file_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("self", "mine"):
        (tmp_path / name).write_text("")
    assert setting_options.file("self") == "self"
    assert setting_options.file("mine") == str(tmp_path / "mine")
    assert setting_options.file("prompts.jsonl") == str(tmp_path / "prompts.jsonl")
    assert setting_options.file("hub:org/name:train:text") == "hub:org/name:train:text"


@pytest.mark.parametrize("typed", ["", " "])
def test_an_option_that_takes_a_file_is_not_left_empty(recover: Recover, tmp_path: Path, typed: str) -> None:
    """As by a variable that is not set: it named the current folder."""
    said = recover("--home", tmp_path, "eval", "base", "--probes", typed)
    blank = "'--probes': it is blank: give it a value, or leave it out: see `recover eval --help`"
    assert (said.code, said.error) == (2, f"Error: Invalid value for {blank}")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("eval", " "), "[CHECKPOINT]"),
        (("resume", ""), "[RUN]"),
        (("distill", "--student", ""), "--student"),
        (("midtrain", "--docs", "docs", "--student", ""), "--student"),
        (("pilot", "--docs", "docs", "--budget", "3", "--rates", ""), "--rates"),
        (("augment", "--docs", "docs", "--out", "out", "--writer", ""), "--writer"),
        (("init", "--model", ""), "--model"),
        (("cycle", "--docs", "docs", "--method", ""), "--method"),
        (("distill", "--set", ""), "--set"),
        (("dashboard", "--allow-host", ""), "--allow-host"),
        (("flips", "base", ""), "[cycle:N | A B]"),
        (("review", "1", "--approve", "--reviewer", ""), "--reviewer"),
    ],
)
def test_a_text_that_is_left_blank_does_not_count_as_left_out(
    recover: Recover, tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    """The newest or current model was trained or measured, a method or a writer chosen, in its place."""
    said = recover("--home", tmp_path, *words)
    blank = f"'{named}': it is blank: give it a value, or leave it out"
    assert (said.code, said.error) == (
        2,
        f"Error: Invalid value for {blank}: see `recover {words[0]} --help`",
    )


def test_a_blank_value_that_has_to_be_given_is_not_left_out(recover: Recover, tmp_path: Path) -> None:
    said = recover("--home", tmp_path, "show", "")
    assert (
        said.error == "Error: Invalid value for 'ID': it is blank: give it a value: see `recover show --help`"
    )


@pytest.mark.parametrize(
    "words", [("review", "1", "--note", ""), ("cycle", "--docs", "none", "--behaviours", "")]
)
def test_what_may_be_blank_is_taken(recover: Recover, tmp_path: Path, words: tuple[str, ...]) -> None:
    """A decision without a reason, and no further behaviour."""
    said = recover("--home", tmp_path, *words)
    assert said.code == 2 and words[-2] not in said.error


@pytest.mark.parametrize(
    "words",
    [
        ("cycle", "--docs", ""),
        ("corpus", " "),
        ("corpus", "--docs", ""),
        ("distill", "--docs", ""),
        ("midtrain", "--docs", "docs", "--augment", ""),
        ("eval", "base", "--tasks", ""),
        ("augment", "--docs", "docs", "--out", ""),
        ("augment", "--docs", "docs", "--out", "out", "--probes", ""),
        ("eval", "base", "--output", ""),
        ("eval", "--responses", ""),
        ("dashboard", "--picture", ""),
        ("prompts", "json", "--avoid", ""),
    ],
)
def test_a_folder_that_is_left_blank_is_not_the_current_one(
    recover: Recover, tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = recover("--home", tmp_path, *words)
    assert said.code == 2 and "it is blank: name a folder or a file" in said.error


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    """Those of a command, or of all commands of a group."""
    yield from command.params
    if isinstance(command, click.Group):
        for name in command.list_commands(context := click.Context(command)):
            yield from parameters(present(command.get_command(context, name)))


def test_a_tilde_that_the_shell_leaves_is_the_users_own_folder(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in --out=~/more.jsonl, which made a folder called ~ in the current one."""
    own, here = tmp_path / "own", tmp_path / "here"
    own.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(own))
    drawn = ("prompts", "json", "--count", "3")
    assert recover(*drawn, "--out=~/first.jsonl").code == 0
    assert recover(*drawn, "--avoid=~/first.jsonl", "--out=~/more.jsonl").code == 0
    first, more = ((own / name).read_text() for name in ("first.jsonl", "more.jsonl"))
    assert first != more and not list(here.iterdir())


def test_every_option_that_takes_a_file_or_a_folder_reads_it_as_a_place() -> None:
    of_settings = (setting_options.file, setting_options.path)
    seen = set()
    for option in parameters(cli):
        named = {"DIR", "FILE"} & set(re.split(r"\W", str(getattr(option, "metavar", ""))))
        if not named or option.name in SHARED:
            continue
        read = option.read in of_settings if isinstance(option, SettingOption) else None
        assert read or isinstance(option.type, Place), option.opts
        seen.update(option.opts)
    assert {"--docs", "--probes", "--ifeval", "--augment", "--context", "--out", "--output"} <= seen


@pytest.mark.parametrize("command", ["cycle", "midtrain", "distill", "corpus", "retrieval"])
def test_a_second_folder_of_documents_does_not_replace_the_first(
    recover: Recover, tmp_path: Path, command: str
) -> None:
    said = recover("--home", tmp_path, command, "--docs", "one", "--docs", "two")
    assert said.code == 2 and "Invalid value for '--docs': it is given twice" in said.error


def test_names_with_values_are_joined_from_all_options() -> None:
    assert setting_options.pairs("a=1, b = 2,") == {"a": "1", "b": "2"}
    assert setting_options.pairs(("a=1", "b=x=y")) == {"a": "1", "b": "x=y"}


@pytest.mark.parametrize("typed", ["a", "a=", "=1", "a=1,b"])
def test_a_name_without_a_value_is_refused(typed: str) -> None:
    with pytest.raises(InputError, match="write NAME=VALUE"):
        setting_options.pairs(typed)
