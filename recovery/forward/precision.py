"""Set how exactly fp32 matrix products are computed: TF32 while training on a GPU, full fp32 elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


def fp32_on_tensor_cores(device: torch.device | str) -> AbstractContextManager[None]:
    """Allow TF32 for fp32 matrix products (adapters, fp32 heads) on a GPU inside the block.

    Evaluation must run outside, so that checkpoints are compared at one precision.
    """
    return matmul_precision("high") if torch.device(device).type == "cuda" else nullcontext()


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set the precision of fp32 matrix products inside the block."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
