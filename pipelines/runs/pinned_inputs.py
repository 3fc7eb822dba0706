"""The inputs of a run, hashed when it begins: a resumed run and all its stages read the same ones, or none.

A verdict compares answers to the same questions. So files and folders are named with their SHA-256 in the job
that is recorded, and so is the model section of recover.yaml.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.config.jobs import AUGMENTED, AUGMENTED_INPUT, DOCUMENTS_INPUT, SUPERSEDED_INPUT, Job
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.settings import Config
from pipelines.corpus.reading.formats import is_opened
from pipelines.corpus.reading.tree import Tree
from recovery.errors import InputError

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from pipelines.runs.workspace import Workspace

J = TypeVar("J", bound=Job)
MODEL = "model section of recover.yaml"
TAUGHT = (DOCUMENTS_INPUT, SUPERSEDED_INPUT)  # what a training reads once, and keeps
BLOCK = 2**20


def pinned(ws: Workspace, job: J, *, texts_kept: bool = False) -> J:
    """Return the job with its inputs hashed; refuse one that has changed since it was first hashed.

    Documents may change once their texts are kept: a resumed run reads those. One that is gone keeps its
    hash: it may come back as it was, and what still reads it refuses to go on without it."""
    job = _moved_along(ws, job, TAUGHT if texts_kept else ())
    sources = {n: place for n, place in job.sources().items() if not (texts_kept and n in TAUGHT)}
    current = hashes(sources, _left_out(ws, job))
    if texts_kept:
        current |= {name: job.inputs[name] for name in TAUGHT if name in job.inputs}
    current[MODEL] = _of_model(ws.config.model)
    _require_as_listed(job, current)
    for name, digest in current.items():
        before = job.inputs.get(name, digest)
        if before != digest:
            raise changed_since(name, _place(job, name), kept_questions(ws, before))
    return job.model_copy(update={"inputs": {**job.inputs, **current}})


def _moved_along(ws: Workspace, job: J, passed_over: Collection[str]) -> J:
    """Return the job with files and folders, but those that it reads no more, where they lie now: the home
    may have been moved, or the folder that it lies in."""
    places, left_out = dict[str, str](), _left_out(ws, job)
    for name, source in job.sources().items():
        digest = None if name in passed_over else job.inputs.get(name)
        if digest and (here := _moved_to(ws, source, digest, name, left_out)):
            places[source] = here
    return type(job)(**_renamed(job.model_dump(), places)) if places else job


def _moved_to(ws: Workspace, source: str, digest: str, name: str, leave_out: Collection[str]) -> str | None:
    """Return where a source lies now; retold documents may be named by the folder of their file."""
    here = held_here(ws, source, digest, name, leave_out)
    if here is None and name == AUGMENTED_INPUT:
        file = held_here(ws, f"{source}/{AUGMENTED}", digest)
        return str(Path(file).parent) if file else None
    return here


def held_here(
    ws: Workspace, source: str, digest: str, name: str = "", leave_out: Collection[str] = ()
) -> str | None:
    """Return where the home, or the folder that it lies in, holds what is gone from where a run has read it.

    That is what has the same SHA-256 at the end of the path that it had; None where there is none."""
    old = Path(source)
    if not old.is_absolute() or old.exists():
        return None
    for here in _may_lie_at(ws, old):
        if hashes({name: str(here)}, leave_out) == {name: digest}:
            return str(here)
    return None


def folder_here(ws: Workspace, folder: Path) -> Path:
    """Return where the home, or the folder that it lies in, holds a folder that was moved with it: at the
    end of the path that it had. What lies beside one that is gone is read where it was, as long as it can be.
    """
    if not folder.is_absolute() or folder.parent.exists():
        return folder
    return next((here for here in _may_lie_at(ws, folder) if here.is_dir()), folder)


def _may_lie_at(ws: Workspace, old: Path) -> Iterator[Path]:
    """Yield the places where what was moved with the home may lie, by ever shorter ends of its path."""
    home, names = ws.home.absolute(), old.parts[1:]
    for root in (home, home.parent):
        for first in range(len(names)):
            yield root.joinpath(*names[first:])


def _renamed(value: Any, places: Mapping[str, str]) -> Any:
    """Return a job's values with other places for some files, wherever they are named."""
    if isinstance(value, dict):
        return {key: _renamed(inner, places) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_renamed(inner, places) for inner in value]
    return _renamed_text(value, places) if isinstance(value, str) else value


