"""Define the settings of the training loop. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recovery.errors import InputError

SCHEDULES = ("cosine", "linear", "constant")


def warmup_within(asked: int, steps: int) -> int:
    """Cap the warm-up at a tenth of the steps: a short run could otherwise be all warm-up."""
    return min(asked, steps // 10)


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the training loop; data and objective are passed as batches and a loss function."""

    steps: int
    learning_rate: float
    warmup_steps: int = 0  # capped at a tenth of `steps`
    schedule: str = "cosine"  # learning-rate schedule after the warm-up
    final_lr_fraction: float = 0.0  # final learning rate, as a share of `learning_rate`
    weight_decay: float = 0.0  # applied to matrices only
    clip_norm: float = 1.0  # maximum norm of the global gradient; 0 disables clipping
    seed: int = 0
    save_every: int = 0  # steps; 0 saves only at the end
    betas: tuple[float, float] = (0.9, 0.95)
    shard: bool = False  # with several processes, shard weights, gradients and optimizer state (FSDP2)
    dropout: bool = True  # False where p is compared with the sampler's, which drops nothing

    def __post_init__(self) -> None:
        for name, ok, wanted in (
            ("steps", self.steps >= 0, "0 or more"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "a positive number"),
            ("warmup_steps", self.warmup_steps >= 0, "0 or more"),
            ("schedule", self.schedule in SCHEDULES, " or ".join(SCHEDULES)),
            ("final_lr_fraction", 0 <= self.final_lr_fraction <= 1, "within 0 to 1"),
            ("weight_decay", self.weight_decay >= 0, "0 or more"),
            ("clip_norm", self.clip_norm >= 0, "0 or more"),
            ("save_every", self.save_every >= 0, "0 or more"),
        ):
            if not ok:
                raise InputError(f"training: {name} is {getattr(self, name)!r}: give {wanted}")

    @property
    def effective_warmup(self) -> int:
        """Return the warm-up steps that take effect."""
        return warmup_within(self.warmup_steps, self.steps)

    def saves_after(self, step: int) -> bool:
        """Return whether the training state is saved after a step."""
        return step == self.steps or (self.save_every > 0 and step % self.save_every == 0)


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then the schedule."""
    warmup = config.effective_warmup
    if step <= warmup:
        return config.learning_rate * step / warmup
    progress = (step - 1 - warmup) / max(1, config.steps - warmup)
    decay = {"cosine": (1 + math.cos(math.pi * progress)) / 2, "linear": 1 - progress, "constant": 1.0}
    fraction = config.final_lr_fraction
    return config.learning_rate * (fraction + (1 - fraction) * decay[config.schedule])
