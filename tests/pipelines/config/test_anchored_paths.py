"""Relative paths in settings start from the folder that they were written in; names are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.config import settings
from pipelines.config.anchored_paths import FILES, anchored, anchored_changes
from pipelines.config.overrides import changed

TEXT = settings.preset_text("microworld")


def test_paths_are_seen_from_a_folder_and_names_are_none(tmp_path: Path) -> None:
    for name in ("model", "microworld"):
        (tmp_path / name).mkdir()
    text = settings.preset_text("microworld")
    found = anchored(settings.parse(text, "recover.yaml"), tmp_path)
    assert (found.model.path, found.distill.prompts) == ("microworld", "microworld")
    changes = {"model.path": "model", "distill.reward": "rewards/mine.py:score"}
    assert anchored_changes(changes, tmp_path) == {
        "model.path": str(tmp_path / "model"),
        "distill.reward": f"{tmp_path / 'rewards/mine.py'}:score",
    }
    others = {"model.path": "owner/name", "distill.reward": "package.module:score"}
    assert anchored_changes(others, tmp_path) == others


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("value", ["data.jsonl", "../data.jsonl", "./later"])
def test_every_path_is_seen_from_the_folder_of_the_home(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").touch()
    folder = tmp_path / "project"
    folder.mkdir()
    assert anchored_changes({key: value}, folder) == {key: str(folder / value)}


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("value", ["data.jsonl", "later"])
def test_a_tilde_is_the_folder_of_the_user(
    key: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    assert anchored_changes({key: f"~/{value}"}, tmp_path) == {key: str(tmp_path / "user" / value)}


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("value", ["", " "])
def test_a_blank_is_not_the_folder_itself(key: str, value: str, tmp_path: Path) -> None:
    assert anchored_changes({key: value}, tmp_path) == {key: value}


def test_a_folder_that_is_made_later_is_seen_from_there_too(tmp_path: Path) -> None:
    found = settings.parse(TEXT + "\nengine: {exchange: weights}\n", "recover.yaml")
    assert anchored(found, tmp_path).engine.exchange == str(tmp_path / "weights")


def test_a_route_is_a_folder_where_it_has_a_slash_and_else_a_name(tmp_path: Path) -> None:
    for name in ("base", "models"):
        (tmp_path / name / "coder").mkdir(parents=True)
    routes = {"distill.routes": {"a": "base", "b": "models/coder", "c": "cycle:1"}}
    found = changed(settings.parse(settings.preset_text("cpu"), "preset"), routes)
    place = str(tmp_path / "models/coder")
    assert anchored(found, tmp_path).distill.routes == {"a": "base", "b": place, "c": "cycle:1"}


def test_a_reward_file_is_seen_from_the_folder_of_the_home(tmp_path: Path) -> None:
    changes = {"distill.reward": "judge.py:score"}
    assert anchored_changes(changes, tmp_path) == {"distill.reward": f"{tmp_path}/judge.py:score"}


def test_paths_within_a_section_are_seen_from_there_too(tmp_path: Path) -> None:
    nested = {"eval": {"probes": "probes.jsonl"}, "distill": {"stop": {"probe": Path("other.jsonl")}}}
    assert anchored_changes(nested, tmp_path) == {
        "eval.probes": str(tmp_path / "probes.jsonl"),
        "distill.stop.probe": str(tmp_path / "other.jsonl"),
    }
