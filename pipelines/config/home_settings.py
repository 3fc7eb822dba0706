"""Read a home's settings: paths start from its folder.

What runs code, or sends texts to another machine, needs a home that was named.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from pipelines.config import settings
from pipelines.config.anchored_paths import anchored
from pipelines.config.sections.base import Section
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.engine import EngineConfig, full_name
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.model import ModelConfig
from recovery.errors import InputError
from recovery.loopback import is_loopback_url

PRESET = "real"  # of a home without settings


def of_home_or_preset(home: Path) -> tuple[str, settings.Config]:
    """Return a home's settings, or those of the preset for real models if it has none, and whose they are.

    No model is loaded by them, so none of its code can run.
    """
    path = home / settings.CONFIG_NAME
    if path.exists():
        return str(path), of_home(home, implicit=False)
    return PRESET, settings.parse(settings.preset_text(PRESET), PRESET)


def of_home(home: Path, *, implicit: bool) -> settings.Config:
    """Return recover.yaml; its relative paths start from the folder that the home lies in.

    An implicit home was found in the current folder, not named: it may have come with other people's files,
    so it is refused if it asks to run code, or to send texts to another machine.
    """
    path = home / settings.CONFIG_NAME
    found = anchored(settings.read(path), home.absolute().parent)
    if implicit:
        refuse_unnamed(found, str(path), home)
    return found


def refuse_unnamed(asking: Section, source: str, home: Path) -> None:
    """Refuse settings, or a recorded job, of a home that was not named if they ask to run code, or to send
    texts to another machine."""
    code, servers = code_of(asking), servers_elsewhere(asking)
    if code or servers:
        asked = f"run {code}" if code else f"send texts, and the key that is set, to {servers[0]}"
        raise InputError(
            f"{source} asks to {asked}, and this home was not named: check it, then give --home {home}"
        )


def code_of(section: Section) -> str | None:
    """Return what code a section, or one within it, asks to run; None if it asks for none."""
    if isinstance(section, ModelConfig) and section.trust_remote_code:
        return "code that comes with the model (model.trust_remote_code)"
    if isinstance(section, DistillConfig) and ":" in (section.reward or ""):
        return f"{section.reward} (distill.reward)"
    if isinstance(section, EvalConfig) and section.tasks and any(Path(section.tasks).rglob("*.yaml")):
        return f"what the task files in {section.tasks} can name (eval.tasks)"
    if isinstance(section, EngineConfig) and (name := _naming_code(section.arguments)):
        return f"vLLM with an argument that may load code (engine.arguments: {name})"
    within = (code_of(value) for _, value in section if isinstance(value, Section))
    return next(filter(None, within), None)


def servers_elsewhere(section: Section) -> list[str]:
    """Return the engines on other machines that a section, or one within it, names."""
    engines: dict[str, str] = {}
    if isinstance(section, DistillConfig):
        engines = {"distill.sampler": section.sampler, "distill.teacher_engine": section.teacher_engine}
    elif isinstance(section, EvalConfig):
        engines = {"eval.sampler": section.sampler}
    found = [f"{where} ({name})" for name, where in engines.items() if _is_elsewhere(where)]
    within = [servers_elsewhere(value) for _, value in section if isinstance(value, Section)]
    return [*found, *chain.from_iterable(within)]


def _is_elsewhere(engine: str) -> bool:
    """Return whether an engine is named by URLs that are not all of this machine."""
    return "://" in engine and not all(map(is_loopback_url, engine.split(",")))


def _naming_code(arguments: Mapping[str, bool | str | int | float]) -> str | None:
    """Return an argument of vLLM that may name code: any that is no number or flag, and the flag that trusts
    what comes with a model."""
    for name, value in arguments.items():
        if full_name(name) == "trust-remote-code" or isinstance(value, str):
            return name
    return None
