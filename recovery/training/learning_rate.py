"""Compute the learning rate of each step: linear warm-up, then the schedule. Does not import torch."""

from __future__ import annotations

import math

from recovery.training.config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Return the learning rate of a step, counted from 1: linear warm-up, then the schedule."""
    warmup = config.effective_warmup
    if step <= warmup:
        return config.learning_rate * step / warmup
    progress = (step - 1 - warmup) / max(1, config.steps - warmup)
    decay = {"cosine": (1 + math.cos(math.pi * progress)) / 2, "linear": 1 - progress, "constant": 1.0}
    fraction = config.final_lr_fraction
    return config.learning_rate * (fraction + (1 - fraction) * decay[config.schedule])
