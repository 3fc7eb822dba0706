"""Say what vLLM needs to know of adapters when it starts: their largest rank and the layers that get one."""

from __future__ import annotations

from pathlib import Path

from recovery.errors import InputError
from recovery.models.adapters import expert_count, is_linear
from recovery.models.hub import explained
from recovery.models.loading import loader_of

LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # maximum ranks that vLLM supports
EXPERTS = "experts"  # vLLM's name for the routed experts of a layer


def lora_rank(rank: int) -> int:
    """Return the smallest maximum rank of vLLM that fits an adapter of this rank."""
    if rank > LORA_RANKS[-1]:
        raise InputError(f"vllm: an adapter of rank {rank}: it takes at most {LORA_RANKS[-1]}")
    return next(size for size in LORA_RANKS if size >= rank)


def lora_targets(directory: Path, trust_remote_code: bool = False) -> list[str]:
    """Return the names of the decoder's linear layers but the head, and of its routed experts.

    vLLM gives no prompt log-probs with a LoRA head. It computes all experts for adapters once it takes any,
    and fails at start where they are left out, though no adapter on them is sampled.
    """
    import torch
    from transformers import AutoConfig

    trust = {"trust_remote_code": trust_remote_code}
    with torch.device("meta"), explained(str(directory), "model"):
        config = AutoConfig.from_pretrained(directory, local_files_only=True, **trust)
        model = loader_of(directory).from_config(config, **trust)
    layers, head = model.get_decoder().named_modules(), model.get_output_embeddings()
    linear = {name.rpartition(".")[2] for name, layer in layers if is_linear(layer) and layer is not head}
    routed = {EXPERTS} if expert_count(config.get_text_config()) else set()
    return sorted(linear | routed)
