"""Matrix products on CPUs: where PyTorch's own (Intel's MKL) runs at half of what the processor can do.

MKL leaves AVX-512 unused on AMD's processors; oneDNN, which PyTorch brings along as well, does not. There
`aten::mm` in fp32 becomes oneDNN's, for all who use it in this process, backward passes included. Which of
them it is depends on the processor alone, so that a run which goes on after a kill computes as before.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SMALLEST = 2**18  # multiplications: below, the call costs more than it saves
SWITCH = "RECOVER_ONEDNN"  # 0: leave everything as it is


@cache
def use_the_faster() -> torch.library.Library | None:
    """oneDNN multiplies from here on, where it is the faster one: as long as what is returned lives."""
    if os.environ.get(SWITCH) == "0" or not is_slow() or not torch.backends.mkldnn.is_available():
        return None
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel is replaced is the point
        library.impl("mm", _mm, "CPU")
    return library


def is_slow() -> bool:
    """Whether PyTorch's own products are, on this processor."""
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
