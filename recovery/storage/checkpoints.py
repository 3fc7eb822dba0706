"""Checkpoints: atomic, verified, content-addressed directories; and the state that a training resumes from.

`root/<id>/` holds a checkpoint's files and `manifest.json` with the size and sha256 of each; the id is the
hash of that table, so the same content always has the same id. Nothing is ever changed after the rename.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.errors import DamagedCheckpoint, InputError, RecoverError
from recovery.storage import atomic_dirs
from recovery.storage.weights_hash import weight_files, weights_sha256

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
KINDS = ("full", "adapter", "reference")
MODEL_SUFFIXES = {".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A published model. `path` is what to load: the directory itself, or what a reference points at."""

    id: str
    path: Path
    kind: str
    parent: str | None
    sha256: str
    base: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    created: str = ""


Checkpoints = list[Checkpoint]
Stamps = list[tuple[str, int, int, int]]
_VERIFIED: dict[Path, Stamps] = {}


class CheckpointStore:
    """All checkpoints under one root."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()

    def publish(
        self,
        write: Callable[[Path], None],
        *,
        kind: str,
        parent: str | None,
        base: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> Checkpoint:
        """Let `write` fill a directory and make it a checkpoint; the same content twice is one checkpoint."""
        if kind not in KINDS[:2] or (kind == "adapter") != (base is not None):
            raise ValueError(f"kind {kind!r} with base {base!r}: full has none, adapter needs one")
        with atomic_dirs.new_directory(self.root) as scratch:
            write(scratch)
            weights = weights_sha256(scratch)
            facts = {"kind": kind, "parent": parent, "base": base, "config": config or {}, "sha256": weights}
            return self._finish(scratch, facts, atomic_dirs.file_table(scratch))

    def reference(self, path: Path | str, *, config: dict[str, Any] | None = None) -> Checkpoint:
        """Register a directory that stays where it is (the clean model): only its hashes are kept here."""
        location = Path(path).resolve()
        if not location.is_dir():
            raise InputError(f"{path}: no such directory: give the model's own directory")
        table = atomic_dirs.file_table(location, model_files(location))
        facts = {"kind": "reference", "parent": None, "base": None, "config": config or {}}
        facts |= {"sha256": weights_sha256(location), "location": str(location)}
        with atomic_dirs.new_directory(self.root) as scratch:
            return self._finish(scratch, facts, table)

    def open(self, checkpoint_id: str) -> Checkpoint:
        """The checkpoint, every byte of it and its base checked (once, while no file changes)."""
        manifest = self._manifest(checkpoint_id)
        checkpoint = self._checkpoint(checkpoint_id, manifest)
        if checkpoint.kind == "reference" and not checkpoint.path.is_dir():
            raise DamagedCheckpoint(
                f"checkpoint {checkpoint_id}: {checkpoint.path} is gone: put the model back there"
            )
        if checkpoint.base:
            self.open(checkpoint.base)
        stamps = _stamps(checkpoint.path, manifest["files"])
        if _VERIFIED.get(self.root / checkpoint_id) != stamps:
            _refuse_strangers(checkpoint, manifest["files"])
            atomic_dirs.check_files(f"checkpoint {checkpoint_id}", checkpoint.path, manifest["files"])
            _VERIFIED[self.root / checkpoint_id] = stamps
        return checkpoint

    def locate(self, checkpoint_id: str) -> Path:
        """Where the model of `id` lies, its manifest checked but not its weights."""
        return self._checkpoint(checkpoint_id, self._manifest(checkpoint_id)).path

    def list(self) -> Checkpoints:
        """All checkpoints, oldest first, unverified; an unreadable manifest is named and left out."""
        found = []
        for path in self.root.glob(f"*/{MANIFEST}"):
            if not path.parent.name.startswith(atomic_dirs.TEMPORARY):
                try:
                    found.append(self._checkpoint(path.parent.name, self._manifest(path.parent.name)))
                except RecoverError as error:
                    log.warning("%s", error)
        return sorted(found, key=lambda checkpoint: (checkpoint.created, checkpoint.id))

    def newest_whole(self, ids: Iterable[str]) -> Checkpoint:
        """The newest of `ids` whose bytes are right; damaged ones are named in a warning and passed over."""
        wanted = set(ids)
        newest_first = [checkpoint.id for checkpoint in reversed(self.list()) if checkpoint.id in wanted]
        for checkpoint_id in newest_first:
            try:
                return self.open(checkpoint_id)
            except DamagedCheckpoint as error:
                log.warning("%s", error)
        names = ", ".join(sorted(wanted)) or "no checkpoints"
        raise DamagedCheckpoint(f"{self.root}: none of {names} is whole: restore one or start a new run")

    def _finish(self, scratch: Path, facts: dict[str, Any], table: atomic_dirs.FileTable) -> Checkpoint:
        """Write the manifest and rename; an equal whole checkpoint that is already there wins."""
        checkpoint_id = atomic_dirs.digest({"files": table, "base": facts["base"]})[:12]
        created = datetime.datetime.now(datetime.UTC).isoformat()
        manifest = {"format": 1, "id": checkpoint_id, "created": created, **facts, "files": table}
        atomic_dirs.write_sealed(scratch / MANIFEST, manifest)
        target = self.root / checkpoint_id
        if not atomic_dirs.publish(scratch, target) and not self._is_good(checkpoint_id, facts):
            atomic_dirs.remove(target)
            atomic_dirs.publish(scratch, target)
        checkpoint = self._checkpoint(checkpoint_id, self._manifest(checkpoint_id))
        _VERIFIED[target] = _stamps(checkpoint.path, table)
        return checkpoint

    def _is_good(self, checkpoint_id: str, facts: dict[str, Any]) -> bool:
        """Whether what is there already may stay: whole, and a reference still points at the same place."""
        try:
            there = self.open(checkpoint_id)
        except RecoverError as error:
            log.warning("%s; written anew", error)
            return False
        moved = there.kind == "reference" == facts["kind"] and str(there.path) != facts["location"]
        return not moved

    def _manifest(self, checkpoint_id: str) -> dict[str, Any]:
        """The manifest, checked against its own hash and the id."""
        if not re.fullmatch(r"[0-9a-f]{12}", checkpoint_id) or not (self.root / checkpoint_id).is_dir():
            raise InputError(
                f"no checkpoint {checkpoint_id!r} in {self.root}: `recover ls checkpoints` lists them"
            )
        manifest = atomic_dirs.read_sealed(
            f"checkpoint {checkpoint_id}", self.root / checkpoint_id / MANIFEST
        )
        if manifest["id"] != checkpoint_id:
            raise DamagedCheckpoint(
                f"checkpoint {checkpoint_id}: its manifest is that of {manifest['id']}: rename it back"
            )
        return manifest

    def _checkpoint(self, checkpoint_id: str, manifest: dict[str, Any]) -> Checkpoint:
        values = {name: manifest[name] for name in ("kind", "parent", "base", "sha256", "config", "created")}
        return Checkpoint(
            id=checkpoint_id, path=Path(manifest.get("location") or self.root / checkpoint_id), **values
        )


def base_directory(adapter: Path | str) -> Path | None:
    """Where the base of a published adapter lies, by its manifest; None for an adapter from elsewhere."""
    directory = Path(adapter).absolute()
    if not (directory / MANIFEST).is_file():
        return None
    base = atomic_dirs.read_sealed(f"checkpoint {directory.name}", directory / MANIFEST).get("base")
    if not base or not (directory.parent / base).is_dir():
        return None
    return CheckpointStore(directory.parent).locate(base)


def _refuse_strangers(checkpoint: Checkpoint, table: atomic_dirs.FileTable) -> None:
    """A file added later could change what is loaded (an index, an adapter config)."""
    if checkpoint.kind == "reference":
        return
    for name in sorted(set(atomic_dirs.relative_files(checkpoint.path)) - {*table, MANIFEST}):
        if Path(name).suffix in MODEL_SUFFIXES:
            raise DamagedCheckpoint(f"checkpoint {checkpoint.id}: {name} was added later: remove that file")


def model_files(directory: Path) -> list[str]:
    """The top-level files that decide what a load gives; a README or a second weight format does not."""
    weights = {path.name for path in weight_files(directory)}
    names = (path.name for path in directory.iterdir() if path.is_file() and path.suffix in MODEL_SUFFIXES)
    chosen = [n for n in names if n in weights or not n.endswith(".safetensors")]
    if not weights:
        raise InputError(f"{directory}: no safetensors weights there: give a model's own directory")
    return [name for name in chosen if not name.startswith(".")]


def _stamps(directory: Path, table: atomic_dirs.FileTable) -> Stamps:
    """What `stat` says of each file: equal stamps mean that nobody wrote in between."""
    found: Stamps = []
    for name in sorted(table):
        try:
            stat = (directory / name).stat()
            found.append((name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
        except OSError:
            found.append((name, -1, -1, -1))
    return found


class TrainState:
    """What a training needs to go on after a kill: the last two states, each whole or absent."""

    def __init__(self, root: Path | str, keep: int = 2) -> None:
        self.root = Path(root)
        self.keep = keep

    def save(self, step: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        """Write the state of `step` atomically; older ones beyond the last `keep` are removed after it.
        Where tensors are in shards, every process calls this and writes its own."""
        from recovery import distributed
        from recovery.training import sharded_state

        if sharded_state.spread(tensors) and distributed.rank():
            sharded_state.write_along(tensors)
            return
        with atomic_dirs.new_directory(self.root) as scratch:
            sharded_state.write(scratch, tensors)
            atomic_dirs.write_json(scratch / "meta.json", meta)
            atomic_dirs.write_sealed(
                scratch / MANIFEST, {"step": step, "files": atomic_dirs.file_table(scratch)}
            )
            target = self.root / f"step-{step:09d}"
            atomic_dirs.remove(target)
            atomic_dirs.publish(scratch, target)
            self._forget(target)

    def load(self) -> tuple[int, Mapping[str, torch.Tensor], dict[str, Any]] | None:
        """The newest whole state as (step, tensors, meta), or None; damaged ones are named in a warning."""
        from recovery.training import sharded_state

        for directory in self._steps():
            try:
                step = self._verified_step(directory)
            except DamagedCheckpoint as error:
                log.warning("%s; going back to the state before it", error)
                continue
            meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
            return step, sharded_state.read(directory), meta
        return None

    def clear(self) -> None:
        """Remove all states: the training is finished."""
        for directory in self._steps():
            atomic_dirs.remove(directory)

    def _forget(self, newest: Path) -> None:
        """Keep the last few; one beyond `newest` is of a course that was given up (damaged, or restarted)."""
        steps = self._steps()
        for directory in {*steps[: steps.index(newest)], *steps[steps.index(newest) + self.keep :]}:
            atomic_dirs.remove(directory)

    def _steps(self) -> list[Path]:
        return sorted(self.root.glob("step-*"), reverse=True)

    def _verified_step(self, directory: Path) -> int:
        label = f"training state {directory.name}"
        manifest = atomic_dirs.read_sealed(label, directory / MANIFEST)
        atomic_dirs.check_files(label, directory, manifest["files"])
        return int(manifest["step"])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """An optimizer's state as named tensors: `state.<parameter>.<key>` and `group.<group>.<setting>`."""
    whole = optimizer.state_dict()
    tensors = {
        f"state.{index}.{key}": _as_tensor(value)
        for index, entries in whole["state"].items()
        for key, value in entries.items()
        if value is not None
    }
    for index, group in enumerate(whole["param_groups"]):
        settings = {key: value for key, value in group.items() if key != "params" and _is_number(value)}
        tensors |= {f"group.{index}.{key}": _as_tensor(value) for key, value in settings.items()}
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what `optimizer_tensors` took, exactly; the optimizer must have the same parameters."""
    whole = optimizer.state_dict()
    groups = [dict(group) for group in whole["param_groups"]]
    known = {index for group in groups for index in group["params"]}
    state: dict[int, dict[str, Any]] = {}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, tensor in tensors.items():
        part, number, key = name.split(".", 2)
        index = int(number)
        if part == "state" and index in known:
            state.setdefault(index, {})[key] = _cut(tensor, parameters[index]).clone()
        elif part == "group" and index < len(groups):
            groups[index][key] = _like(groups[index].get(key), tensor)
        else:
            raise RecoverError(f"optimizer state {name} fits no parameter: resume with the same settings")
    _check_shapes(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _cut(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """What belongs to a parameter, in shards where that is."""
    from recovery import distributed

    return distributed.like(tensor, parameter) if tensor.ndim else tensor


def _check_shapes(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, Any]]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, entries in state.items():
        for key, value in entries.items():
            if value.ndim and value.shape != parameters[index].shape:
                found, wanted = tuple(value.shape), tuple(parameters[index].shape)
                message = f"optimizer state {index}.{key} is {found}, its parameter {wanted}"
                raise RecoverError(f"{message}: resume with the same model")


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_number(item) for item in value)
    return isinstance(value, bool | int | float) or hasattr(value, "untyped_storage")


def _as_tensor(value: Any) -> torch.Tensor:
    """Python floats keep all their bits as float64."""
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    whole = isinstance(value, int)
    return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)


def _like(current: Any, tensor: torch.Tensor) -> Any:
    """A tensor back as the kind of value that the setting holds."""
    if hasattr(current, "untyped_storage"):
        return tensor.clone()
    value = tensor.tolist()
    return tuple(value) if isinstance(current, tuple) else value
