"""Name training runs for pages, and extract their alarms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dashboard.number_format import moment

STEP = re.compile(r"\bstep (\d{1,15})\b:? ?(.*)", re.DOTALL)


def name(run: Mapping[str, Any]) -> str:
    """Return a run's display name: "cycle 3 distill opd", or, of a pilot, "midtrain text, rate 2.5e-05"."""
    whose = f"cycle {run['cycle']} " if run.get("cycle") is not None else ""
    kind, _, rate = str(run.get("key") or "").partition(":")  # of a pilot's run midtrain:RATE
    named = f"{whose}{run['kind']}{' ' + str(run['method']) if run.get('method') else ''}"
    return f"{named}, rate {rate}" if kind == run["kind"] and rate else named


def long_name(run: Mapping[str, Any]) -> str:
    return f"{name(run)} · {moment(run['started_at'])} · {run['status']}"


def alarms(run: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return (step, message) of each alarm: an error or stop reason that names its step."""
    said = [run.get("error"), (run.get("result") or {}).get("stopped")]
    found = [STEP.search(str(text)) for text in said if text]
    return [(int(match[1]), match[2] or match[0]) for match in found if match]