def _renamed_text(text: str, places: Mapping[str, str]) -> str:
    """Return the new place of a file, or of a function that is named as FILE.py:function."""
    file, _, function = text.rpartition(":")
    if file.endswith(".py") and file in places:
        return f"{places[file]}:{function}"
    return places.get(text, text)


def _of_model(model: ModelConfig) -> str:
    """Hash the settings that differ from their defaults: those that a later version adds change no run.

    The folder of a model is left out: it may be moved, and is registered by its weights."""
    moves = {"path"} if Path(model.path).is_absolute() else None
    named = model.model_dump_json(exclude_defaults=True, exclude=moves)
    return hashlib.sha256(named.encode()).hexdigest()


def changed_since(name: str, source: str | None, kept: Path | None = None) -> InputError:
    """Return the refusal of an input that is not as it was when the run began; `kept` is a copy of that."""
    place = f" ({source})" if source is not None else ""
    copy = f" from {kept}" if kept and kept.is_file() else ""
    return InputError(f"{name}{place}: changed since the run began: restore it{copy}, or begin a new run")


def require_there(job: Job, names: Iterable[str]) -> None:
    """Refuse inputs that were there when the run began and are gone, where it would go on with less."""
    sources = job.sources()
    for name in names:
        source = sources.get(name)
        if source and name in job.inputs and not Path(source).exists():
            raise InputError(f"{name} ({source}): gone since the run began: restore it, or begin a new run")


def kept_questions(ws: Workspace, digest: str) -> Path:
    """Return where a home keeps the questions that a cycle asks, by the SHA-256 of their file."""
    return ws.home.absolute() / "probes" / f"{digest}.jsonl"


def _require_as_listed(job: Job, current: Mapping[str, str]) -> None:
    """Refuse a list of superseded documents that appeared or vanished: without one, nothing is left out."""
    before, now = SUPERSEDED_INPUT in job.inputs, SUPERSEDED_INPUT in current
    if job.inputs and before != now:
        said = "was not there when the run began: remove" if now else "was there when the run began: restore"
        raise InputError(f"{job.sources()[SUPERSEDED_INPUT]} {said} it, or begin a new run")


def inherited(job: J, parent: Job) -> J:
    """Return a stage's job with the hashes of the inputs that it shares with its run."""
    names = {*job.sources(), MODEL}
    return job.model_copy(update={"inputs": {n: d for n, d in parent.inputs.items() if n in names}})


def _left_out(ws: Workspace, job: Job) -> list[str]:
    """Return what a job does not read of its documents: by its own settings, else by recover.yaml."""
    return (_own_midtrain(job) or ws.config.midtrain).reading.leave_out


def _own_midtrain(job: Job) -> MidtrainConfig | None:
    settings = getattr(job, "settings", None)
    if isinstance(settings, Config):
        settings = settings.midtrain
    return settings if isinstance(settings, MidtrainConfig) else None


def _place(job: Job, name: str) -> str | None:
    """Return where an input lies; of documents also the setting of recover.yaml that chooses among them."""
    place = job.sources().get(name)
    if name == DOCUMENTS_INPUT and _own_midtrain(job) is None:
        return f"{place}, or midtrain.reading.leave_out in recover.yaml"
    return place


def hashes(sources: Mapping[str, str], leave_out: Collection[str] = ()) -> dict[str, str]:
    """Hash each source that is a file or a folder; a name on the hub or a text is in the job itself.

    A relative path is such a name: those of files are made absolute when a job is built. `leave_out` is
    what is not read of a folder of documents.
    """
    found = {}
    for name, source in sources.items():
        path = Path(source)
        if not path.is_absolute():
            continue
        try:
            if path.is_dir() and name == DOCUMENTS_INPUT:
                found[name] = _folder(path, is_opened, leave_out)
            elif path.is_dir():
                found[name] = _folder(path, lambda name: True)
            elif path.is_file():
                with path.open("rb") as file:
                    found[name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError:  # a text too long to be a name, or a file that its reader will refuse
            continue
    return found


def _folder(folder: Path, read: Callable[[str], bool], leave_out: Collection[str] = ()) -> str:
    """Hash the paths and contents of the files that are read, by their names."""
    digest = hashlib.sha256()
    with Tree(folder, leave_out) as tree:
        for entry in tree.entries():
            try:
                if entry.reason is None and read(entry.name):
                    digest.update(f"{entry.path}\0{entry.size}\0".encode())
                    while block := os.read(entry.handle, BLOCK):
                        digest.update(block)
            finally:
                entry.close()
    return digest.hexdigest()
