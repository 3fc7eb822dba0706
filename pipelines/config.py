"""recover.yaml: every setting of a run, typed, documented and checked where it is declared. No torch here.

The shipped presets (pipelines/presets/*.yaml) are complete files that a user can read and copy.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recovery.errors import InputError

CONFIG_NAME = "recover.yaml"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoraConfig(Section):
    """Train a low-rank adapter instead of all weights."""

    rank: int = Field(128, ge=1)
    alpha: float | None = Field(None, gt=0, description="default: the rank")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: str | list[str] = "all-linear"


class ModelConfig(Section):
    """The clean instruct model: the student's origin and the frozen teacher."""

    path: str = Field("microworld", description="hub id, local directory, or `microworld` for the shipped model")
    revision: str | None = Field(None, description="branch, tag or commit on the hub; pinned to its commit by init")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    trust_remote_code: bool = False
    template_args: dict[str, Any] = Field(
        default_factory=dict, description="passed to the chat template of student, teacher and evaluation alike"
    )
    gradient_checkpointing: bool = False


class OptimizerConfig(Section):
    learning_rate: float = Field(gt=0)
    warmup_steps: int = Field(10, ge=0)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    final_lr_fraction: float = Field(0.1, ge=0, le=1)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float = Field(1.0, gt=0)


class Mix(Section):
    """Shares of the tokens that midtraining sees; they add up to one."""

    new: float = Field(1.0, gt=0, le=1, description="the documents given now")
    earlier: float = Field(0.0, ge=0, lt=1, description="documents of earlier cycles (none yet: goes to `new`)")
    chat: float = Field(0.0, ge=0, lt=1, description="chat prompts answered by the clean model itself")

    @model_validator(mode="after")
    def _adds_up(self) -> Mix:
        total = self.new + self.earlier + self.chat
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the shares add up to {total:g}, not to 1")
        return self


class MidtrainConfig(Section):
    steps: int | None = Field(None, ge=1, description="optimizer steps; or give epochs")
    epochs: float | None = Field(None, gt=0, description="passes over the new documents; or give steps")
    tokens_per_step: int = Field(4096, ge=1)
    row_tokens: int = Field(1024, ge=8, description="documents are packed into rows of this length")
    microbatch_tokens: int = Field(16384, ge=1, description="tokens in one forward pass; more are accumulated")
    optimizer: OptimizerConfig
    mix: Mix = Mix()
    chat_prompts: int = Field(512, ge=1, description="how many prompts the clean model answers for the chat share")
    lora: LoraConfig | None = None
    save_every: int = Field(50, ge=0, description="steps between resumable states; 0: only at the end")

    @model_validator(mode="after")
    def _one_length(self) -> MidtrainConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs")
        return self


class DistillConfig(Section):
    method: str = Field("opd", description="a row of `recover methods`")
    dials: dict[str, Any] = Field(default_factory=dict, description="dials of the method, set by hand")
    prompts: str = Field(description="FILE, hub:NAME:SPLIT:FIELD, or microworld")
    steps: int = Field(100, ge=1)
    prompts_per_step: int = Field(64, ge=1)
    samples_per_prompt: int = Field(4, ge=1)
    max_new_tokens: int = Field(2048, ge=1)
    microbatch_tokens: int = Field(16384, ge=1)
    optimizer: OptimizerConfig
    lora: LoraConfig | None = None
    save_every: int = Field(20, ge=0)
    preflight: bool = True


class EvalConfig(Section):
    ifeval: str = Field("google/IFEval", description="FILE in IFEval's format, or the hub data set")
    probes: str | None = Field(None, description="FILE of knowledge and retention probes")
    max_new_tokens: int = Field(1280, ge=1)
    probe_max_new_tokens: int = Field(64, ge=1)
    batch_size: int = Field(64, ge=1)
    margin: float = Field(0.03, gt=0, lt=1, description="how much worse still counts as recovered or kept")
    retention_margin: float = Field(0.10, gt=0, lt=1)


class Config(Section):
    model: ModelConfig
    midtrain: MidtrainConfig
    distill: DistillConfig
    eval: EvalConfig
    seed: int = 0


def presets() -> list[str]:
    return sorted(p.name.removesuffix(".yaml") for p in _preset_dir().iterdir() if p.name.endswith(".yaml"))


def _preset_dir() -> Any:
    return resources.files("pipelines") / "presets"


def preset_text(name: str) -> str:
    if name not in presets():
        raise InputError(f"no preset {name!r}: choose one of {', '.join(presets())}")
    return str((_preset_dir() / f"{name}.yaml").read_text(encoding="utf-8"))


def parse(text: str, source: str) -> Config:
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"{source} is not YAML: {' '.join(str(error).split())}") from error
    try:
        return Config.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"{source}: {where}: {first['msg']}") from error


def read(path: Path) -> Config:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}: run `recover init` first") from error


def override(section: Section, changes: dict[str, Any]) -> Any:
    """A section with some settings replaced (None: left as it is) and checked again."""
    data = section.model_dump()
    data.update({key: value for key, value in changes.items() if value is not None})
    try:
        return type(section).model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        raise InputError(f"{where}: {first['msg']}") from error
