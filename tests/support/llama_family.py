"""Tiny random models whose layers look like Llama's, and short samples of them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from recovery.batches.rollouts import Rollouts
from recovery.models.chat_model import ChatModel
from recovery.sampling.in_process import InProcessSampler
from recovery.sampling.protocol import SamplingParams
from tests.support import tiny
from tests.support.architectures import SMALL, architecture
from tests.support.samples import STOPS, prompts_of

MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "no window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "grouped": ("llama", {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6}),
    "partly turned": ("stablelm", {"partial_rotary_factor": 0.5}),
    "granite with factors": ("granite", {"residual_multiplier": 0.5, "embedding_multiplier": 3.0}),
    "glm": ("glm", {}),
    "helium": ("helium", {}),  # turns neighbours
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),  # turns nothing in every second layer
}


def built(name: str) -> Any:
    if name not in MORE:
        return architecture(name)
    kind, settings = MORE[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **settings}))
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def chat_of(model: Any) -> ChatModel:
    chat = ChatModel.of(model, tiny.tokenizer())
    chat.stop_ids = STOPS
    return chat


def sampled(chat: ChatModel, temperature: float = 1.0) -> Rollouts:
    params = SamplingParams(max_new_tokens=24, temperature=temperature)
    return InProcessSampler(chat).sample(prompts_of(14), params)


TAKEN = {  # None: other layers than Llama's, or windows; False: the same parts, which compute something else
    "qwen3": True,
    "llama": True,
    "mistral": None,
    "no window": True,
    "phi3": None,
    "gemma3_text": None,
    "gemma2": None,
    "cohere": None,
    "granite": True,
    "granite with factors": False,
    "gpt2": None,
    "hyperclovax": None,
    "bloom": None,
    "qwen2": True,
    "biased": True,
    "grouped": True,
    "glm": None,
    "partly turned": None,
    "helium": False,
    "smollm3": False,
}
