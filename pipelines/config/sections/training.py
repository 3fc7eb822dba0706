"""What midtraining and distillation share: the optimizer, the adapter, documents read in two parts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipelines.config.sections.base import Section

SPLIT_DOCUMENTS = Field(
    default=0.0,
    ge=0,
    le=1,
    description="share of the documents that a pass reads in two parts, split at the end of a sentence, "
    "another one in each pass: what they say is learned without what stands before it",
)


class OptimizerConfig(Section):
    """AdamW and its schedule."""

    learning_rate: float = Field(gt=0, description="at its highest, after the warm-up")
    warmup_steps: int = Field(default=20, ge=0, description="steps of linear rise, at most a tenth of all")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after the warm-up"
    )
    final_lr_fraction: float = Field(default=0.1, ge=0, le=1, description="what the schedule ends at")
    weight_decay: float = Field(default=0.0, ge=0, description="AdamW's, decoupled")
    clip_norm: float = Field(default=1.0, gt=0, description="longest gradient that is let through unscaled")


class LoraConfig(Section):
    """Train a low-rank adapter instead of all weights."""

    rank: int = Field(default=128, ge=1, description="of the adapter's matrices")
    alpha: float | None = Field(default=None, gt=0, description="scale of the adapter; default: the rank")
    dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the adapter's inputs dropped in training; none where tokens are weighed by the "
        "sampler's probabilities (rl, opd-sampled, opd-reward, minillm, ahead)",
    )
    targets: str | list[str] = Field(
        default="all-linear", description="names of the modules that get one; all-linear: all but the head"
    )


def fitted_adapter(lora: LoraConfig | Literal["auto"] | None) -> LoraConfig | None:
    """Return the adapter to train, once the settings are fitted."""
    if isinstance(lora, str):
        raise ValueError("lora: auto is not fitted yet")
    return lora
