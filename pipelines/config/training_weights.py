"""The weights of a training: those that it trains, and those of a second model beside the student.

Pure arithmetic; no torch here. Whatever fits, plans or refuses a training by its memory asks these.
"""

from __future__ import annotations

from typing import Protocol

from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import TrainingSettings
from recovery.methods.choices import ITSELF

ADAPTER_BYTES = 4  # of an adapter's weight, stored or loaded
AVERAGE_BYTES = 4  # of a trained weight, in a teacher that is its moving average: fp32 too


class Counted(Protocol):
    """The counts of a model's weights."""

    @property
    def parameters(self) -> int: ...

    @property
    def embeddings(self) -> int: ...

    @property
    def unused(self) -> int: ...

    def adapter_weights(self, rank: int) -> int: ...


def trained(size: Counted, lora: LoraConfig | None, freeze_embeddings: bool) -> int:
    """Return the weights that are trained; an adapter on modules of its own counts as one on all layers."""
    if lora:
        return size.adapter_weights(lora.rank)
    return size.parameters - size.unused - (size.embeddings if freeze_embeddings else 0)


def surely_trained(size: Counted, lora: LoraConfig | None, freeze_embeddings: bool) -> int:
    """Return the weights that are trained; 0 for an adapter on modules of its own, whose sizes may be any."""
    if lora and _has_own_modules(lora):
        return 0
    return trained(size, lora, freeze_embeddings)


def second_model(settings: TrainingSettings, *, on_teacher: bool, sharded: bool = False) -> bool:
    """Return whether a second model is there all the time: one that teaches or anchors in this process.

    An adapter `on_teacher`, the clean model, leaves that one when it is off, if the head is alike in both.
    One that teaches itself shares the frozen weights with its copy, until shards divide them.
    """
    lora = settings.adapter
    stands_in = on_teacher and lora is not None and not _has_own_modules(lora)
    if isinstance(settings, MidtrainConfig):
        return settings.method == "passage" and not stands_in
    method = settings.resolved_method()
    reads_clean = method.anchor_beta > 0 or (method.teacher == "base" and settings.teaches_in_process)
    keeps_frozen = method.teacher in ITSELF and lora is not None and sharded
    return has_other_teachers(settings) or keeps_frozen or (reads_clean and not stands_in)


def has_other_teachers(settings: DistillConfig) -> bool:
    """Return whether checkpoints teach in this process that need not be the clean one."""
    return settings.resolved_method().teacher in ("previous", "routed") and settings.teaches_in_process


def staying_bytes(weights: float, ends: float, layers: int) -> float:
    """Return what stays on the GPU of a model whose layers rest in the host's memory.

    All but the layers (`ends`), and the layer that computes."""
    return ends + (weights - ends) / layers


def gathered_bytes(weights: float, ends: float, layers: int, parts: int) -> float:
    """Return what a process holds of the others' shards while it computes.

    That is all but the layers (`ends`), and of these the one that computes and the next, fetched ahead."""
    if parts == 1 or not layers:
        return 0.0
    return (1 - 1 / parts) * (ends + 2 * (weights - ends) / layers)


def copied_bytes(settings: TrainingSettings, weight_bytes: int) -> int:
    """Return what the copy of a student that teaches itself holds of a trained weight; 0 without a copy."""
    if isinstance(settings, MidtrainConfig) or settings.resolved_method().teacher not in ITSELF:
        return 0
    return ADAPTER_BYTES if settings.adapter else weight_bytes


def averaged_bytes(settings: TrainingSettings) -> int:
    """Return what a teacher that is the student's moving average holds of a trained weight; else 0."""
    if isinstance(settings, MidtrainConfig):
        return 0
    return AVERAGE_BYTES if settings.resolved_method().teacher == "self-ema" else 0


def _has_own_modules(lora: LoraConfig) -> bool:
    """Return whether an adapter lies on other modules than all layers' linear ones, maybe on the head too."""
    return lora.targets != LoraConfig().targets
