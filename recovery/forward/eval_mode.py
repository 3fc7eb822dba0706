"""Set the modes of a model: eval mode for a while, train mode with dropout or without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set eval mode inside the block; restore each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def set_training(model: Any, *, dropout: bool) -> None:
    """Set train mode; without dropout eval mode, but for the layers that recompute their activations.

    transformers recomputes in train mode alone; what drops lies within those layers.
    """
    model.train(dropout)
    for module in model.modules() if not dropout else ():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
