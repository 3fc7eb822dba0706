"""Read a home's settings: paths start from its folder, and a model's code needs a home that was named."""

from __future__ import annotations

from pathlib import Path

from pipelines.config import settings
from pipelines.config.anchored_paths import anchored
from recovery.errors import InputError

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
    so it is refused if it asks to run code.
    """
    path = home / settings.CONFIG_NAME
    found = anchored(settings.read(path), home.absolute().parent)
    if implicit and found.model.trust_remote_code:
        raise InputError(
            f"{path} asks to run code that comes with the model, and this home was not named: "
            f"check it, then give --home {home}"
        )
    return found
