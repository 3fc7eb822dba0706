"""How to train: how long, how fast, and the learning rate of each step. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from recovery.errors import InputError

SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class TrainConfig:
    """How to train; what to train on comes as batches and a loss function."""

    steps: int
    learning_rate: float
    warmup_steps: int = 0
    schedule: str = "cosine"  # of the learning rate after the warm-up
    final_lr_fraction: float = 0.0  # of the learning rate, towards which the last steps go
    weight_decay: float = 0.0  # on matrices only
    clip_norm: float = 1.0  # of the whole gradient; 0 = never clip
    seed: int = 0
    save_every: int = 0  # steps; 0 = only at the end
    betas: tuple[float, float] = (0.9, 0.95)
    shard: bool = False  # of several processes, each holds its rows of all weights (FSDP2)

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


def lr_at(step: int, config: TrainConfig) -> float:
    """The learning rate of step 1, 2, ...: a rise that is whole at `warmup_steps`, then the schedule."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    done = (step - 1 - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    left = {"cosine": (1 + math.cos(math.pi * done)) / 2, "linear": 1 - done, "constant": 1.0}[
        config.schedule
    ]
    return config.learning_rate * (config.final_lr_fraction + (1 - config.final_lr_fraction) * left)
