"""Compare the memory with what trainings hold: refuse what cannot run, say what may run out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.config.fitted import Machine, ModelSize, is_offloaded, kept_bytes
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.training_weights import (
    ADAPTER_BYTES,
    averaged_bytes,
    copied_bytes,
    has_other_teachers,
    second_model,
    surely_trained,
)
from pipelines.engines.engine_checks import may_offload
from pipelines.machine import fitting
from recovery.errors import InputError
from recovery.launch_env import launched
from recovery.memory import gib
from recovery.storage.weights_hash import ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from pipelines.config.settings import Config, TrainingSettings
    from pipelines.runs.workspace import Workspace
    from recovery.storage.checkpoints import Checkpoint

RANKS = 128, 64, 32, 16, 8  # that are advised, the highest that fits


@dataclass(frozen=True)
class Student:
    """What a stage trains."""

    size: ModelSize
    adapter: int  # weights of its own adapter; 0 for a whole model
    below: str | None  # the whole model, or that its adapter lies on; None where midtraining makes it


@dataclass(frozen=True)
class Held:
    """The bytes that a training takes in one process, at least."""

    stage: str
    models: float  # whole weights, and those of a teacher beside them
    lasting: float  # this process's part of the weights and of the optimizer, and a teacher
    shortest_pass: float
    lora: LoraConfig | None
    fresh: bool = True  # the adapter is not the one that the first student has
    taught: bool = False  # by a second model, or a copy of the student
    may_offload: bool = False  # the second model's layers
    beside_clean: bool = False  # while that one answers or is compared with, before there is an optimizer
    undivided: bool = False  # the student alone, before it is sharded
    rank_bytes: float = 0.0  # of an adapter and its optimizer, for each rank
    four_bits: float = 0.0  # share of the weights' bytes that 4 bits would leave

    @property
    def least(self) -> float:
        return self.lasting + self.shortest_pass

    @property
    def named(self) -> str:
        if self.beside_clean:
            return "the weights of the student and of the clean model"
        if self.undivided:
            return "the student's weights before they are sharded"
        return "weights, optimizer and teacher" if self.taught else "weights and optimizer"


def require_memory(
    ws: Workspace, student: Checkpoint, settings: Config, stages: Sequence[str], teacher: Checkpoint
) -> None:
    """Refuse trainings whose weights, optimizer and teacher alone are more than the memory.

    Say where they and the shortest pass are more than its usable part.
    """
    import torch

    size = fitting.checkpoint_size(ws, student)
    if not size.embeddings:  # of an unknown architecture: its numbers are guesses
        return
    model, machine = ws.config.model, fitting.this_machine(ws.config.model)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    begins = Student(size, _stored(student.path), student.base or student.id)
    for one in held(settings, begins, machine, stages, teacher.id):
        if one.lasting > machine.whole_bytes:
            raise InputError(
                f"{one.stage}: {one.named} take {gib(one.lasting)} in each process, and its memory is "
                f"{gib(machine.whole_bytes)}: take {_in_words(ways_out(one, model, machine, gpus))}"
            )
        if one.least > machine.usable_bytes:
            shorter = ["shorter answers (distill.max_new_tokens)"] if one.stage == "distill" else []
            ways = _in_words([*shorter, *ways_out(one, model, machine, gpus)])
            ws.progress.say(
                f"  memory       {one.stage} may run out of it: {one.named} and the shortest pass take "
                f"{gib(one.least)}, and {gib(machine.usable_bytes)} are usable: take {ways}"
            )


def _stored(directory: Path) -> int:
    """Return the weights of a stored adapter; 0 for a whole model."""
    file = directory / ADAPTER_WEIGHTS
    return file.stat().st_size // ADAPTER_BYTES if file.is_file() else 0


def held(
    settings: Config,
    student: Student,
    machine: Machine,
    stages: Sequence[str],
    teacher: str,
) -> Iterator[Held]:
    """Yield the most that each of the stages holds, one after the other, taught by one checkpoint: for
    midtraining the clean one."""
    fresh = not student.size.rank
    for stage in stages:
        training = fitting.fitted_training(settings.training(stage), student.size, machine)
        one = replace(_during(stage, training, student, machine, teacher), fresh=fresh)
        before = _before(one, training, student, teacher, _weights(student.size, machine))
        yield max(one, before, key=attrgetter("least"))
        if lora := one.lora:
            trained = _trained(training, student)
            student = replace(student, size=replace(student.size, rank=lora.rank), adapter=trained)
        else:
            student = replace(student, below=None)


def _during(
    stage: str,
    training: TrainingSettings,
    student: Student,
    machine: Machine,
    teacher: str,
) -> Held:
    """Return what is held while a stage trains."""
    lora, size = training.adapter, student.size
    second = second_model(training, on_teacher=False, sharded=machine.parts > 1)
    second = second and not (_may_stand_in(training, student, teacher) or is_offloaded(training, machine))
    weights, trained = _weights(size, machine), _trained(training, student)
    itself = (copied_bytes(training, machine.weight_bytes) + averaged_bytes(training)) * trained
    one_rank = (lora or LoraConfig()).model_copy(update={"rank": 1})
    return Held(
        stage,
        models=weights * (1 + second),
        lasting=(weights + kept_bytes(trained, lora, machine)) / machine.parts + weights * second + itself,
        shortest_pass=_shortest(training) * size.activation_bytes,
        lora=lora,
        taught=second or itself > 0,
        may_offload=isinstance(training, DistillConfig) and second and may_offload(training),
        rank_bytes=fitted.MASTER_BYTES * surely_trained(size, one_rank, False) / machine.parts,
        four_bits=size.four_bits / weights,
    )


def _trained(training: TrainingSettings, student: Student) -> int:
    """Return the weights that are trained; 0 for an adapter on modules whose sizes are not known."""
    if training.adapter and student.size.rank:
        return student.adapter
    return surely_trained(student.size, training.adapter, training.freeze_embeddings)


def _may_stand_in(training: TrainingSettings, student: Student, clean: str) -> bool:
    """Return whether a student may be its teacher when its adapter is off: other teachers are not known."""
    if not training.adapter:
        return False
    if isinstance(training, MidtrainConfig) or training.resolved_method().anchor_beta:
        return student.below == clean
    return student.below == clean or has_other_teachers(training)


def _before(one: Held, training: TrainingSettings, student: Student, clean: str, weights: float) -> Held:
    """Return what is held before there are shards and an optimizer: the whole student, and maybe the clean
    model beside it."""
    loads = _loads_clean(training, student, clean)
    models = weights * (1 + loads)
    adapter = ADAPTER_BYTES * _trained(training, student) if one.lora else 0
    return replace(
        one,
        models=models,
        lasting=models + adapter,
        shortest_pass=0.0,
        taught=False,
        may_offload=False,
        beside_clean=loads,
        undivided=not loads,
    )


def _loads_clean(training: TrainingSettings, student: Student, clean: str) -> bool:
    """Return whether midtraining as text loads the clean model, to answer the chat share or to be compared
    with: a student on it stands in for it."""
    if not isinstance(training, MidtrainConfig) or training.method == "passage" or student.below == clean:
        return False
    return training.mix.chat > 0 or training.forecast_every > 0


def _weights(size: ModelSize, machine: Machine) -> float:
    """Return the bytes of a loaded model; what no text meets may be in 4 bits too, where others are."""
    whole = fitted.whole_weights(size, machine)
    return whole - size.unused * machine.weight_bytes if size.quantized_bytes else whole


def _shortest(training: TrainingSettings) -> int:
    """Return the tokens of the shortest pass: of a distillation, one that holds an answer of full length."""
    if isinstance(training, MidtrainConfig):
        return min(training.microbatch_tokens, fitted.SMALLEST_MICROBATCH)
    return min(training.longest_row, fitted.TRAINED_PROMPT + training.max_new_tokens)


def ways_out(one: Held, model: ModelConfig, machine: Machine, gpus: int) -> list[str]:
    """Return what would take less memory, of what applies here."""
    whole = not (model.quantize or model.shard)
    # Else nothing helps that leaves the models as they are, and as whole as they are loaded.
    fits = one.models <= machine.whole_bytes and not (one.beside_clean or one.undivided)
    rank = _rank_that_fits(one, machine) if fits else 0
    adapter = rank > 0 and one.lora is None
    ways = (
        (adapter, f"an adapter ({one.stage}.lora: {{rank: {rank}}})"),
        (rank > 0 and not adapter, f"a lower rank (lora: {{rank: {rank}}} in midtrain and distill)"),
        (one.may_offload and gpus > 0, "distill.offload_teacher: true"),
        (one.beside_clean, "a mix without chat (midtrain.mix), with midtrain.forecast_every: 0"),
        (whole and not adapter and _fits_in_four_bits(one, machine), "model.quantize: nf4"),
        (fits and not model.quantize and gpus > launched(), "model.shard: true with more processes"),
        (not gpus and launched() > 1, "fewer processes"),
        (True, "a smaller model"),
    )
    return [words for applies, words in ways if applies]


def _rank_that_fits(one: Held, machine: Machine) -> int:
    """Return the highest rank that there is room for, below that of an adapter that is there; 0: none."""
    if one.lora and not one.fresh:
        return 0
    most = one.lora.rank if one.lora else RANKS[0] + 1
    without = one.lasting - one.rank_bytes * one.lora.rank if one.lora else one.models
    room = _room(one, machine) - without
    return next((rank for rank in RANKS if rank < most and one.rank_bytes * rank <= room), 0)


def _fits_in_four_bits(one: Held, machine: Machine) -> bool:
    """Return whether there is room for the models in 4 bits, and for an adapter beside them."""
    adapter = one.lasting - one.models if one.lora else one.rank_bytes * RANKS[-1]
    return one.models * one.four_bits + adapter <= _room(one, machine)


def _room(one: Held, machine: Machine) -> float:
    return machine.usable_bytes - one.shortest_pass


def _in_words(ways: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
