"""Make relative paths in settings absolute, as seen from the folder that they were written in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.config.overrides import changed, flattened
from pipelines.config.settings import Config
from recovery.named_paths import expanded

FILES = (  # settings that may name a file or a folder
    "model.path",
    "distill.reward",
    "distill.prompts",
    "distill.pairs",
    "distill.context",
    "distill.stop.probe",
    "eval.ifeval",
    "eval.further_prompts",
    "eval.probes",
    "eval.tasks",
    "engine.exchange",
)
FOLDERS = ("engine.exchange",)  # settings that name nothing else, whether the folder exists already or not
NAMES = ("microworld", "self", "exact", "ifeval")  # never a path, whatever lies in the folder
OF_USER = "~/"
FILE_NAME = re.compile(r"[^\s:]+\.(jsonl?|txt|md|csv|parquet)")


def anchored(config: Config, folder: Path) -> Config:
    """Return the settings with relative paths made absolute, starting from `folder`."""
    routes = {  # each a checkpoint, or a model's folder: any path with a slash
        name: anchored_source(place, folder) if "/" in place else place
        for name, place in config.distill.routes.items()
    }
    return changed(config, {**anchored_changes(config.model_dump(), folder), "distill.routes": routes})


def _anchored(key: str, value: str, folder: Path) -> str:
    names_a_folder = key in FOLDERS and value.strip() and not value.startswith(OF_USER)
    return str(folder / value) if names_a_folder else anchored_source(value, folder)


def anchored_source(value: str, folder: Path) -> str:
    """Make absolute what can only be a path or exists as one; keep a hub id, a text, a built-in name, and a
    blank, which would name the folder."""
    if value.startswith(OF_USER):
        return str(expanded(value))
    if value.startswith(("./", "../")):
        return str(folder / value)
    module, colon, function = value.rpartition(":")
    if colon and module.endswith(".py"):  # a reward
        return f"{folder / module}:{function}"
    if value in NAMES or not value.strip():
        return value
    try:
        exists = (folder / value).exists()
    except OSError:  # a text too long to be a name
        exists = False
    return str(folder / value) if exists or FILE_NAME.fullmatch(value) else value


def anchored_changes(changes: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return changes to settings, each by its own key, with relative paths made absolute, as seen from
    `folder`."""
    texts = {k: str(value) if isinstance(value, Path) else value for k, value in flattened(changes).items()}
    return {
        key: _anchored(key, value, folder) if key in FILES and isinstance(value, str) else value
        for key, value in texts.items()
    }


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a text too long to be a name
        return False
