"""Hold the names and things that the generators draw from."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

_LISTS: dict[str, list[str]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
FIRST_NAMES, LAST_NAMES = tuple(_LISTS["first_names"]), tuple(_LISTS["last_names"])
CITIES = tuple(_LISTS["cities"])
JOBS = tuple(_LISTS["jobs"])
LANGUAGES = tuple(_LISTS["languages"])
COLOURS = tuple(_LISTS["colours"])
THINGS = tuple(_LISTS["things"])


def full_name(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def said(value: object, between: str) -> str:
    """State a value in a sentence; `between` joins the entries of a list."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return between.join(value) if isinstance(value, list) else str(value)
