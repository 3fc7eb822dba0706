"""Who teaches a student: itself, frozen checkpoints in this process or on an engine, one for each route."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from pipelines.engines.engine_checks import INPROCESS
from pipelines.engines.engine_places import require_whole_teacher
from pipelines.prompts.lengths import checkpoint_limit, smallest
from pipelines.prompts.prompt_sources import Prompt
from recovery.errors import InputError
from recovery.methods.choices import FROZEN, ITSELF

if TYPE_CHECKING:
    from pipelines.config.jobs import DistillJob
    from pipelines.engines.engine_places import Engines
    from pipelines.runs.workspace import Workspace
    from recovery.engines.engine_teacher import EngineTeacher
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel
    from recovery.storage.checkpoints import Checkpoint
    from recovery.teachers.teachers import CheckpointTeacher, Teacher, Teaching

DEFAULT_ROUTE = "base"  # default route of a prompt: the checkpoint of --teacher


class Teachers:
    """The teachers of a distillation."""

    def __init__(
        self,
        ws: Workspace,
        job: DistillJob,
        method: Method,
        parent: Checkpoint,
        student: ChatModel,
        engines: Engines,
    ) -> None:
        self.ws = ws
        self.job = job
        self.method = method
        self.student = student
        self.engines = engines
        settings = job.settings
        self.in_process = FrozenTeachers(
            ws, student, parent, settings.microbatch_tokens, settings.offload_teacher
        )
        self._on_engines: dict[str, EngineTeacher] = {}  # by checkpoint id

    @property
    def models(self) -> dict[str, ChatModel]:
        """The models that were loaded to teach, by checkpoint id."""
        return self.in_process.models

    def start(self, items: list[Prompt]) -> None:
        """Start the engines that teach these rows: what they read decides which rows are kept.

        Of several processes all call together, as they share the servers.
        """
        if self.job.settings.teacher_engine != INPROCESS:
            for ref in scoring(self.ws, self.job, self.method, items):
                self._on_engine(ref)

    def teacher(self, items: list[Prompt]) -> Teaching | None:
        """Return the teacher that scores the student's tokens; `items` are the rows in step order."""
        from recovery.teachers.teachers import RoutedTeacher, SelfTeacher

        kind, limit = self._kind, self.job.settings.microbatch_tokens
        if self.method.teacher in ITSELF:
            decay = self.method.ema if self.method.teacher == "self-ema" else None
            return SelfTeacher(self.student, kind, self.method.k, limit, decay)
        if self.method.teacher == "routed":
            teachers = {name: self.named(place, kind) for name, place in used_routes(self.job, items).items()}
            return RoutedTeacher(teachers, list(map(_route, items)))
        return self.named(self.place, kind) if self.method.teacher in FROZEN else None

    def limit(self, items: list[Prompt]) -> float:
        """Return the fewest tokens that a frozen teacher, or the anchor, of these rows reads."""
        refs = scoring(self.ws, self.job, self.method, items)
        engines = map(self._on_engine, refs if self.job.settings.teacher_engine != INPROCESS else [])
        stated = [length for teacher in engines for length in teacher.engine.lengths]
        return read_by(self.ws, self.job, refs, stated)

    @cached_property
    def place(self) -> str:
        """Return the checkpoint that teaches: the job's, or the one that the last midtraining began with."""
        if self.method.teacher != "previous":
            return self.job.teacher
        return before_midtraining(self.ws, self.job.student)

    def named(self, ref: str, kind: str) -> Teacher:
        """Return a checkpoint as a teacher in this process, or on the configured engine."""
        if self.job.settings.teacher_engine == INPROCESS:
            return self.frozen(ref, kind)
        return self._on_engine(ref)

    def _on_engine(self, ref: str) -> EngineTeacher:
        """Return a checkpoint as a teacher on its engine, started once."""
        checkpoint = self.ws.checkpoint(ref)
        if checkpoint.id not in self._on_engines:
            where, sent = self.job.settings.teacher_engine, "topk" if self._kind == "topk" else "sampled"
            one = self.engines.teacher(where, self.student, checkpoint, sent, self.method.k)
            self._on_engines[checkpoint.id] = one
        return self._on_engines[checkpoint.id]

    def anchor(self) -> Teacher | None:
        """Return the reference model of the KL penalty: the teacher checkpoint without context."""
        return self.frozen(self.job.teacher, "dense") if self.method.anchor_beta else None

    def frozen(self, ref: str, kind: str) -> CheckpointTeacher:
        """Return a frozen teacher in this process."""
        return self.in_process.teacher(self.ws.checkpoint(ref), kind, self.method.k)

    @property
    def _kind(self) -> str:
        return "dense" if self.method.scores == "none" else self.method.scores


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
        """Return a checkpoint as a teacher: the student without its adapter, if that is the same."""
        from recovery.teachers.teachers import AdapterOffTeacher, CheckpointTeacher

        if checkpoint.id == self._below:
            return AdapterOffTeacher(self.student, kind, k, self.microbatch_tokens)
        return CheckpointTeacher(self.model(checkpoint), kind, k, self.microbatch_tokens)

    def model(self, checkpoint: Checkpoint) -> ChatModel:
        """Return a checkpoint's own model, loaded once."""
        from recovery.models.offload import rest_on_host

        if checkpoint.id not in self.models:
            self.models[checkpoint.id] = self.ws.load(checkpoint)
            if self.offload:
                rest_on_host(self.models[checkpoint.id])
        return self.models[checkpoint.id]

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
        """Return the base checkpoint of an adapter student; None if the adapter also changes the head.

        The loss applies a teacher's head where the adapter is on again.
        """
        from recovery.forward.hidden_states import is_adapter
        from recovery.models.adapters import changes_head

        model = self.student.model
        if not is_adapter(model) or changes_head(model):
            return None
        return self.parent.base or self.parent.id


