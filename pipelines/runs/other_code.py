"""Name the evaluations of a resumed run that other code, or another device, has scored: its verdict judges by
both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.reads import queries
from db.session import Database
from pipelines.runs.code_version import code_revision, device, versions

DEVICE = "device"  # beside the versions of an evaluation


def scored_by_other_code(database: Database, run_id: str) -> str | None:
    """Return a line that names the finished evaluations of a run by other code, or on another device; None if
    there are none."""
    done = queries.runs(database, kind="eval", status="done", parent=run_id, limit=None)
    if not done:
        return None
    now = _code({**versions(), DEVICE: device()}, code_revision())
    # None is recorded by earlier versions, nor where a server elsewhere answers.
    befores = [(run, {DEVICE: now[DEVICE], **_code(run["versions"], run["git_revision"])}) for run in done]
    others = [(run, before) for run, before in reversed(befores) if before != now]
    if not others:
        return None
    named = ", ".join(run["config"].get("label", run["id"]) for run, _ in others)
    before = others[-1][1]
    changed = "; ".join(
        f"{name} {before.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )
    return (
        f"  scores       {named}: scored by other code or on another device ({changed}), so that scores of "
        "two kinds stand beside each other: begin a new run to judge all by one"
    )


def _code(packages: Mapping[str, Any], revision: str | None) -> dict[str, Any]:
    return {**packages, **({"revision": revision} if revision else {})}
