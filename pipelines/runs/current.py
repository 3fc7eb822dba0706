"""Point `current` at the model that a run has made, unless it was moved since the run began."""

from __future__ import annotations

from db import cycle_names
from db.reads import queries
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace


def current_at_first(stage: Stage) -> str:
    """Return the checkpoint that `current` named when a run's work began, which asks for it first."""
    found = stage.once("current.json", lambda: queries.resolve(stage.workspace.tracker.db, "current"))
    return str(found)


def make_current(stage: Stage, checkpoint: str, *, otherwise: str, cycle: int | None = None) -> None:
    """Make a checkpoint `current`, that of a cycle unless it was rejected meanwhile; `otherwise` says how to
    go on with it where another one stays current, as what a second run beside it or a review chose does."""
    tracker = stage.workspace.tracker
    now = queries.resolve(tracker.db, "current")
    if now not in (current_at_first(stage), checkpoint):
        lacks = without(stage.workspace, checkpoint, but=cycle) if cycle is not None else ""
        both = f"{lacks}: a new cycle of these documents keeps both" if lacks else ""
        stage.say(
            f"  current      stays {now}, to which it was moved after this run began: {otherwise}{both}"
        )
        return
    if cycle is not None and not tracker.set_current_unless_rejected(cycle, checkpoint):
        stage.say(f"  current      stays {now}: a review has rejected this cycle: {otherwise}")
        return
    if cycle is None:
        tracker.set_alias("current", checkpoint)
    stage.say(f"  current      is {checkpoint} from now on")


def without(ws: Workspace, checkpoint: str, *, but: int) -> str:
    """Name the accepted or approved cycles, `but` one, that are not in a checkpoint; nothing without any."""
    numbers = queries.used_cycles_outside(ws.tracker.db, checkpoint)
    return cycle_names.without([number for number in numbers if number != but])
