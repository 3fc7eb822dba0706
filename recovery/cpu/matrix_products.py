"""Multiply fp32 matrices by oneDNN where PyTorch's default library runs at half of the processor's speed.

Intel's MKL leaves AVX-512 unused on AMD processors; oneDNN, which PyTorch ships too, uses it. There
`aten::mm` in fp32 becomes oneDNN's for the whole process, backward passes included. The choice depends on
the processor alone, so that a resumed run computes as before.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SMALLEST = 2**18  # multiplications: smaller products lose more by the call than they gain


@cache
def use_onednn() -> torch.library.Library | None:
    """Multiply by oneDNN where it is faster, for as long as the returned library lives."""
    if not is_slow() or not torch.backends.mkldnn.is_available():
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of every replaced kernel
        library.impl("mm", _mm, "CPU")
    return library


def is_slow() -> bool:
    """Return whether PyTorch's default library leaves AVX-512 unused on this processor."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and "AuthenticAMD" in _processor()


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""


def _mm(left: Tensor, right: Tensor) -> Tensor:
    rows, inner = left.shape
    columns = right.shape[1]
    single = left.dtype == right.dtype == torch.float32
    if single and inner == right.shape[0] and rows * inner * columns >= SMALLEST:
        return torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")
    return torch.mm(left, right, out=left.new_empty(rows, columns))
