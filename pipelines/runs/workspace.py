"""A home (`--home`): its database, checkpoints and settings. Every stage runs in one."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from db.errors import NotFound
from db.reads import queries
from db.writes.tracker import Tracker
from pipelines.config import settings
from pipelines.config.home_settings import of_home
from pipelines.runs import home_database, home_project
from pipelines.runs.home_database import uninitialised
from pipelines.runs.home_project import CHECKPOINTS, RUNS
from pipelines.runs.progress import Progress
from recovery.errors import InputError
from recovery.named_paths import expanded

if TYPE_CHECKING:
    from recovery.models.chat_encoding import ChatEncoder
    from recovery.models.chat_model import ChatModel
    from recovery.models.loading import ModelSpec
    from recovery.storage.checkpoints import Checkpoint, CheckpointStore


PRIVATE = (RUNS, CHECKPOINTS, "prompts", "probes")  # folders with texts and weights


@dataclass
class Workspace:
    home: Path
    tracker: Tracker
    progress: Progress
    implicit: bool = False  # the home was found in the current folder, not named
    named_db: str | None = None  # the database, where a command has to name it
    _tokenizer: tuple[ModelSpec, ChatEncoder] | None = field(default=None, init=False, repr=False)

    @classmethod
    def open(
        cls,
        home: Path,
        db_url: str | None = None,
        progress: Progress | None = None,
        *,
        create: bool = True,
        implicit: bool = False,
    ) -> Workspace:
        """Open a home; with create=False refuse one that is not there, and make nothing."""
        if create:
            _make(home)
        there = home_database.opened(home, db_url, create=create, implicit=implicit)
        shown = progress or Progress(quiet=True)
        ws = cls(home, Tracker(there, project=home_project.project_of(home, there)), shown, implicit)
        if create:
            home_database.remember(home, db_url)
        ws.named_db = home_database.to_name(home, db_url, implicit=implicit)
        if not create:
            ws._require_project()
        return ws

    def _require_project(self) -> None:
        """Refuse to work in the project of another home of the same database."""
        db = self.tracker.db
        if original := home_project.copied_from(self.home, db):
            db.close()
            raise InputError(
                f"{self.home} is a copy of {original}, which works in the same project of database "
                f"{db.where}: `{self.command('init')}` with this database gives it its own; "
                f"to go on here with what was begun, move {original} away first"
            )
        if not self._is_new and home_project.is_anothers(self.home, db):
            owner = queries.project_home(db, db.project) or "another home"
            db.close()
            look = (
                " (to look at it alone, give --home with a folder that is no home)" if self.implicit else ""
            )
            raise InputError(
                f"{self.home}: project {db.project!r} of database {db.where} is that of {owner}{look}: "
                f"`{self.command('init')}` with this database gives this home its own"
            )

    def note_database(self, db_url: str | None) -> None:
        """Note the database that this home was opened with as its own, where another one is noted."""
        if db_url and home_database.replace_note(self.home, db_url, self.tracker.db):
            self.progress.say(f"{self.home}: its database is {self.tracker.db.where} from now on")

    def settle_project(self) -> None:
        """Give this home a project of its own in a database that homes share, unless it has one."""
        home_database.require_its_runs(self.home, self.tracker.db)
        self.tracker = home_project.settle(self.home, self.tracker, new=self._is_new)

    @property
    def _is_new(self) -> bool:
        return not (self.home / settings.CONFIG_NAME).exists()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, below the progress that a terminal shows."""
        self.progress.end()
        self.tracker.close()

    @staticmethod
    def new_key() -> str:
        """Return a new name under which a run can be resumed."""
        return secrets.token_hex(8)

    def command(self, *words: str) -> str:
        """Return a command as it is typed in the current folder; home and database are named unless it finds
        them."""
        return home_database.typed(self.home, self.named_db, *words, implicit=self.implicit)

    @cached_property
    def config(self) -> settings.Config:
        """recover.yaml; its relative paths start from the folder that the home lies in."""
        return of_home(self.home, implicit=self.implicit)

    @cached_property
    def store(self) -> CheckpointStore:
        from recovery.storage.checkpoints import CheckpointStore

        return CheckpointStore(self.home / CHECKPOINTS)

    def run_directory(self, run_id: str) -> Path:
        return self.home / RUNS / run_id

    def checkpoint(self, ref: str) -> Checkpoint:
        """Return the checkpoint of an alias, an id or its prefix, or cycle:N, after verifying its bytes.

        The directory of a model (any path with a slash) serves as well: that of a checkpoint of this home is
        that checkpoint; another is registered where it lies, unless the same files are registered elsewhere.
        """
        ref = _from_home(ref)
        if "/" in ref and Path(ref).is_dir() and not self._is_own_folder(ref):
            adopted = self.store.reference(ref)
            self.record(adopted, None)
            return self.store.open(adopted.id)
        checkpoint_id = self._resolve_alias(ref) if ref in ("base", "current") else self.resolve(ref)
        if not (self.store.root / checkpoint_id).is_dir():
            self._refuse_absent(checkpoint_id)
        return self.store.open(checkpoint_id)

    def _resolve_alias(self, alias: str) -> str:
        """Refuse a home without settings, or with these alone, as a kill may have left it."""
        if self._is_new:
            raise uninitialised(self.home, implicit=self.implicit)
        try:
            return self.resolve(alias)
        except NotFound as error:
            raise uninitialised(self.home, implicit=self.implicit) from error

    def resolve(self, ref: str) -> str:
        """Return the id of a checkpoint: by an alias, an id or its prefix, cycle:N, or its folder here."""
        ref = _from_home(ref)
        named = Path(ref).resolve().name if self._is_own_folder(ref) else ref
        return queries.resolve(self.tracker.db, named)

    def _is_own_folder(self, ref: str) -> bool:
        return "/" in ref and Path(ref).resolve().parent == self.store.root.resolve()

    def _refuse_absent(self, checkpoint_id: str) -> NoReturn:
        """Name the home where a checkpoint lies that is not in this one, or say that its files are gone."""
        for place in queries.checkpoint_places(self.tracker.db, checkpoint_id):
            if place["project"] != self.tracker.db.project:
                home = place["home"] or "the first home of this database"
                raise InputError(
                    f"checkpoint {checkpoint_id} is not in {self.home}: it lies in {home} (project "
                    f"{place['project']!r}) as {place['path']}: work there, or give that folder"
                )
        listing = self.command("ls", "checkpoints")
        raise InputError(
            f"checkpoint {checkpoint_id} is recorded, but its files are not in {self.store.root}: "
            f"`recover prune` or somebody removed them; `{listing}` lists those that are there"
        )

    def clean(self) -> Checkpoint:
        """Return the clean checkpoint, verified against the hash pinned when it was registered."""
        return self.checkpoint("base")

    def load(self, checkpoint: Checkpoint, *, gradient_checkpointing: bool = False) -> ChatModel:
        """Load a checkpoint with the template arguments and dtype of recover.yaml."""
        from recovery.models import loading

        return loading.load(self.spec(checkpoint.path, gradient_checkpointing=gradient_checkpointing))

    def encoder(self, checkpoint: Checkpoint) -> ChatEncoder:
        """Load a checkpoint's tokenizer alone; the last one is kept, as a stage asks for it several times."""
        from recovery.models import loading

        whole = self.checkpoint(checkpoint.base) if checkpoint.base else checkpoint
        spec = self.spec(whole.path)
        if self._tokenizer is None or self._tokenizer[0] != spec:
            self._tokenizer = spec, loading.load_encoder(spec)
        return self._tokenizer[1]

    def spec(self, directory: Path, *, gradient_checkpointing: bool = False) -> ModelSpec:
        """Return how a model in a folder is loaded here: by the settings of recover.yaml."""
        from recovery.models import loading

        model = self.config.model
        return loading.ModelSpec(
            path=str(directory),
            dtype=model.dtype,
            trust_remote_code=model.trust_remote_code,
            template_args=model.template_args,
            attention=model.attention,
            quantize=model.quantize,
            gradient_checkpointing=gradient_checkpointing,
        )

    def publish(
        self, chat_model: ChatModel, *, parent: Checkpoint, run_id: str | None, config: dict[str, Any]
    ) -> Checkpoint:
        """Save a model as a checkpoint, whole or not at all, and record it."""
        from recovery.forward.hidden_states import is_adapter
        from recovery.models.saving import save

        base = (parent.base or parent.id) if is_adapter(chat_model.model) else None
        checkpoint = self.store.publish(
            lambda directory: save(chat_model, directory), parent=parent.id, base=base, config=config
        )
        self.record(checkpoint, run_id)
        return checkpoint

    def publish_files(
        self, write: Callable[[Path], None], *, parent: Checkpoint, run_id: str, config: dict[str, Any]
    ) -> Checkpoint:
        """Publish a whole checkpoint that `write` puts into a folder, and record it."""
        checkpoint = self.store.publish(write, parent=parent.id, config=config)
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

    def midtraining_runs(self, checkpoint_id: str) -> list[dict[str, Any]]:
        """Return the midtraining runs in a checkpoint's lineage, oldest first."""
        return queries.runs_behind(self.tracker.db, checkpoint_id, "midtrain")


def _make(home: Path) -> None:
    if home.is_file():
        raise uninitialised(home, implicit=False)
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make_folders_private(home)
    except OSError as error:
        raise InputError(
            f"--home {home} cannot be made: {error.strerror}: choose a folder you may write to"
        ) from error


def _make_folders_private(home: Path) -> None:
    """Make the folders of a home that others may enter for its owner alone; one that a group may write to is
    shared on purpose."""
    mode = home.stat().st_mode
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not mode & stat.S_IWGRP:
        for name in PRIVATE:
            (home / name).mkdir(mode=0o700, exist_ok=True)


def _from_home(ref: str) -> str:
    """Return a reference with the user's own folder for `~`, where it is a path."""
    return str(expanded(ref)) if ref.startswith("~/") else ref
