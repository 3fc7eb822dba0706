"""Name training runs for pages, and extract their alarms and why they ended early."""

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
    """Return (step, message) of the alarm that ended a run: an error that names its step."""
    match = STEP.search(str(run.get("error")))
    return [(int(match[1]), match[2] or match[0])] if match else []


def ending(run: Mapping[str, Any]) -> str:
    """Say why a run that came to its end left out its last steps; nothing of one that took them all."""
    stopped = (run.get("result") or {}).get("stopped")
    return f"ended early: {stopped}." if stopped else ""
