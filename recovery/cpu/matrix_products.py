"""Multiply fp32 matrices by oneDNN where PyTorch's default library runs at half of the processor's speed.

Intel's MKL leaves AVX-512 unused on AMD processors; oneDNN, which PyTorch ships too, uses it. There
`aten::mm` in fp32 becomes oneDNN's for the whole process, backward passes included. The choice depends on
the processor alone, so that a resumed run computes as before.
"""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

SMALLEST = 2**18  # multiplications: smaller products lose more by the call than they gain
PRODUCT, TURNS = (512, 1024), 20  # a product of two such matrices takes some milliseconds
WORTH_IT = 1.25  # times the speed of fp32, from which on bfloat16 is chosen


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


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions that multiply bfloat16."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


@cache
def is_faster_in_bfloat16() -> bool:
    """Measure whether this processor multiplies bfloat16 faster than fp32.

    The instructions alone do not tell: Intel's without AMX take twice as long by them as for fp32.
    """
    return multiplies_bfloat16() and _seconds(torch.float32) > WORTH_IT * _seconds(torch.bfloat16)


def _seconds(dtype: torch.dtype) -> float:
    """Return the shortest time of a few products, which other work hardly lengthens."""
    left, right = torch.ones(PRODUCT, dtype=dtype), torch.ones(PRODUCT, dtype=dtype)
    taken = []
    for _ in range(TURNS):
        start = perf_counter()
        torch.nn.functional.linear(left, right)
        taken.append(perf_counter() - start)
    return min(taken)


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
