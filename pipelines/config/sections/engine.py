"""`engine`: vLLM, as a sampler or a teacher."""

from __future__ import annotations

from pydantic import Field

from pipelines.config.sections.base import Named, Section


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
