"""Override settings: those of a section, or any of recover.yaml by its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.config.sections.base import AnySection, validated
from pipelines.config.settings import Config
from recovery.errors import InputError

OF_ANY_METHOD = ("minibatches", "epochs")  # dials that say how often answers are used
LENGTHS = ("steps", "epochs")  # of midtrain, which gives one of them at most
FURTHER = "more_steps"  # of distill: who sets its steps gets as many
OPTIONAL = ("midtrain.lora", "distill.lora", "distill.stop")  # sections that may be absent
WHOLE = (  # mappings that are one setting each: of free names, the shares of the mix, an adapter
    "model.template_args",
    "midtrain.dials",
    "midtrain.mix",
    "midtrain.lora",
    "distill.dials",
    "distill.routes",
    "distill.lora",
    "eval.task_points",
    "engine.arguments",
)


def override(section: AnySection, changes: Mapping[str, Any]) -> AnySection:
    """Replace settings of a section (None: keep) and validate it again."""
    given = {key: value for key, value in changes.items() if value is not None}
    data = section.model_dump()
    if data.keys() >= set(LENGTHS) and any(name in given for name in LENGTHS):
        data.update(dict.fromkeys(LENGTHS))
    if FURTHER in data and "steps" in given:
        data[FURTHER] = 0
    return validated(type(section), {**data, **given})


def changed(config: Config, changes: Mapping[str, Any]) -> Config:
    """Replace some settings, named as in recover.yaml: {"distill.optimizer.learning_rate": 1}.

    A mapping (dials, routes, a section) extends the one that is there; any other value replaces it.
    """
    changes = flattened(changes)
    data = config.model_dump()
    _forget_superseded(data, changes)
    for key, value in changes.items():
        _put(data, key, value)
    return validated(Config, data)


def flattened(changes: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """Return changes with the settings of each section by their own keys: {"distill": {"steps": 2}} becomes
    {"distill.steps": 2}."""
    found: dict[str, Any] = {}
    for name, value in changes.items():
        key = f"{section}{name}"
        if isinstance(value, Mapping) and value and key not in WHOLE:
            found |= flattened(value, f"{key}.")
        else:
            found[key] = value
    return found


def _forget_superseded(data: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Drop what a change makes void: the other way to give a length, and the dials of another method."""
    if any(f"midtrain.{name}" in changes for name in LENGTHS):
        data["midtrain"].update(dict.fromkeys(LENGTHS))
    if changes.get("midtrain.method", data["midtrain"]["method"]) != data["midtrain"]["method"]:
        data["midtrain"]["dials"] = {}
    distill = data["distill"]
    if "distill.steps" in changes:
        distill[FURTHER] = 0
    if changes.get("distill.method", distill["method"]) != distill["method"]:
        distill["dials"] = {name: dial for name, dial in distill["dials"].items() if name in OF_ANY_METHOD}


def _put(data: dict[str, Any], key: str, value: Any) -> None:
    *path, name = key.split(".")
    for depth, part in enumerate(path, 1):
        section = data.get(part)
        if not isinstance(section, dict) and ".".join(path[:depth]) in OPTIONAL:
            section = data[part] = {}
        if not isinstance(section, dict):
            raise InputError(f"{key}: there is no such setting: remove it or correct its name")
        data = section
    before = data.get(name)
    if isinstance(before, dict) and isinstance(value, Mapping):
        value = {**before, **value}
    data[name] = value
