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
    at_first = current_at_first(stage)
    stays = stage.workspace.tracker.make_current(checkpoint, at_first, cycle)
    if stays is None:
        stage.say(f"  current      is {checkpoint} from now on")
    elif stays in (at_first, checkpoint):
        stage.say(f"  current      stays {stays}: a review has rejected this cycle: {otherwise}")
    else:
        lacks = without(stage.workspace, checkpoint, but=cycle) if cycle is not None else ""
        both = f"{lacks}: a new cycle of these documents keeps both" if lacks else ""
        stage.say(
            f"  current      stays {stays}, to which it was moved after this run began: {otherwise}{both}"
        )


def without(ws: Workspace, checkpoint: str, *, but: int) -> str:
    """Name the accepted or approved cycles, `but` one, that are not in a checkpoint; nothing without any."""
    numbers = queries.used_cycles_outside(ws.tracker.db, checkpoint)
    return cycle_names.without([number for number in numbers if number != but])
