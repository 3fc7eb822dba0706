"""Run the stages from Python: a home, and the methods that the commands of the same names call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.named_paths import expanded, folder

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace

Settings = Mapping[str, Any]  # by their key in recover.yaml: {"distill.steps": 20}
Found = dict[str, Any]  # what the command of the same name prints with --json
NONE: Settings = {}
OF_THE_HOME = ("model", "engine")  # sections of recover.yaml that a call would leave as they are
UNREAD_BY_MERGING = ("merge", "rehearsal", "overlap")  # settings of distill


class Home:
    """A home: its settings, database, checkpoints and runs.

    Every method takes `settings` that replace those of recover.yaml for one call; relative paths in them
    start from the current folder. Errors are those of recovery.errors and db.errors, with what to do in the
    message.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    @classmethod
    def init(
        cls,
        path: str | Path,
        model: str | Path | None = None,
        *,
        revision: str | None = None,
        preset: str | None = None,
        trust_remote_code: bool = False,
        db: str | None = None,
        quiet: bool = False,
    ) -> Home:
        """Make a home and register its clean checkpoint; without a model, the shipped tiny one.

        A home that exists is opened as it is, and refused if it was made for another model.
        """
        from pipelines.machine.init_home import initialise
        from pipelines.runs.unmade_home import left_as_found

        _refuse_blank(model=model, revision=revision, preset=preset, db=db)
        with left_as_found(_place("path", path), db):
            home = cls._at(path, db, quiet=quiet, create=True)
            try:
                initialise(
                    home.workspace,
                    model=None if model is None else str(model),
                    revision=revision,
                    preset=preset,
                    trust_remote_code=trust_remote_code,
                )
                home.workspace.note_database(db)
            except BaseException:
                home.close()
                raise
        return home

    @classmethod
    def open(cls, path: str | Path, *, db: str | None = None, quiet: bool = False) -> Home:
        """Open a home that was set up by `init` or by the command line."""
        _refuse_blank(db=db)
        return cls._at(path, db, quiet=quiet, create=False)

    @classmethod
    def _at(cls, path: str | Path, db: str | None, *, quiet: bool, create: bool) -> Home:
        from pipelines.runs.progress import Progress
        from pipelines.runs.workspace import Workspace

        progress = Progress(quiet=quiet)
        home = folder(_place("path", path)).absolute()  # also where the current folder changes later
        return cls(Workspace.open(home, db, progress, create=create))

    def close(self) -> None:
        """Close the database; a home is also a context manager."""
        self.workspace.close()

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def midtrain(
        self,
        docs: str | Path,
        *,
        student: str = "current",
        augment: str | Path | None = None,
        settings: Settings = NONE,
    ) -> Found:
        """Teach the student a folder of documents; return the new checkpoint's id and how it was made."""
        from pipelines.job_from_options.train import midtrain_job
        from pipelines.midtrain import midtrain

        ws = self.workspace
        retold = _place("augment", augment) if augment is not None else None
        job = midtrain_job(ws, _place("docs", docs), student, augment=retold, changes=_changes(settings))
        return midtrain(ws, job, key=ws.new_key())

    def distill(
        self,
        teacher: str = "base",
        *,
        student: str | None = None,
        docs: str | Path | None = None,
        settings: Settings = NONE,
    ) -> Found:
        """Bring the student's behaviour back from the teacher; without a student, the newest midtrained."""
        from pipelines.distill import distill_alone
        from pipelines.job_from_options.train import distill_job

        ws = self.workspace
        taught = _place("docs", docs) if docs is not None else None
        job = distill_job(ws, teacher, student, docs=taught, changes=_changes(settings))
        return distill_alone(ws, job, key=ws.new_key())

    def evaluate(
        self, checkpoint: str | None = None, *, suites: str | None = None, settings: Settings = NONE
    ) -> Found:
        """Score a checkpoint (default: current) on suites, as in "ifeval,knowledge" (default: all that have
        questions)."""
        from evals.tasks import names as task_names

        ws = self.workspace
        changes = _changes(settings)
        task_names.require_listed(suites, changes.get("eval.tasks") or ws.config.eval.tasks)
        from pipelines.evaluate import evaluate
        from pipelines.job_from_options.measure import eval_job

        job = eval_job(ws, checkpoint, suites, changes=changes)
        return evaluate(ws, job, key=ws.new_key())

    def cycle(
        self,
        docs: str | Path,
        *,
        student: str = "current",
        suites: str | None = None,
        augment: str | Path | None = None,
        recover_with: str | None = None,
        settings: Settings = NONE,
    ) -> Found:
        """Midtrain, evaluate, recover, evaluate, decide; return the cycle's scores and verdict."""
        from pipelines.cycle import cycle
        from pipelines.job_from_options.cycle import cycle_job
        from recovery.errors import InputError

        ws, changes = self.workspace, _changes(settings)
        unread = sorted({f"distill.{name}" for name in UNREAD_BY_MERGING} & changes.keys())
        if recover_with == "merge" and unread:
            raise InputError(f"{unread[0]}: has no effect with recover_with='merge': leave it out")
        job = cycle_job(
            ws,
            _place("docs", docs),
            student=student,
            suites=suites,
            augment=_place("augment", augment) if augment is not None else None,
            recover_with=recover_with,
            changes=changes,
        )
        done = cycle(ws, job, key=ws.new_key())
        return self.show(f"cycle:{done['cycle']}")

    def resume(self, run: str | None = None) -> Found:
        """Resume an interrupted run: the newest, or the one named."""
        from pipelines.resume import resume

        return resume(self.workspace, run)

    def prune(self, *, cycles: int = 2, remove: bool = False, run: str | None = None) -> Found:
        """Find the checkpoints that nothing needs, or what an unfinished run alone needs; remove their files
        where asked to, which gives that run up."""
        from pipelines.prune import prune

        return prune(self.workspace, cycles=cycles, remove=remove, run=run)

    def show(self, reference: str) -> Found:
        """Return everything recorded about cycle:N, a run or a checkpoint."""
        from pipelines.runs.recorded import recorded

        return recorded(self.workspace, reference)


def _place(name: str, path: str | Path) -> Path:
    """Return a path that a call names; refuse a blank one, which would be the current folder."""
    from recovery.errors import InputError

    if not str(path).strip():
        raise InputError(f"{name}: is blank: give a path")
    return expanded(path)


def _refuse_blank(**given: str | Path | None) -> None:
    """Refuse texts that are blank, as of a variable that is not set: they would count as left out."""
    from recovery.errors import InputError

    for name, value in given.items():
        if value is not None and not str(value).strip():
            raise InputError(f"{name}: is blank: give it a value, or leave it out")


def _changes(settings: Settings) -> dict[str, Any]:
    """Resolve file names as the command line does: as seen from the current folder."""
    from pipelines.config.anchored_paths import anchored_changes
    from recovery.errors import InputError

    for key in settings:
        if key.partition(".")[0] in OF_THE_HOME:
            raise InputError(
                f"{key}: no call changes it, as the whole home works by it: set it in recover.yaml"
            )
    return anchored_changes(settings, Path.cwd())
