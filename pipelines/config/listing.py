"""List every setting of recover.yaml: its key, its value, its default and what it means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from pipelines.config.sections.base import AUTO, Section, auto_number
from pipelines.config.settings import Config

Row = dict[str, Any]


def every_setting(config: Config) -> list[Row]:
    """Return the settings in the order of recover.yaml; those of a section follow the section."""
    return list(_of_section(Config, config, ""))


def every_key() -> list[str]:
    """Return the keys of all settings that recover.yaml may hold."""
    return [row["setting"] for row in _of_section(Config, None, "")]


def holding(rows: list[Row], word: str) -> list[Row]:
    """Return the settings that have a word in their key or meaning."""
    wanted = word.casefold()
    return [row for row in rows if wanted in f"{row['setting']} {row['meaning']}".casefold()]


def _of_section(kind: type[Section], values: Section | None, prefix: str) -> Iterator[Row]:
    for name, field in kind.model_fields.items():
        key, value = f"{prefix}{name}", getattr(values, name, None)
        sections = [
            part for part in _parts(field.annotation) if isinstance(part, type) and issubclass(part, Section)
        ]
        if field.annotation not in sections:  # a section is shown by its settings
            yield _row(key, field, value, missing=values is None)
        for section in sections:
            yield from _of_section(section, value if isinstance(value, section) else None, f"{key}.")


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) or (annotation,)


def _row(key: str, field: FieldInfo, value: Any, *, missing: bool) -> Row:
    """Describe a setting; one of a section that is not there has no value."""
    required = field.is_required()
    default = None if required else _shown(field, field.get_default(call_default_factory=True))
    return {
        "setting": key,
        "value": None if missing else _shown(field, value),
        "default": "required" if required else default,
        "meaning": field.description or "",
    }


def _shown(field: FieldInfo, value: Any) -> Any:
    """Return a value as recover.yaml writes it."""
    fitted = any(isinstance(one, BeforeValidator) and one.func is auto_number for one in field.metadata)
    if fitted and value == AUTO:
        return "auto"
    return value.model_dump(mode="json") if isinstance(value, Section) else value
