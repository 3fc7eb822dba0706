"""Model families: for each a tiny random model of its real architecture, with the byte tokenizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tests.support import tiny

ENDS = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 258}
DENSE: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    **ENDS,
}
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "norm_topk_prob": True}
LATENT = {  # multi-head latent attention
    "q_lora_rank": 16,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
}
LINEAR = {  # gated delta net in every other layer
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "deepstack_visual_indexes": [],
    "num_position_embeddings": 16,
}


@dataclass(frozen=True)
class Family:
    """One architecture: transformers' model type and the settings that make it tiny."""

    name: str
    model_type: str
    settings: dict[str, Any] = field(default_factory=dict)
    fast: bool = False  # checked in the fast tests too


FAMILIES = (
    Family("Llama", "llama", fast=True),
    Family("Llama, tied embeddings", "llama", {"tie_word_embeddings": True}),
    Family("Qwen 2", "qwen2"),
    Family("Qwen 2 MoE", "qwen2_moe", {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24}),
    Family("Qwen 3", "qwen3"),
    Family("Qwen 3 MoE", "qwen3_moe", {**EXPERTS, "num_experts": 4}, fast=True),
    Family("Qwen 3.5", "qwen3_5_text", LINEAR),
    Family("Gemma", "gemma"),
    Family("Gemma 2", "gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 8}),
    Family("Gemma 3", "gemma3_text", {"sliding_window": 8, "query_pre_attn_scalar": 8}, fast=True),
    Family(
        "Gemma 3n",
        "gemma3n_text",
        {
            "num_hidden_layers": 4,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 264,
            "num_kv_shared_layers": 2,
            "laurel_rank": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,
            "activation_sparsity_pattern": [0.0] * 4,
        },
    ),
    Family(
        "Gemma 4",
        "gemma4_text",
        {
            "num_hidden_layers": 4,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 264,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 8,
            "global_head_dim": 16,
        },
    ),
    Family("Phi-3", "phi3", {"pad_token_id": 258}),
    Family(
        "Phi-3, long context",
        "phi3",
        {
            "pad_token_id": 258,
            "original_max_position_embeddings": 56,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0, 1.5, 2.0, 3.0],
                "long_factor": [2.0, 6.0, 12.0, 24.0],
                "original_max_position_embeddings": 56,
            },
        },
    ),
    Family("Mistral", "mistral", {"sliding_window": 8}),
    Family("Mixtral", "mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family(
        "GPT-OSS",
        "gpt_oss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        fast=True,
    ),
    Family("OLMo 2", "olmo2"),
    Family("OLMo 3", "olmo3", {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    Family("SmolLM 3", "smollm3"),
    Family("Granite", "granite", {"logits_scaling": 4.0, "embedding_multiplier": 2.0}),
    Family("Granite MoE", "granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    Family(
        "Cohere 2",
        "cohere2",
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.25},
    ),
    Family(
        "Falcon, new decoder",
        "falcon",
        {"head_dim": None, "new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    ),
    Family(
        "Falcon, alibi",
        "falcon",
        {
            "head_dim": None,
            "new_decoder_architecture": False,
            "multi_query": False,
            "alibi": True,
            "bias": True,
        },
    ),
    Family("GPT-NeoX", "gpt_neox"),
    Family("GPT-2", "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4}),
    Family("Mamba", "mamba", {"state_size": 8, "conv_kernel": 4}),
    Family(
        "Mamba 2",
        "mamba2",
        {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8, "expand": 2, "chunk_size": 8},
    ),
    Family(
        "Jamba",
        "jamba",
        {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "use_mamba_kernels": False,
        },
    ),
    Family(
        "Falcon-H1",
        "falcon_h1",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    Family(
        "LFM 2",
        "lfm2",
        {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False},
    ),
    Family(
        "LFM 2 MoE",
        "lfm2_moe",
        {**EXPERTS, "layer_types": ["conv", "full_attention"], "num_experts": 4, "num_dense_layers": 1},
    ),
    Family("DeepSeek V2", "deepseek_v2", {**LATENT, "topk_method": "group_limited_greedy"}),
    Family("DeepSeek V3", "deepseek_v3", LATENT, fast=True),
    Family(
        "GLM 4 MoE",
        "glm4_moe",
        {
            **EXPERTS,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    Family(
        "Qwen 3.5 VL",
        "qwen3_5",
        {"text_config": {**DENSE, **LINEAR, "model_type": "qwen3_5_text"}, "vision_config": VISION},
    ),
    Family(
        "Qwen 3 VL",
        "qwen3_vl",
        {
            "text_config": {
                **DENSE,
                "model_type": "qwen3_vl_text",
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 1, 1],
                },
            },
            "vision_config": VISION,
        },
        fast=True,
    ),
    Family("Doge", "doge"),
    Family(
        "Llama 4",
        "llama4_text",
        {
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 16,
        },
    ),
    Family(
        "MiniMax",
        "minimax",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 16,
        },
    ),
    Family(
        "xLSTM", "xlstm", {"num_heads": 2, "qk_dim_factor": 0.5, "chunk_size": 8, "return_last_states": True}
    ),
    Family("RWKV", "rwkv", {"attention_hidden_size": 32, "context_length": 128}),
)


FALLBACKS = (  # decoded otherwise than in padded rows with a cache written in place, or only just so
    "Falcon, new decoder",
    "Falcon, alibi",
    "Mamba",
    "Mamba 2",
    "Doge",
    "Llama 4",
    "MiniMax",
    "xLSTM",
    "RWKV",
    "Falcon-H1",
)


def named(name: str) -> Family:
    """The family of that name."""
    return next(family for family in FAMILIES if family.name == name)


def model(family: Family, seed: int = 0) -> Any:
    """A random fp32 model of the family in eval mode; the global random state is left alone."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, GenerationConfig

    has_vision = "text_config" in family.settings
    settings = {"tie_word_embeddings": False} if has_vision else dict(DENSE)
    settings |= family.settings
    config = AutoConfig.for_model(
        family.model_type, **{name: value for name, value in settings.items() if value is not None}
    )
    maker: Any = AutoModelForImageTextToText if has_vision else AutoModelForCausalLM
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = maker.from_config(config).float()
        for name, parameter in made.named_parameters():
            if parameter.ndim == 1 and not name.endswith(("A_log", "dt_bias", ".D")):
                parameter.data.add_(torch.randn_like(parameter) * 0.05)
    made.generation_config = GenerationConfig(eos_token_id=[257, 258], pad_token_id=258)
    return made.eval()


def save(family: Family, directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """A complete checkpoint directory of the family."""
    model(family, seed).to(dtype).save_pretrained(directory)
    tiny.tokenizer().save_pretrained(directory)
    return directory
