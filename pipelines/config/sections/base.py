"""What all sections share: strict and frozen, numbers that may be `auto`, errors that say where."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from recovery.errors import InputError

AUTO = 0  # of a number: fitted to the corpus, the model and the machine (pipelines/config/fitted.py)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def auto_number(value: Any) -> Any:
    """Read `auto` as the number that stands for it."""
    return AUTO if value == "auto" else value


def _blank_as_none(value: Any) -> Any:
    """Read a text without words as nothing: `probes: ""` names no file."""
    return None if isinstance(value, str) and not value.strip() else value


Fitted = Annotated[int, BeforeValidator(auto_number), Field(ge=0)]
Named = Annotated[str | None, BeforeValidator(_blank_as_none)]  # a file, a folder, a name or a text
AnySection = TypeVar("AnySection", bound=Section)


def validated(kind: type[AnySection], data: Any, source: str = "") -> AnySection:
    """Return a section of the data; the first error is an input error, after the source if it is named."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        place = f"{source}: " if source else ""
        raise InputError(f"{place}{_first(error)}") from error


def _first(error: ValidationError) -> str:
    """Describe the first error: where it is, what is wrong, and the value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        return f"{where}: there is no such setting: remove it or correct its name"
    found = "" if isinstance(first["input"], dict) else f", not {first['input']!r:.60}"
    return " ".join(f"{where}: {first['msg'].removeprefix('Value error, ')}{found}".split())
