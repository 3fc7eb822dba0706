"""The whole story offline: cycles on the microworld, through the same stages as on any documents."""

from __future__ import annotations

import time
from pathlib import Path

from db.reads import queries
from pipelines.config.jobs import DemoJob
from pipelines.cycle import cycle
from pipelines.job_from_options import cycle_job
from pipelines.machine.init_home import initialise
from pipelines.microworld.world import write_world
from pipelines.runs.stage_runner import Result, Stage, run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from recovery.storage import atomic_dirs

STORY = """the story   a model learns documents, forgets how to follow instructions, and gets that back
            clean -> midtrained on new documents -> recovered by distillation from the clean model"""


def demo(ws: Workspace, job: DemoJob, *, parent: str | None = None, key: str | None = None) -> Result:
    """Run or resume the cycles of a demo; return {"cycles": [...]}, each as `show` prints it."""
    result = run_stage(
        ws,
        "demo",
        lambda stage: _work(ws, job, stage),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=job.seed,
    )
    return {**result, "cycles": [queries.cycle(ws.tracker.db, number) for number in result["cycles"]]}


def _work(ws: Workspace, job: DemoJob, stage: Stage) -> Result:
    if job.cycles < 1:
        raise InputError(f"--cycles {job.cycles}: a demo needs at least one")
    stage.say(STORY)
    initialise(ws, model="microworld")
    started = time.monotonic()
    numbers: list[int] = []
    for turn in range(1, job.cycles + 1):
        if numbers and _over_budget(job, started, len(numbers)):
            budget = f"{job.minutes_budget:g} minutes"
            stage.say(f"stopping after {len(numbers)} cycles: another would not fit in {budget}")
            break
        docs = world_once(stage.directory / "worlds", turn, job.seed)
        asked = cycle_job(ws, docs, changes={"seed": job.seed})
        done = cycle(ws, asked, parent=stage.id, key=f"cycle:{turn}")
        numbers.append(done["cycle"])
    return {"cycles": numbers, "seed": job.seed}


def _over_budget(job: DemoJob, started: float, done: int) -> bool:
    """Return whether one more cycle of average length would exceed the budget."""
    if job.minutes_budget is None:
        return False
    spent = time.monotonic() - started
    return spent + spent / done > job.minutes_budget * 60


def world_once(worlds: Path, turn: int, seed: int) -> Path:
    """Write this cycle's documents once; replace a half-written world of a killed run."""
    directory = worlds / f"cycle-{turn}"
    if not directory.exists():
        with atomic_dirs.new_directory(worlds) as scratch:
            write_world(scratch, cycle=turn, seed=seed)
            atomic_dirs.publish(scratch, directory)
    return directory / "docs"
