"""Teach with frozen checkpoints: load each once, or not at all if it is the base of the student's adapter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipelines.runs.workspace import Workspace
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.teachers import CheckpointTeacher


@dataclass
class FrozenTeachers:
    """The frozen teachers of a student that was loaded from `parent`."""

    ws: Workspace
    student: ChatModel
    parent: Checkpoint
    microbatch_tokens: int
    offload: bool = False  # keep the layers in the host's memory
    models: dict[str, ChatModel] = field(default_factory=dict)  # loaded, by checkpoint id

    def teacher(self, checkpoint: Checkpoint, kind: str = "dense", k: int = 16) -> CheckpointTeacher:
        """Return a checkpoint as a teacher; an adapter's base is the student without its adapter."""
        from recovery.models.offload import rest_on_host
        from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher

        if checkpoint.id == self._below:
            return AdapterOffTeacher(self.student, kind, k, self.microbatch_tokens)
        if checkpoint.id not in self.models:
            self.models[checkpoint.id] = self.ws.load(checkpoint)
            if self.offload:
                rest_on_host(self.models[checkpoint.id])
        return CheckpointTeacher(self.models[checkpoint.id], kind, k, self.microbatch_tokens)

    @contextmanager
    def for_one_look(self, checkpoint: Checkpoint) -> Iterator[CheckpointTeacher]:
        """Lend a checkpoint as a teacher; then drop its model, unless it was loaded before."""
        before = set(self.models)
        try:
            yield self.teacher(checkpoint)
        finally:
            for name in self.models.keys() - before:
                del self.models[name]

    @cached_property
    def _below(self) -> str | None:
        """Return the base checkpoint of an adapter student."""
        from recovery.forward.hidden_states import is_adapter

        return (self.parent.base or self.parent.id) if is_adapter(self.student.model) else None
