"""Measure how fast this machine multiplies matrices and copies memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from pipelines.machine.gpus import on_gpu
from recovery.launch_env import launched, launched_here, machines
from recovery.usable_cpus import usable_cpus

ROWS = 64  # of the product whose speed is measured
MEASURED_SECONDS = 0.3  # of each: shorter moments told twice the time that a cycle took
COPIED = 2**24  # numbers, at least: more than caches hold
# Shares of that product's speed that training of SmolLM2-135M reaches: in fp32 on a processor with AVX2, in
# bfloat16 on one with AVX-512, and on one with AMX, whose products are so fast that all else counts.
TRAINING_SHARE, TRAINING_SHARE_BF16, TRAINING_SHARE_AMX = 0.8, 0.5, 0.35
WORTH_IT = 1.25  # times the speed of fp32, from which on bfloat16 is chosen
LARGE = (512, 1024)  # a product of two such matrices takes some milliseconds


@dataclass(frozen=True)
class Speed:
    """What this machine computes and moves in a second."""

    flops: float  # of a product of the model's shape, in its dtype
    weights: float  # read from memory
    training_share: float = TRAINING_SHARE  # of `flops`


@cache
def measured(hidden: int, number_bytes: int) -> Speed:
    """Time a product of a feed-forward layer's shape, and a copy, as often as fits into a moment."""
    dtype = torch.float32 if number_bytes == 4 else torch.bfloat16
    device = "cuda" if on_gpu() else "cpu"
    rows = torch.ones(ROWS, hidden, dtype=dtype, device=device)
    wide = torch.ones(4 * hidden, hidden, dtype=dtype, device=device)
    product = product_seconds(lambda: torch.nn.functional.linear(rows, wide))
    many = wide.repeat(-(-COPIED // wide.numel()), 1)
    there = torch.ones_like(many)  # new memory would be slow to touch
    copy = _seconds(lambda: there.copy_(many))
    share = TRAINING_SHARE if number_bytes == 4 or on_gpu() else _share_in_bfloat16()
    return Speed(2 * ROWS * wide.numel() / product, many.numel() / copy, share)


def _share_in_bfloat16() -> float:
    return TRAINING_SHARE_AMX if torch.cpu.get_capabilities().get("amx_bf16") else TRAINING_SHARE_BF16


def product_seconds(compute: Callable[[], torch.Tensor]) -> float:
    """Return the least time of a product; on a GPU the processor's threads have no part in it."""
    return _seconds(compute) if on_gpu() else _uncrowded(compute)


def _uncrowded(compute: Callable[[], torch.Tensor]) -> float:
    """Return the least time of a computation, as if nothing else ran here.

    Where other work holds a core, threads that wait for each other take longer together than one alone."""
    threads = torch.get_num_threads()
    together = _seconds(compute)
    torch.set_num_threads(1)
    try:
        alone = _seconds(compute)
    finally:
        torch.set_num_threads(threads)
    return together if together <= alone else alone / threads


def _seconds(compute: Callable[[], torch.Tensor]) -> float:
    """Return the least time that a computation took."""
    least = float("inf")
    begun = time.perf_counter()
    while time.perf_counter() - begun < MEASURED_SECONDS:
        started = time.perf_counter()
        compute()
        if on_gpu():
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - started)
    return least


def processes_at_once() -> int:
    """Return how many processes compute at the measured speed, which is that of one: on a CPU each has its
    threads, for no more of which than it has cores there is time."""
    if on_gpu():
        return launched()
    with_cores = max(1, usable_cpus() // torch.get_num_threads())
    return min(launched_here(), with_cores) * machines()


@cache
def is_faster_in_bfloat16() -> bool:
    """Measure whether this processor multiplies bfloat16 faster than fp32.

    The instructions alone do not tell: Intel's without AMX take twice as long by them as for fp32.
    """
    return multiplies_bfloat16() and _large(torch.float32) > WORTH_IT * _large(torch.bfloat16)


def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions that multiply bfloat16."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


def _large(dtype: torch.dtype) -> float:
    """Return the least time of a large product on the processor."""
    left, right = torch.ones(LARGE, dtype=dtype), torch.ones(LARGE, dtype=dtype)
    return _seconds(lambda: torch.nn.functional.linear(left, right))
