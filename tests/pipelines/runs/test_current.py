"""`current` names a run's model at its end, unless something else has moved it since the run began."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from db.reads import queries
from pipelines.runs.current import current_at_first, make_current
from pipelines.runs.stage_runner import Stage, run_stage
from pipelines.runs.workspace import Workspace


@pytest.mark.parametrize("kind", ["cycle", "distill"])
def test_of_two_runs_that_end_at_once_the_later_leaves_current_where_the_first_has_moved_it(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    for name in ("first", "later"):
        ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name)

    def work(stage: Stage) -> dict[str, Any]:
        current_at_first(stage)
        number = ws.tracker.record_cycle(stage.id) if kind == "cycle" else None
        with monkeypatch.context() as patched:

            def meanwhile(change: Callable[[Any], Any]) -> Any:
                patched.undo()
                ws.tracker.set_alias("current", "first")
                return ws.tracker.db.write(change)

            patched.setattr(ws.tracker.db, "write", meanwhile)
            make_current(stage, "later", otherwise="`--student later` names it", cycle=number)
        return {}

    run_stage(ws, kind, work, config={})
    assert queries.resolve(ws.tracker.db, "current") == "first"
    assert said == [
        "  current      stays first, to which it was moved after this run began: `--student later` names it"
    ]
