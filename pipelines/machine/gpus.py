"""GPUs by name: memory, speed and bandwidth of each."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from recovery.errors import InputError
from recovery.memory import GIB

USABLE = 0.92  # share of a GPU's memory; the rest is driver and fragmentation


def on_gpu() -> bool:
    """Return whether this process computes on a GPU."""
    import torch

    return torch.cuda.is_available()


@dataclass(frozen=True)
class Gpu:
    """A GPU model; dense FLOP/s and bytes/s by its vendor. Set the price with `--price`."""

    name: str
    gib: float
    flops: float | None = None  # in bf16
    bandwidth: float | None = None
    single_flops: float | None = None  # in fp32, without tensor cores

    @property
    def usable_gib(self) -> float:
        return USABLE * self.gib

    @property
    def usable_bytes(self) -> float:
        return self.usable_gib * GIB

    def computing(self, number_bytes: int, *, tensor_cores: bool) -> Gpu:
        """Return the GPU with the FLOP/s of such numbers: of fp32 on tensor cores (TF32), half those of
        bf16."""
        if number_bytes == 2 or self.flops is None:
            return self
        return replace(self, flops=self.flops / 2 if tensor_cores else self.single_flops)


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("L4", 22.5, 121e12, 0.30e12, 30e12),
        Gpu("RTX4090", 24, 165e12, 1.0e12, 83e12),
        Gpu("L40S", 45, 362e12, 0.86e12, 92e12),
        Gpu("A100-40", 40, 312e12, 1.55e12, 19.5e12),
        Gpu("A100", 80, 312e12, 2.0e12, 19.5e12),
        Gpu("H100", 80, 989e12, 3.35e12, 67e12),
        Gpu("H200", 139, 989e12, 4.8e12, 67e12),
        Gpu("B200", 178, 2250e12, 8.0e12, 75e12),
        Gpu("MI300X", 190, 1307e12, 5.3e12, 163e12),
    )
}


def parse_gpus(text: str) -> tuple[int, Gpu]:
    """Parse `8xH100`, `H200`, `24GB` or `2x24GB` (speed unknown)."""
    found = re.fullmatch(r"(?:(\d{1,6})\s*[xX×]\s*)?([\w.-]+)", text.strip())
    if found:
        count = int(found[1] or 1)
        name = found[2].upper()
        by_name = {known.upper(): gpu for known, gpu in GPUS.items()}
        memory = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)\s*G(?:I?B)?", name)
        if count and name in by_name:
            return count, by_name[name]
        if count and memory:
            return count, Gpu(f"{memory[1]} GB", float(memory[1]))
    raise InputError(f"--gpus {text}: write 8xH100, 24GB or 2x24GB; known are {', '.join(GPUS)}")
