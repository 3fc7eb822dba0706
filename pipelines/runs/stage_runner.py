"""Run a stage: record it before it starts and its result once; never repeat a finished one."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from db.errors import TrackerError
from db.reads import queries
from db.schema import Run
from db.writes.live import LiveRun
from pipelines.config.sections.base import Section
from pipelines.runs import launch
from pipelines.runs.code_version import code_revision, device, versions
from pipelines.runs.cost import Ledger, spent
from pipelines.runs.kinds import COMPOSED
from pipelines.runs.other_code import DEVICE, scored_by_other_code
from pipelines.runs.workspace import Workspace
from recovery.errors import RecoverError
from recovery.named_paths import refusal
from recovery.storage import atomic_dirs

Result = dict[str, Any]
Job = TypeVar("Job", bound=Section)
STATE = "state"  # in a run's folder
log = logging.getLogger(__name__)


@dataclass
class Stage:
    """A running stage: its directory, its reports and its cost."""

    id: str
    label: str
    directory: Path
    live: LiveRun
    workspace: Workspace
    ledger: Ledger
    first: bool = True  # of several processes the one that publishes and records
    resumed: bool = False

    @property
    def state(self) -> Path:
        """The directory of a training's resumable states."""
        return self.directory / STATE

    def spend(self, **counts: float) -> None:
        """Add to tokens_sampled, tokens_scored, tokens_trained or flops."""
        self.ledger.spend(**counts)
        self.ledger.save()

    def step(self, step: int, steps: int, *, eta_seconds: float | None = None, note: str = "") -> None:
        self.live.progress(step, steps, eta_seconds=eta_seconds, message=note)
        self.ledger.save()
        self.workspace.progress.step(self.label, step, steps, eta_seconds=eta_seconds, note=note)

    def say(self, text: str) -> None:
        self.workspace.progress.say(text)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned when this run began: a resumed run finds it in a JSON file."""
        kept = self.directory / name
        if not kept.exists():
            atomic_dirs.write_text(kept, json.dumps(make()))
        return json.loads(kept.read_text(encoding="utf-8"))


def run_job(
    ws: Workspace,
    kind: str,
    work: Callable[[Workspace, Job, Stage], Result],
    job: Job,
    *,
    parent: str | None = None,
    key: str | None = None,
) -> Result:
    """Do a job as a stage that is recorded with all its settings."""
    return run_stage(
        ws,
        kind,
        partial(work, ws, job),
        config=job.model_dump(),
        parent=parent,
        key=key,
        seed=getattr(job, "seed", None),
    )


def run_stage(
    workspace: Workspace,
    kind: str,
    work: Callable[[Stage], Result],
    *,
    config: dict[str, Any],
    parent: str | None = None,
    key: str | None = None,
    seed: int | None = None,
) -> Result:
    """Do the work, or return its recorded result where it was done before."""
    db = workspace.tracker.db
    db.reads_wait = True  # a server that restarts at the end of a stage would cost its result
    begun = queries.run_of_key(db, key, parent=parent) if key else None
    if begun and begun["status"] == "done":
        return recorded_result(workspace, begun["id"], begun["result"])
    start = partial(
        workspace.tracker.start_run,
        kind,
        parent=parent,
        key=key,
        config=config,
        seed=seed,
        versions=versions() | _scored_on(kind, config),
        git_revision=code_revision(),
    )
    with _at_work(workspace, begun, start) as run:
        now = queries.run(db, run.id)
        if now["status"] == "done":  # by another process, just before this one had the lock
            return recorded_result(workspace, run.id, now["result"])
        with _recorded(workspace, run.id, is_whole=parent is None), workspace.tracker.live(run.id) as live:
            directory = workspace.run_directory(run.id)
            ledger = Ledger(directory, run.attempts, timed=kind not in COMPOSED)
            stage = Stage(run.id, str(config.get("label", kind)), directory, live, workspace, ledger)
            stage.resumed = run.attempts > 1
            if stage.resumed and (said := scored_by_other_code(db, run.id)):
                stage.say(said)
            return _worked(stage, kind, work, config)


def _scored_on(kind: str, config: dict[str, Any]) -> dict[str, str]:
    """Return what computes an evaluation; nothing where a server elsewhere does."""
    if kind != "eval" or "://" in config.get("settings", {}).get("sampler", ""):
        return {}
    return {DEVICE: device()}


@contextmanager
def _at_work(workspace: Workspace, begun: dict[str, Any] | None, start: Callable[[], Run]) -> Iterator[Run]:
    """Record that a run is at work, and hold its lock.

    One that has begun before is locked first: what is recorded of a run that another process works on stays.
    """
    with ExitStack() as held:
        if begun:
            held.enter_context(exclusive(workspace.run_directory(begun["id"])))
        run = start()
        if not begun or run.id != begun["id"]:  # which was given up meanwhile, so that this is a new one
            held.enter_context(exclusive(workspace.run_directory(run.id)))
        yield run


def _worked(stage: Stage, kind: str, work: Callable[[Stage], Result], config: dict[str, Any]) -> Result:
    """Do the work and record its result and cost."""
    atomic_dirs.sweep_files(stage.directory)
    atomic_dirs.sweep_files(stage.state)
    try:
        with launch.together(stage.workspace, kind, stage.id, config), _storage_errors(stage.workspace.home):
            result = work(stage)
    finally:
        stage.ledger.save(at_once=True)  # a failed attempt costs too
    stage.live.flush()
    states = _states(stage.workspace, stage.id)  # read before the end, after which nothing may fail the run
    stage.workspace.tracker.finish_run(stage.id, result, cost=stage.ledger.total())
    _forget(states)
    return result


def recorded_result(workspace: Workspace, run_id: str, result: Result | None) -> Result:
    """Return what a finished run recorded; a kill or Ctrl-C right after its end may have left its states."""
    _forget(_states(workspace, run_id))
    return dict(result or {})


def _states(workspace: Workspace, run_id: str) -> list[Path]:
    """Return where a run keeps resumable states, and where the runs below it do.

    One of these may have failed, as a candidate that was left out: once the run above it is done, it is never
    resumed.
    """
    below = queries.runs(workspace.tracker.db, parent=run_id, limit=None)
    return [workspace.run_directory(name) / STATE for name in (run_id, *(run["id"] for run in below))]


def _forget(states: Iterable[Path]) -> None:
    """Remove the states of finished runs, which are several times the model's size."""
    for state in states:
        shutil.rmtree(state, ignore_errors=True)


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Lock a run: two processes would overwrite each other's state."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as error:
        raise RecoverError(f"{directory} cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            name = directory.name
            raise RecoverError(f"run {name} is being worked on by another process: wait for it") from error
        except OSError as error:
            raise atomic_dirs.without_locks(directory, error) from error
        yield


def worked_on(directory: Path) -> bool:
    """Return whether a process works on the run of this directory now."""
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock: the run never began here
        return False
    return False


@contextmanager
def _recorded(workspace: Workspace, run_id: str, *, is_whole: bool) -> Iterator[None]:
    """Record a failure or an interruption with what it has cost, and raise it again; that of a whole run, not
    of a stage, with the command that goes on with it, which may not be the newest one."""
    directory = workspace.run_directory(run_id)
    try:
        yield
    except KeyboardInterrupt as error:
        _note_end(workspace.tracker.stop_run, run_id, "interrupted", directory)
        if is_whole:
            onward = workspace.command("resume", run_id, *launch.as_launched())
            error.add_note(f"go on with `{onward}`")
        raise
    except Exception as error:
        _note_end(workspace.tracker.fail_run, run_id, f"{type(error).__name__}: {error}", directory)
        raise


@contextmanager
def _storage_errors(home: Path) -> Iterator[None]:
    """Turn what a full disk, or a folder of the home that was closed meanwhile, raises into one line: the
    work failed, and none of its input is bad."""
    try:
        yield
    except OSError as error:
        named = isinstance(error.filename, str | bytes)
        place = Path(os.fsdecode(error.filename)) if named else None
        if atomic_dirs.disk_full(error):
            raise atomic_dirs.full_disk(place) from error
        within = place is None or place.absolute().is_relative_to(home.absolute())
        if within and (said := refusal(error)):
            raise RecoverError(said) from error
        raise


def _note_end(record: Callable[..., None], run_id: str, why: str, directory: Path) -> None:
    """Record why a run has ended; where that cannot be written either, warn: what ended it is raised."""
    try:
        record(run_id, why, cost=spent(directory))
    except TrackerError as error:
        log.warning("the end of run %s could not be recorded: %s", run_id, error)
