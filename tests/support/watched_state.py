"""A training state that tells of each save, so that a test can see it or end the training there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recovery.storage.training_state import TrainState


class WatchedState(TrainState):
    """Calls `after` with the step of each state that was saved."""

    def __init__(self, root: Path, after: Callable[[int], None]) -> None:
        super().__init__(root)
        self.after = after

    def save(self, step: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        super().save(step, tensors, meta)
        self.after(step)
