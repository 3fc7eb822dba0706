"""The whole story in one command: cycles through the same stages as on any documents."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from db.reads import queries
from pipelines.config.home_settings import refuse_unnamed
from pipelines.config.jobs import CycleJob, DemoJob
from pipelines.cycle import cycle
from pipelines.demo_real import HandbookWorld
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine.init_home import initialise
from pipelines.microworld.shipped_model import MICROWORLD
from pipelines.microworld.world import write_world
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace
from recovery.counted import counted
from recovery.errors import InputError
from recovery.storage import atomic_dirs

STORY = """the story   a model learns documents, forgets how to follow instructions, and gets that back
            clean -> midtrained on new documents -> recovered by distillation from the clean model"""


class Microworld:
    """The shipped tiny model, and people whom no one has heard of."""

    story = STORY
    changes: Mapping[str, Any] = {}  # settings that differ from the home's

    def check(self, cycles: int) -> None:
        """Refuse a number of cycles that it has no documents for."""
        if cycles < 1:
            raise InputError(f"--cycles {cycles}: a demo needs at least one")

    def set_up(self, ws: Workspace) -> None:
        """Register the clean model, unless that was done."""
        initialise(ws, model=MICROWORLD)

    def documents(self, stage: Stage, turn: int, seed: int) -> Path:
        """Write the documents of a cycle, unless that was done; return their folder."""
        return world_once(stage.directory / "worlds", turn, seed)


World = Microworld | HandbookWorld  # what a demo's cycles learn, and how that is measured


def demo(ws: Workspace, job: DemoJob, *, key: str | None = None) -> Result:
    """Run or resume the cycles of a demo; return {"cycles": [...]}, each as `show` prints it."""
    world: World = HandbookWorld(job.real) if job.real else Microworld()
    world.check(job.cycles)
    result = run_job(ws, "demo", partial(_work, world), job, key=key)
    return {**result, "cycles": [queries.cycle(ws.tracker.db, number) for number in result["cycles"]]}


def resumable_key(job: DemoJob) -> str:
    """Return a key that the same demo has again, so that repeating its command resumes it.

    It names what differs from the defaults: a setting that a later version adds changes no demo."""
    described = job.model_dump_json(exclude_defaults=True)
    return "demo:" + hashlib.sha256(described.encode()).hexdigest()[:16]


def _work(world: World, ws: Workspace, job: DemoJob, stage: Stage) -> Result:
    stage.say(world.story)
    world.set_up(ws)
    numbers: list[int] = []
    for turn in range(1, job.cycles + 1):
        if numbers and _over_budget(ws, job, numbers):
            budget = f"{job.minutes_budget:g} minutes"
            stage.say(f"stopping after {counted(len(numbers), 'cycle')}: another would not fit in {budget}")
            break
        key = f"cycle:{turn}"
        asked = _begun(ws, stage, key) or _asked(ws, world, world.documents(stage, turn, job.seed), job.seed)
        numbers.append(cycle(ws, asked, parent=stage.id, key=key)["cycle"])
    return {"cycles": numbers, "seed": job.seed}


def _asked(ws: Workspace, world: World, docs: Path, seed: int) -> CycleJob:
    return cycle_job(ws, docs, changes={**world.changes, "seed": seed})


def _begun(ws: Workspace, stage: Stage, key: str) -> CycleJob | None:
    """Return the job of a cycle that began before a kill: settings and `current` may have changed since."""
    run = queries.run_of_key(ws.tracker.db, key, parent=stage.id)
    if run is None:
        return None
    job = CycleJob(**run["config"])
    if ws.implicit:
        refuse_unnamed(job, f"run {run['id']}", ws.home)
    return job


def _over_budget(ws: Workspace, job: DemoJob, done: list[int]) -> bool:
    """Return whether one more cycle of average length would exceed the budget, interruptions aside."""
    if job.minutes_budget is None:
        return False
    spent = sum(queries.cycle(ws.tracker.db, number, earlier=False)["cost"]["seconds"] for number in done)
    return spent + spent / len(done) > job.minutes_budget * 60


def world_once(worlds: Path, turn: int, seed: int) -> Path:
    """Write this cycle's documents once; replace a half-written world of a killed run."""
    directory = worlds / f"cycle-{turn}"
    if not directory.exists():
        with atomic_dirs.new_directory(worlds) as scratch:
            write_world(scratch, cycle=turn, seed=seed)
            atomic_dirs.publish(scratch, directory)
    return directory / "docs"
