"""`engine`: vLLM, as a sampler or a teacher."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from pipelines.config.sections.base import Named, Section

ARGUMENT = re.compile(r"[a-zA-Z][a-zA-Z0-9]*([-_.][a-zA-Z0-9]+)*[+]?")
RULED = (  # arguments of vLLM that recover sets itself, or has a rule about
    "api-key",
    "dtype",
    "enable-chunked-prefill",
    "enable-lora",
    "enforce-eager",
    "generation-config",
    "gpu-memory-utilization",
    "host",
    "kv-cache-memory-bytes",
    "logprobs-mode",
    "lora-target-modules",
    "max-logprobs",
    "max-lora-rank",
    "max-loras",
    "max-model-len",
    "middleware",
    "model",
    "port",
    "seed",
    "served-model-name",
    "tensor-parallel-size",
    "trust-remote-code",
    "worker-extension-cls",
)


def full_name(argument: str) -> str:
    """Return an argument's name as vLLM's command line has it."""
    return argument.replace("_", "-")


def _shortened(name: str) -> str | None:
    """Return an argument with a rule of its own that vLLM would complete the name to."""
    return None if name in RULED else next((full for full in RULED if full.startswith(name)), None)


class EngineConfig(Section):
    """vLLM, as a sampler or a teacher."""

    timeout_seconds: float = Field(
        default=600.0, gt=0, description="longest wait for a sign of life; then one restart, then a stop"
    )
    start_seconds: float = Field(default=1800.0, gt=0, description="longest wait for an engine to start")
    gpu_memory: float = Field(
        default=0.45, gt=0, le=1, description="share of the GPU's memory, weights included"
    )
    cpu_cache_gib: float = Field(default=1.0, gt=0, description="memory for keys and values without a GPU")
    max_length: int | None = Field(
        default=None, ge=1, description="tokens of prompt and answer; default: the model's own limit"
    )
    eager: bool = Field(default=False, description="compile nothing: starts sooner, writes slower")
    exchange: Named = Field(
        default=None, description="folder that trainer and servers both see; default: the temporary one"
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share one copy of the weights")
    devices: str | None = Field(
        default=None, description="GPUs of a server started here, as CUDA_VISIBLE_DEVICES; default: all"
    )
    arguments: dict[str, bool | str | int | float] = Field(
        default_factory=dict,
        description="more arguments of vLLM, without their dashes; a flag is true or false",
    )

    @field_validator("arguments")
    @classmethod
    def _written_out(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        """Refuse a name that holds a value, and a shortened one, which vLLM would complete."""
        for name in arguments:
            if not ARGUMENT.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no argument's name: write it without dashes before it, and its value "
                    "behind the colon"
                )
            if full := _shortened(full_name(name).removeprefix("no-")):
                raise ValueError(f"{name!r} is short for {full}: write it out")
        return arguments
