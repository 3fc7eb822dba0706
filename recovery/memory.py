"""Memory that this process may take: the device's, or the machine's within a container's limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch

CONTAINER = Path("/sys/fs/cgroup")


def main_memory(container: Path = CONTAINER) -> float:
    """Return the bytes of this machine's memory, or of its container's."""
    return min(float(psutil.virtual_memory().total), _limit(container))


def free_memory(device: torch.device, container: Path = CONTAINER) -> float:
    """Return the bytes that can still be allocated on the device, PyTorch's own unused reserve included."""
    if device.type == "cuda":
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(float(psutil.virtual_memory().available), _left(container))


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

    said = ("can't allocate memory", "out of memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in said)


def _limit(container: Path) -> float:
    """Return a container's limit; infinity where there is none."""
    try:
        return float((container / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # "max", or a missing file
        return float("inf")


def _left(container: Path) -> float:
    """Return what a container's limit leaves; what the system can take back at once counts as left."""
    try:
        used = int((container / "memory.current").read_text(encoding="ascii"))
        lines = (container / "memory.stat").read_text(encoding="ascii").splitlines()
        reclaimable = int(dict(line.split() for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return float("inf")
    return _limit(container) - used + reclaimable
