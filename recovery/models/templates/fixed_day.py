"""Stop the clock of templates that write the date."""

from __future__ import annotations

import datetime
from typing import Any

from recovery.errors import InputError


def with_fixed_day(args: dict[str, Any]) -> dict[str, Any]:
    """Turn `today: 2026-01-31` into a fixed clock for templates that write the date (reproducible runs)."""
    if "today" not in args:
        return args
    try:
        day = datetime.date.fromisoformat(str(args.pop("today")))
    except ValueError as error:
        raise InputError("template argument today: expected a date such as 2026-01-31") from error
    return {**args, "strftime_now": day.strftime}
