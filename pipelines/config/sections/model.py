"""`model`: the clean instruct model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from pipelines.config.sections.base import Section


class ModelConfig(Section):
    """The clean instruct model: the student's origin and the frozen teacher."""

    path: str = Field(
        default="microworld",
        min_length=1,
        description="hub id, local directory, or `microworld`: the shipped model",
    )
    revision: str | None = Field(
        default=None, description="branch, tag or commit on the hub; init pins its commit"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="auto: bfloat16 on a GPU, else float32; `recover init` writes bfloat16 for a processor "
        "that multiplies it faster",
    )
    trust_remote_code: bool = Field(default=False, description="run code that comes with the model")
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        description="passed to the chat template of student, teacher and evaluation alike",
    )
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2", "flash_attention_3"] = Field(
        default="auto",
        description="auto: PyTorch's own, without padding where that gives the same, and eager where a model "
        "caps attention scores; or one of transformers'",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        default=False, description="less memory in training for more time; auto: on a GPU"
    )
    quantize: Literal["nf4", "fp4"] | None = Field(
        default=None,
        description="QLoRA: hold linear layers in 4 bits wherever a model is loaded; only adapters can be "
        "trained (needs the extra `qlora`); default: as stored",
    )
    compile: bool = Field(
        default=False, description="torch.compile layers for training: the first steps wait for it"
    )
    shard: bool = Field(
        default=False,
        description="of several processes, each holds its rows of every weight (FSDP2); else each the whole",
    )

    def number_bytes(self, gpu: bool) -> int:
        """Return the bytes of a weight in memory."""
        halved = gpu if self.dtype == "auto" else self.dtype == "bfloat16"
        return 2 if halved else 4

    def checkpoints_gradients(self, gpu: bool) -> bool:
        """Return whether training recomputes activations; with `auto`, on a GPU, where memory is scarce."""
        return gpu if self.gradient_checkpointing == "auto" else self.gradient_checkpointing

    @model_validator(mode="after")
    def _whole_or_sharded(self) -> ModelConfig:
        if self.quantize and self.shard:
            raise ValueError("quantize and shard exclude each other: each process holds the 4-bit model")
        return self
