"""Name the evaluations of a resumed run that other code has scored: its verdict judges by two versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from db.reads import queries
from db.session import Database
from pipelines.runs.code_version import code_revision, versions


def scored_by_other_code(database: Database, run_id: str) -> str | None:
    """Return a line that names the finished evaluations of a run by other code; None if there are none."""
    done = queries.runs(database, kind="eval", status="done", parent=run_id, limit=None)
    now = _code(versions(), code_revision())
    others = [run for run in reversed(done) if _code(run["versions"], run["git_revision"]) != now]
    if not others:
        return None
    named = ", ".join(run["config"].get("label", run["id"]) for run in others)
    before = _code(others[-1]["versions"], others[-1]["git_revision"])
    changed = "; ".join(
        f"{name} {before.get(name, 'none')}, now {now.get(name, 'none')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )
    return (
        f"  scores       {named}: scored by other code ({changed}), so that scores of two versions stand "
        "beside each other: begin a new run to judge all by one"
    )


def _code(packages: Mapping[str, Any], revision: str | None) -> dict[str, Any]:
    return {**packages, **({"revision": revision} if revision else {})}
