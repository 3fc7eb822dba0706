"""Publish and verify checkpoints: atomic, content-addressed directories.

`root/<id>/` holds a checkpoint's files and `manifest.json` with the size and sha256 of each; the id is the
hash of that table, so the same content always has the same id. Nothing is ever changed after the rename.
"""

from __future__ import annotations

import datetime
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.errors import DamagedCheckpoint, InputError, RecoverError
from recovery.storage import atomic_dirs, file_hashes
from recovery.storage.weights_hash import weight_files, weights_sha256

MANIFEST = "manifest.json"
FULL, ADAPTER, REFERENCE = "full", "adapter", "reference"  # kinds of checkpoints
MODEL_SUFFIXES = {".safetensors", ".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"}
FURTHER_TEMPLATES = "additional_chat_templates"  # a folder, where transformers keeps tool_use and rag
PROCESSOR_TEMPLATE = "chat_template.json"  # which transformers refuses beside that folder
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
        parent: str | None,
        base: str | None = None,
        config: dict[str, Any] | None = None,
    ) -> Checkpoint:
        """Let `write` fill a directory and publish it; with a base it is an adapter.

        The same content twice is one checkpoint.
        """
        kind = FULL if base is None else ADAPTER
        with atomic_dirs.new_directory(self.root) as scratch:
            write(scratch)
            weights = weights_sha256(scratch)
            facts = {"kind": kind, "parent": parent, "base": base, "config": config or {}, "sha256": weights}
            return self._finish(scratch, facts, file_hashes.file_table(scratch))

    def reference(
        self, path: Path | str, *, config: dict[str, Any] | None = None, anew: bool = False
    ) -> Checkpoint:
        """Register a directory that stays where it is (the clean model): only its hashes are kept here.

        Where the same files are registered, and whole, in another place, that one stays, unless `anew`.
        """
        location = Path(path).resolve()
        if not location.is_dir():
            raise InputError(f"{path}: no such directory: give the model's own directory")
        table = file_hashes.file_table(location, model_files(location))
        facts = {"kind": REFERENCE, "parent": None, "base": None, "config": config or {}}
        facts |= {"sha256": weights_sha256(location), "location": str(location)}
        with atomic_dirs.new_directory(self.root) as scratch:
            return self._finish(scratch, facts, table, anew)

    def open(self, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint after verifying every byte of it and its base (once, while no file changes)."""
        manifest = self._manifest(checkpoint_id)
        checkpoint = self._checkpoint(checkpoint_id, manifest)
        if checkpoint.kind == REFERENCE and not checkpoint.path.is_dir():
            raise DamagedCheckpoint(
                f"checkpoint {checkpoint_id}: the model is no longer at {checkpoint.path}: put it back, "
                "or run `recover init`; if recover.yaml names that place, set model.path to the new one first"
            )
        if checkpoint.base:
            self._refuse_adapter_as_base(checkpoint)
            self.open(checkpoint.base)
        _refuse_strangers(checkpoint, manifest["files"])
        stamps = _stamps(checkpoint.path, manifest["files"])
        if _VERIFIED.get(self.root / checkpoint_id) != stamps:
            file_hashes.check_files(f"checkpoint {checkpoint_id}", checkpoint.path, manifest["files"])
            _VERIFIED[self.root / checkpoint_id] = stamps
        return checkpoint

    def _refuse_adapter_as_base(self, checkpoint: Checkpoint) -> None:
        """Raise DamagedCheckpoint for an adapter on an adapter: such a chain may be a ring."""
        if self._manifest(str(checkpoint.base))["base"]:
            raise DamagedCheckpoint(
                f"checkpoint {checkpoint.id}: its base {checkpoint.base} is an adapter too: use another one"
            )

    def recorded(self, checkpoint_id: str) -> Checkpoint:
        """Return a checkpoint after verifying its manifest, but not its weights."""
        return self._checkpoint(checkpoint_id, self._manifest(checkpoint_id))

    def size(self, checkpoint_id: str) -> int:
        """Return the bytes of a checkpoint's files; 0 where it is not here."""
        return file_hashes.bytes_of(self.root / checkpoint_id)

    def remove(self, checkpoint_id: str) -> None:
        """Remove a checkpoint's files in one step; needs no space, so that a full disk can be freed."""
        with atomic_dirs.storage_errors(self.root):
            atomic_dirs.remove(self.root / checkpoint_id)

    def _finish(
        self, scratch: Path, facts: dict[str, Any], table: file_hashes.FileTable, anew: bool = False
    ) -> Checkpoint:
        """Write the manifest and rename; an equal whole checkpoint that is already there wins."""
        checkpoint_id = file_hashes.digest({"files": table, "base": facts["base"]})[:12]
        created = datetime.datetime.now(datetime.UTC).isoformat()
        manifest = {"format": 1, "id": checkpoint_id, "created": created, **facts, "files": table}
        atomic_dirs.write_sealed(scratch / MANIFEST, manifest)
        target = self.root / checkpoint_id
        if not atomic_dirs.publish(scratch, target) and not self._stays(checkpoint_id, anew):
            atomic_dirs.remove(target)
            atomic_dirs.publish(scratch, target)
        checkpoint = self.recorded(checkpoint_id)
        _VERIFIED[target] = _stamps(checkpoint.path, table)
        return checkpoint

    def _stays(self, checkpoint_id: str, anew: bool) -> bool:
        """Return whether an existing checkpoint is kept: a whole one, unless it is a reference made anew."""
        try:
            there = self.open(checkpoint_id)
        except RecoverError as error:
            log.warning("%s; written anew", error)
            return False
        return not (anew and there.kind == REFERENCE)

    def _manifest(self, checkpoint_id: str) -> dict[str, Any]:
        """Read the manifest and verify it against its own hash and the id."""
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
        values = {name: manifest[name] for name in ("kind", "parent", "base", "sha256", "config")}
        return Checkpoint(
            id=checkpoint_id, path=Path(manifest.get("location") or self.root / checkpoint_id), **values
        )


def base_directory(adapter: Path | str) -> Path | None:
    """Return the directory of a published adapter's base, from its manifest; None for other adapters."""
    directory = Path(adapter).absolute()
    if not (directory / MANIFEST).is_file():
        return None
    base = atomic_dirs.read_sealed(f"checkpoint {directory.name}", directory / MANIFEST).get("base")
    if not base or not (directory.parent / base).is_dir():
        return None
    return CheckpointStore(directory.parent).recorded(base).path


def _refuse_strangers(checkpoint: Checkpoint, table: file_hashes.FileTable) -> None:
    """Refuse files added later, which could change what is loaded (an index, an adapter config)."""
    if checkpoint.kind == REFERENCE:
        return
    for name in sorted(set(file_hashes.relative_files(checkpoint.path)) - {*table, MANIFEST}):
        if Path(name).suffix in MODEL_SUFFIXES:
            raise DamagedCheckpoint(f"checkpoint {checkpoint.id}: {name} was added later: remove that file")


def model_files(directory: Path) -> list[str]:
    """Return the files that a load reads, unlike a README or a second weight format: those at the top, and
    the chat templates beside the usual one."""
    weights = {path.name for path in weight_files(directory)}
    names = (path.name for path in directory.iterdir() if path.is_file() and path.suffix in MODEL_SUFFIXES)
    chosen = [n for n in names if n in weights or not n.endswith(".safetensors")]
    if not weights:
        raise InputError(f"{directory}: no safetensors weights there: give a model's own directory")
    templates = [path.name for path in (directory / FURTHER_TEMPLATES).glob("*.jinja") if path.is_file()]
    further = [f"{FURTHER_TEMPLATES}/{name}" for name in templates]
    return [name for name in chosen if not name.startswith(".")] + further


def _stamps(directory: Path, table: file_hashes.FileTable) -> Stamps:
    """Return size, time and inode of each file: equal stamps mean that no file changed."""
    found: Stamps = []
    for name in sorted(table):
        try:
            stat = (directory / name).stat()
            found.append((name, stat.st_size, stat.st_mtime_ns, stat.st_ino))
        except OSError:
            found.append((name, -1, -1, -1))
    return found
