"""Choose the device and the dtype that a model is loaded with."""

from __future__ import annotations

from typing import Literal

import torch

from recovery.errors import InputError
from recovery.launch_env import launched_here, local_rank

Dtype = Literal["auto", "float32", "bfloat16", "float16"]


def pick_device(name: str = "auto") -> torch.device:
    """Return the device with this name; "auto" is this process's CUDA GPU, else the CPU.

    On a CPU, flush denormal numbers to zero: they make training five times slower.
    """
    if name == "auto":
        require_gpus()
        name = f"cuda:{local_rank()}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name}: no such device: use auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {name}: no CUDA GPU is visible here: use cpu or auto")
    if device.type == "cpu":
        torch.set_flush_denormal(True)
    return device


def require_gpus() -> None:
    """Refuse more processes on a machine than it has GPUs: each takes one. Without any, all use the CPU."""
    count, gpus = launched_here(), torch.cuda.device_count()
    if 0 < gpus < count:
        raise InputError(
            f"{count} processes on this machine need a GPU each; it shows {gpus}: give --processes {gpus} "
            f"(torchrun: --nproc-per-node {gpus}), or set CUDA_VISIBLE_DEVICES to nothing for the CPU"
        )


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype with this name; "auto" is bfloat16 on a GPU, float32 on a CPU."""
    chosen = name
    if name == "auto":
        chosen = "bfloat16" if device.type == "cuda" else "float32"
    if chosen not in ("float32", "bfloat16", "float16"):
        raise InputError(f"dtype {name}: not one of auto, float32, bfloat16, float16")
    return getattr(torch, chosen)
