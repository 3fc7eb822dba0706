"""Take over from a GGUF file how rotary positions are scaled: transformers reads it of few architectures."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

LLAMA3_FACTORS = "rope_freqs.weight"
FACTORS = (LLAMA3_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight")
# What the converter of llama.cpp computes the factors of Llama 3.1 and later from, besides `factor`.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Architectures whose layers all scale positions alike, under the same names in transformers.
AS_LLAMA = {"llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe"}
SCALINGS: dict[str, dict[str, str]] = {  # a file's keys under transformers' names
    "linear": {},
    "yarn": {
        "original_context_length": "original_max_position_embeddings",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    },
}
# Keys that change nothing where they have no name above.
IMMATERIAL = {"finetuned", "original_context_length"}


def settle(
    config: Any, architecture: str, rope: Mapping[str, Any], factors: Mapping[str, torch.Tensor]
) -> list[str]:
    """Complete a model's configuration; return the names of what is in the file and cannot be taken over.

    `rope` has the file's keys behind "ARCHITECTURE.rope.", `factors` the tensors that scale frequencies.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer = [part for part in parameters.values() if isinstance(part, dict)]
    if any(part.get("rope_type", "default") != "default" for part in by_layer or [parameters]):
        return []  # a scaling that transformers knows of this architecture
    if parameters and not by_layer:
        if "freq_base" in rope:
            parameters["rope_theta"] = rope["freq_base"]
        if rope.get("dimension_count") not in (None, _rotated(config)):
            return [f"{architecture}.rope.dimension_count"]
    scaling = _scaling(config, architecture, rope, factors)
    if scaling is None:
        return [*factors, *(f"{architecture}.rope.{key}" for key in sorted(rope) if "scal" in key)]
    parameters.get("full_attention", parameters).update(scaling)  # Gemma 3 scales these layers alone
    return []


def _rotated(config: Any) -> int:
    """Return how many dimensions of a head are rotated."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return round(head * config.rope_parameters.get("partial_rotary_factor", 1.0))


def _scaling(
    config: Any, architecture: str, rope: Mapping[str, Any], factors: Mapping[str, torch.Tensor]
) -> dict[str, Any] | None:
    """Return the file's scaling as transformers writes it, empty where there is none, None if unsure."""
    named = _named(rope)
    if factors:
        as_llama3 = set(factors) == {LLAMA3_FACTORS} and architecture in AS_LLAMA and named == {}
        return _llama3(config, factors[LLAMA3_FACTORS]) if as_llama3 else None
    if not named or architecture in AS_LLAMA:
        return named
    return named if architecture == "gemma3" and named["rope_type"] == "linear" else None


def _named(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scaling that the file's keys name; None if transformers has no name for one of them."""
    said = {key.removeprefix("scaling."): value for key, value in rope.items() if key.startswith("scaling.")}
    kind = said.pop("type", "linear")  # as llama.cpp reads a file that does not say
    factor = said.pop("factor", rope.get("scale_linear", 0))
    if kind == "none" or factor in (0, 1):
        return {}
    names = SCALINGS.get(kind)
    if names is None or said.keys() - names.keys() - IMMATERIAL:
        return None
    if kind == "yarn" and "original_context_length" not in said:
        return None
    return {"rope_type": kind, "factor": factor, **{names[key]: said[key] for key in names if key in said}}


def _llama3(config: Any, factors: torch.Tensor) -> dict[str, Any] | None:
    """Return the scaling of Llama 3.1 and later, if it divides the frequencies by these factors."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling: dict[str, Any] = {"rope_type": "llama3", "factor": float(factors.max()), **LLAMA3}
    trial = copy.deepcopy(config)
    trial.rope_parameters.update(scaling)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](trial)
    trial.rope_parameters.update(factor=1.0)
    plain, _ = ROPE_INIT_FUNCTIONS["llama3"](trial)
    same = factors.shape == plain.shape and torch.allclose(plain / scaled, factors, rtol=1e-3, atol=0)
    return scaling if same else None