@contextmanager
def lent_clean(frozen: FrozenTeachers) -> Iterator[ChatModel]:
    """Lend the clean model: the untrained student as it is or without its adapter, if that is the one.

    Two copies may not fit into the memory. In one process alone, as long as the student is not sharded."""
    from recovery.forward.hidden_states import is_adapter
    from recovery.models.adapters import adapter_off

    clean, student, origin = frozen.ws.clean(), frozen.student, frozen.parent
    if origin.id == clean.id:
        yield student  # a fresh adapter changes nothing yet
    elif origin.base == clean.id and is_adapter(student.model):
        with adapter_off(student):
            yield student
    else:
        yield frozen.model(clean)


def lies_on(student: Checkpoint, teacher: Checkpoint) -> bool:
    """Return whether an adapter that is trained from a student lies on the teacher itself: no second model is
    loaded then.
    """
    from recovery.models.adapters import is_within_layers

    return (student.base or student.id) == teacher.id and is_within_layers(student.path)


def trains_on_teacher(ws: Workspace, job: DistillJob) -> bool:
    """Return whether a distillation's adapter lies on the teacher itself.

    Under a fresh adapter lies the mixture, if the teacher's share is merged in first.
    """
    student = ws.checkpoint(job.student)
    return lies_on(student, ws.checkpoint(job.teacher)) and (
        student.base is not None or not job.settings.merge
    )


def scoring(
    ws: Workspace, job: DistillJob, method: Method, rows: Iterable[Prompt], *, midtrains: bool = False
) -> list[str]:
    """Return the checkpoints that score or write for these rows, but for the student itself.

    With `midtrains`, the job's student is still to be midtrained: it is itself the one before that."""
    if method.teacher == "routed":
        return list(used_routes(job, rows).values())
    if method.teacher == "previous":
        return [job.student if midtrains else before_midtraining(ws, job.student)]
    return [job.teacher] if method.teacher in FROZEN else []


def read_by(ws: Workspace, job: DistillJob, refs: Sequence[str], stated: Iterable[int | None]) -> float:
    """Return the fewest tokens that these teachers, or the anchor, read.

    An engine reads one token fewer than the length that it has `stated`, or that is configured: it is asked
    to write one behind what it scores.
    """
    limit = _made_for(ws, refs)
    if job.settings.teacher_engine != INPROCESS:
        limit = smallest(limit, ws.config.engine.max_length, *stated) - 1
    anchored = job.settings.resolved_method().anchor_beta > 0
    return smallest(limit, _made_for(ws, [job.teacher])) if anchored else limit


def _made_for(ws: Workspace, refs: Iterable[str]) -> float:
    return smallest(*(checkpoint_limit(ws, ws.checkpoint(ref)) for ref in refs))


def require_routes(job: DistillJob, method: Method, rows: list[Prompt]) -> None:
    """Refuse rows whose route names no teacher."""
    known = {DEFAULT_ROUTE, *job.settings.routes}
    unknown = sorted(set(map(_route, rows)) - known) if method.teacher == "routed" else []
    if unknown:
        raise InputError(
            f"no teacher for the route {unknown[0]!r} of a row: there are {', '.join(sorted(known))} "
            "(distill.routes)"
        )


def used_routes(job: DistillJob, rows: Iterable[Prompt]) -> dict[str, str]:
    """Return the checkpoint of each route that a row takes."""
    names = set(map(_route, rows))
    places = {DEFAULT_ROUTE: job.teacher, **job.settings.routes}
    return {name: place for name, place in places.items() if name in names}


def before_midtraining(ws: Workspace, student: str) -> str:
    """Return the checkpoint that a student's last midtraining began with."""
    runs = ws.midtraining_runs(student)
    if not runs:
        raise InputError(
            f"teacher=previous: {student} was never midtrained, so there is none before: set teacher=base"
        )
    return str(runs[-1]["config"]["student"])


def _route(item: Prompt) -> str:
    return str(item.fields.get("route", DEFAULT_ROUTE))


def require_teachers(
    ws: Workspace, job: DistillJob, method: Method, rows: Sequence[Prompt], *, midtrains: bool
) -> None:
    """Refuse a frozen teacher of these rows, or an anchor, that is not there, that its engine cannot hold, or
    whose token ids are not the student's.
    """
    refs = scoring(ws, job, method, rows, midtrains=midtrains)
    teachers = [ws.checkpoint(ref) for ref in dict.fromkeys(refs)]
    if job.settings.teacher_engine != INPROCESS:
        for teacher in teachers:
            require_whole_teacher(teacher)
    if method.anchor_beta:
        teachers.append(ws.checkpoint(job.teacher))
    if job.settings.preflight:
        student = ws.checkpoint(job.student)
        for teacher in teachers:
            _require_vocabulary(ws, student, teacher)


def _require_vocabulary(ws: Workspace, student: Checkpoint, teacher: Checkpoint) -> None:
    """Refuse a teacher of another vocabulary, which the preflight would only find beside loaded models."""
    if (teacher.base or teacher.id) == (student.base or student.id):
        return
    from recovery.training import preflight

    found = preflight.vocabulary(ws.encoder(student), ws.encoder(teacher))
    if not found.ok:
        raise InputError(f"the teacher {teacher.id}: {found.detail}: {found.remedy}")
