"""Tiny random models of many architectures."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = torch.tensor([[72, 101, 108, 108, 111], [5, 0, 9, 200, 7]])


SMALL = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "pad_token_id": 0,
}


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "mistral": {},
    "phi3": {},
    "gemma3_text": {"final_logit_softcapping": 0.5},
    "gemma2": {"final_logit_softcapping": 0.5, "query_pre_attn_scalar": 16},
    "cohere": {"logit_scale": 0.3},
    "granite": {"logits_scaling": 7.0},
    "gpt2": {"n_embd": 32, "n_head": 2, "n_layer": 2},
    "hyperclovax": {"logits_scaling": 3.0},
    "bloom": {"n_head": 2, "n_layer": 2},
}


def architecture(name: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SMALL, **ARCHITECTURES[name]}))
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()
