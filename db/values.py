"""Convert values for storage: timestamps, text that every database accepts, JSON without NaN."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Dialect, Text
from sqlalchemy.types import TypeDecorator


def now() -> str:
    """Return the current time in UTC, such as 2026-11-20T08:21:07.123Z, which sorts as text."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_since(moment: str) -> float:
    """Return the seconds since a timestamp written by now()."""
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which databases refuse and model output may contain."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "␀")


def special_name(number: float) -> str | None:
    """Return "nan", "inf" or "-inf"; None for an ordinary number."""
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return None


def finite(value: float | None) -> float | None:
    """Return None for NaN and infinity: such a value is undefined, and databases store it differently."""
    return float(value) if value is not None and math.isfinite(value) else None


def plain(value: Any) -> Any:
    """Convert to JSON types: NaN and infinity by name, tuples as lists, numpy scalars as numbers."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, Decimal):
        value = _binary(value)
    if isinstance(value, float):
        return special_name(value) or float(value)
    if value is None or isinstance(value, bool | int):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {storable(str(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    return plain(value.item()) if hasattr(value, "item") else storable(str(value))


def _binary(value: Decimal) -> int | float:
    """Return a whole number as one, else a float: PostgreSQL sums BIGINT, and averages, as NUMERIC."""
    # Python refuses to write integers of more than some thousands of digits.
    whole = value.is_finite() and value.adjusted() < 300 and value == value.to_integral_value()
    return int(value) if whole else float(value)


class SafeText(TypeDecorator[str]):
    """A text column that makes values storable on write."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(str(value))
