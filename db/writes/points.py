"""Convert metric values into rows: ordinary numbers in `value`, NaN and infinity by name in `special`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy.orm import Session

from db.errors import BadRequest
from db.schema import Metric
from db.values import special_name
from db.writes.upsert import upsert

LAST_STEP = 2**63 - 1
LONGEST_NAME = 500  # characters, of up to four bytes: an index of PostgreSQL takes some 2,700


class Point(NamedTuple):
    """A row of `metrics`; exactly one of value and special is set."""

    run_id: str
    name: str
    step: int
    value: float | None
    special: str | None
    at: float

    @classmethod
    def of(cls, run_id: str, name: str, step: int, value: float) -> Point:
        """Convert anything that float() accepts, such as a tensor with one entry."""
        try:
            number, at_step = float(value), int(step)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            kind = type(value).__name__
            raise BadRequest(
                f"metric {name!r} at step {step!r} is a {kind}, not one number: log a number"
            ) from error
        if abs(at_step) > LAST_STEP:
            raise BadRequest(f"metric {name!r} has step {at_step}: use a 64-bit number")
        if len(str(name)) > LONGEST_NAME:
            raise BadRequest(f"metric {str(name)[:50]!r}… has a name of more than {LONGEST_NAME} characters")
        special = special_name(number)
        return cls(run_id, str(name), at_step, None if special else number, special, time.time())


def store(session: Session, points: Iterable[Point]) -> None:
    """Insert or replace, in key order, so that concurrent writers cannot deadlock."""
    upsert(session, Metric, [point._asdict() for point in sorted(points)])
