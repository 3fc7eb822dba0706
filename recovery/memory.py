"""Memory that this process may take: the device's, or the machine's within its control groups' limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

from recovery import control_groups

if TYPE_CHECKING:
    import torch

GIB = 2**30


def main_memory() -> float:
    """Return the bytes of this machine's memory, or of its container's."""
    return min(float(psutil.virtual_memory().total), control_groups.memory_limit())


def gib(count: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{count / GIB:,.1f} GiB"


def free_memory(device: torch.device) -> float:
    """Return the bytes that can still be allocated on the device, PyTorch's own unused reserve included."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(float(psutil.virtual_memory().available), control_groups.memory_left())


def release_cached() -> None:
    """Give back the GPU memory that PyTorch keeps for later: another process can take none of it."""
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def ran_out(error: Exception) -> bool:
    """Return whether an allocation failed; on a CPU, and in CUDA's own calls, only the words say so."""
    import torch

    said = ("can't allocate memory", "out of memory", "STATUS_ALLOC_FAILED")  # the last: cuBLAS, cuDNN
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)
