"""Draw tokens from logits, and compare two sets of logits, in one pass over memory each.

Shapes: B rows, N tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recovery.cpu.fused_layers import in_fp32
from recovery.cpu.library import call, library
from recovery.forward.fast_path import TokenComparison


def compare(
    student_NV: Tensor,
    teacher_NV: Tensor,
    tokens_N: Tensor,
    stops: Tensor,
    temperature: float,
    overwrite: bool,
) -> tuple[TokenComparison, Tensor | None] | None:
    """Implement `FastPath.compare`; return None for other dtypes, shapes, or ids outside the vocabulary."""
    vocabulary = student_NV.shape[-1]
    fit = fits(student_NV, teacher_NV) and student_NV.shape == teacher_NV.shape
    fit = (
        fit
        and len(tokens_N) == len(student_NV)
        and are_ids(tokens_N, vocabulary)
        and are_ids(stops, vocabulary)
    )
    kernels = library() if fit else None
    if kernels is None:
        return None
    statistics_N6 = student_NV.new_empty(len(student_NV), 6)
    slope_NV = None
    if torch.is_grad_enabled() and student_NV.requires_grad:
        slope_NV = student_NV.detach() if overwrite else torch.empty_like(student_NV)
    call(
        kernels.reverse_kl,
        student_NV,
        teacher_NV,
        1 / temperature,
        tokens_N.contiguous(),
        stops.contiguous(),
        len(stops),
        *student_NV.shape,
        slope_NV,
        statistics_N6,
    )
    return TokenComparison(*statistics_N6.t().contiguous()), slope_NV


def draw(logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor] | None:
    """Implement `FastPath.draw`; return None for other dtypes and shapes."""
    fit = fits(logits_BV) and numbers_B.dtype == torch.float64 and numbers_B.shape == logits_BV.shape[:1]
    kernels = library() if fit and logits_BV.numel() else None
    if kernels is None:
        return None
    token_B = torch.empty_like(numbers_B, dtype=torch.long, memory_format=torch.contiguous_format)
    logprob_B = logits_BV.new_empty(len(logits_BV))
    call(
        kernels.draw, logits_BV, numbers_B.contiguous(), 1 / temperature, *logits_BV.shape, token_B, logprob_B
    )
    return token_B, logprob_B


def fits(*tensors: Tensor) -> bool:
    """Return whether all are contiguous fp32 tensors on the CPU."""
    return in_fp32(*tensors) and all(x.is_contiguous() for x in tensors)


def are_ids(ids: Tensor, count: int) -> bool:
    """Return whether all are whole numbers on the CPU in [0, count): kernels use them as offsets."""
    if ids.dtype != torch.long or ids.device.type != "cpu":
        return False
    if not ids.numel():
        return True
    lowest, highest = ids.aminmax()
    return int(lowest) >= 0 and int(highest) < count
