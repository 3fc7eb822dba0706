"""What a typed option becomes: paths seen from the current folder, names with their values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.cli import setting_options
from recovery.errors import InputError
from tests.support.commands import Recover


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
    assert (said.code, said.error) == (2, "Error: --probes is empty: give it a value, or leave it out")


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
    ],
)
def test_a_folder_that_is_left_blank_is_not_the_current_one(
    recover: Recover, tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = recover("--home", tmp_path, *words)
    assert said.code == 2 and "it is blank: name a folder or a file" in said.error


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
