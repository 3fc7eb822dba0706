"""One `--home`: its database, its checkpoints, its settings. Every stage works inside one."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from db import queries
from db.tracker import Tracker
from pipelines.config import settings as settings
from pipelines.runs.progress import Progress
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint, CheckpointStore


@dataclass
class Workspace:
    home: Path
    tracker: Tracker
    progress: Progress

    @classmethod
    def open(
        cls, home: Path, db_url: str | None = None, progress: Progress | None = None, *, create: bool = True
    ) -> Workspace:
        """With create=False a home that is not there is refused, and nothing is made."""
        database = home / "recover.db"
        if create:
            _make(home)
        elif db_url is None and not database.exists():
            raise InputError(f"{home} is not set up: run `recover init` first, or give --home")
        shown = progress or Progress(quiet=True)
        return cls(home, Tracker(db_url or database, create=create), shown)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.tracker.close()

    @staticmethod
    def new_key() -> str:
        """The name under which a run can be resumed."""
        return secrets.token_hex(8)

    @cached_property
    def config(self) -> settings.Config:
        return settings.read(self.home / settings.CONFIG_NAME)

    @cached_property
    def store(self) -> CheckpointStore:
        from recovery.storage.checkpoints import CheckpointStore

        return CheckpointStore(self.home / "checkpoints")

    def run_directory(self, run_id: str) -> Path:
        return self.home / "runs" / run_id

    def checkpoint(self, ref: str) -> Checkpoint:
        """The checkpoint behind an alias, an id or its beginning, or cycle:N; its bytes verified.

        The directory of a model (any path with a slash) serves as well: it is registered where it lies.
        """
        if "/" in ref and Path(ref).is_dir():
            adopted = self.store.reference(ref)
            self.record(adopted, None)
            return self.store.open(adopted.id)
        if ref in ("base", "current") and not (self.home / settings.CONFIG_NAME).exists():
            raise InputError(f"{self.home} is not set up: run `recover init` first, or give --home")
        return self.store.open(queries.resolve(self.tracker.db, ref))

    def clean(self) -> Checkpoint:
        """The frozen clean checkpoint: verified against the hash that was pinned when it was registered."""
        return self.checkpoint("base")

    def load(self, checkpoint: Checkpoint, **changes: Any) -> ChatModel:
        """A checkpoint as a model, with the clean model's template arguments and dtype."""
        from recovery.models import loading

        model = self.config.model
        spec = loading.ModelSpec(
            path=str(checkpoint.path),
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            template_args=model.template_args,
            attention=model.attention,
            **changes,
        )
        return loading.load(spec)

    def publish(
        self, chat_model: ChatModel, *, parent: Checkpoint, run_id: str, config: dict[str, Any]
    ) -> Checkpoint:
        """Saves a model as a checkpoint, whole or not at all, and records it."""
        from recovery.models import loading

        adapter = loading.is_adapter(chat_model.model)
        base = (parent.base or parent.id) if adapter else None
        checkpoint = self.store.publish(
            lambda directory: loading.save(chat_model, directory),
            kind="adapter" if adapter else "full",
            parent=parent.id,
            base=base,
            config=config,
        )
        self.record(checkpoint, run_id)
        return checkpoint

    def record(self, checkpoint: Checkpoint, run_id: str | None) -> None:
        self.tracker.record_checkpoint(
            checkpoint.id,
            path=checkpoint.path,
            kind=checkpoint.kind,
            sha256=checkpoint.sha256,
            parent=checkpoint.parent,
            base=checkpoint.base,
            config=checkpoint.config,
            run_id=run_id,
        )

    def lineage(self, checkpoint_id: str) -> list[dict[str, Any]]:
        """A checkpoint's rows from itself back to the clean model."""
        return queries.lineage(self.tracker.db, checkpoint_id)

    def midtraining_runs(self, checkpoint_id: str) -> list[dict[str, Any]]:
        """The midtraining runs that made a checkpoint what it is, oldest first."""
        made = [row["run_id"] for row in self.lineage(checkpoint_id) if row["run_id"]]
        runs = [queries.run(self.tracker.db, run_id) for run_id in made]
        return [run for run in runs if run["kind"] == "midtrain"][::-1]


def _make(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--home {home} cannot be made: {error.strerror}: choose a folder you may write to"
        ) from error


@overload
def placed(source: str) -> str: ...
@overload
def placed(source: None) -> None: ...
def placed(source: str | None) -> str | None:
    """A file by its full path, so that a run can be resumed from anywhere; any other source as it is."""
    return str(Path(source).absolute()) if source and is_file(source) else source


def is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # a text too long to be a name
        return False


def companions(docs: Path) -> dict[str, str]:
    """Files beside a folder of documents that say how to measure it: probes, prompts, ifeval."""
    names = ("probes", "prompts", "ifeval")
    found = {name: docs.resolve().parent / f"{name}.jsonl" for name in names}
    return {name: str(path) for name, path in found.items() if path.is_file()}
