"""A model's forward pass in two halves, hidden states and head, so that a loss can be computed in chunks.

Shapes: B sequences, T tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from recovery.cpu.llama_forward import Reader, reader_of
from recovery.errors import InputError
from recovery.forward.equality import near_by_token
from recovery.forward.packed import PackedReader
from recovery.forward.varlen import FlatReader, flat_reader

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
READ_TOKENS = {  # padding, where it is computed, costs a CPU; launches cost an accelerator
    "cpu": 1024,
    "no padding": 4096,
    "accelerator": 16384,
}


def kind(device: torch.device | str) -> str:
    """Which of two sorts of settings a device takes."""
    return "cpu" if torch.device(device).type == "cpu" else "accelerator"


def read_at_once(model: Any) -> int:
    """How many tokens, padding included, a pass without gradients best reads at once."""
    way = kind(unwrap(model).get_input_embeddings().weight.device)
    with torch.no_grad():
        return READ_TOKENS["no padding" if way == "cpu" and _reader(model) else way]


def is_adapter(model: Any) -> bool:
    """Whether the model is a base with an adapter on it."""
    return hasattr(model, "disable_adapter") and hasattr(model, "get_base_model")


def unwrap(model: Any) -> Any:
    """The transformers model itself, out of DDP, torch.compile and PEFT; its adapter layers stay in it."""
    while True:
        if is_adapter(model):
            model = model.get_base_model()
        elif isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def hidden_states(
    model: Any,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """What the head sees, (B, T, D), without computing logits.

    Padding may be left or right. With positions, rows may be packed: each restart at 0 begins a sequence
    that does not see those before it (see `can_pack`). Call it on a model out of DDP's wrapper only where
    gradients are not needed or are reduced by hand: DDP hooks its own forward.
    """
    read = _reader(model) or partial(plain_states, unwrap(model))
    return read(tokens_BT, attention_BT, positions_BT)


def states_at(
    model: Any,
    wanted_BT: torch.Tensor,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """The hidden states (N, D) of some tokens: what nobody wants is not computed, where that can be had."""
    reader, padding = _reader(model), None if attention_BT is None else ~attention_BT.bool()
    if reader and (padding is None or not bool((wanted_BT & padding).any())):
        return reader.at(wanted_BT, tokens_BT, attention_BT, positions_BT)
    return hidden_states(model, tokens_BT, attention_BT, positions_BT)[wanted_BT]


def by_hand(model: Any) -> Reader | None:
    """A shorter way to read with the model's weights as they are now, if there is one."""
    return reader_of(unwrap(model), plain_states)


def _reader(model: Any) -> PackedReader | None:
    """What reads the model without padding, if anything does."""
    return by_hand(model) or flat_reader(unwrap(model), plain_states)


def plain_states(
    model: Any,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """`hidden_states` as transformers computes them, of a model out of its wrappers."""
    if positions_BT is not None:
        return _read_packed(model, tokens_BT, attention_BT, positions_BT)
    decoder = model.get_decoder()
    inputs: dict[str, torch.Tensor] = {}
    if attention_BT is not None:
        inputs["attention_mask"] = attention_BT.long()
        if _takes_positions(decoder):
            inputs["position_ids"] = (attention_BT.long().cumsum(-1) - 1).clamp(min=0)
    return decoder(input_ids=tokens_BT, use_cache=False, **inputs)[0]


def _read_packed(
    model: Any, tokens_BT: torch.Tensor, attention_BT: torch.Tensor | None, positions_BT: torch.Tensor
) -> torch.Tensor:
    """The packages of flash attention are told where sequences begin; of all else, transformers' own mask
    keeps them apart, and padding becomes sequences of one token."""
    decoder, attention = model.get_decoder(), str(getattr(model.config, "_attn_implementation", ""))
    if not _takes_positions(decoder):
        raise InputError(f"{type(decoder).__name__} can't be packed: give each sequence a row")
    if "flash" in attention:
        return FlatReader(model, plain_states)(tokens_BT, attention_BT, positions_BT)
    if attention_BT is not None:
        positions_BT = positions_BT.masked_fill(~attention_BT.bool(), 0)
    return decoder(input_ids=tokens_BT, use_cache=False, position_ids=positions_BT)[0]


def can_pack(model: Any) -> bool:
    """Whether sequences packed in one row are really kept apart; some architectures leak (recurrent ones)."""
    core = unwrap(model)
    tokens = torch.arange(8, device=core.get_input_embeddings().weight.device)
    positions = tokens % 4
    was_training = core.training
    core.eval()
    try:
        with torch.inference_mode():
            alone = hidden_states(core, tokens.view(2, 4)).flatten(0, 1)
            packed = hidden_states(core, tokens[None], None, positions[None])[0]
    except InputError:
        return False
    finally:
        core.train(was_training)
    return near_by_token(packed, alone)


def _takes_positions(decoder: Any) -> bool:
    return "position_ids" in inspect.signature(decoder.forward).parameters


def embedding_weights(model: Any) -> list[torch.nn.Parameter]:
    """The embeddings and the head; the same twice where they are tied."""
    core = unwrap(model)
    return [layer.weight for layer in (core.get_input_embeddings(), core.get_output_embeddings())]


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """The head on hidden states (..., D) -> logits (..., V), scaled or capped as the architecture has it."""
    core = unwrap(model)
    head = core.get_output_embeddings()
    if head.weight.dtype != hidden.dtype and head.weight.is_floating_point():
        hidden = hidden.to(head.weight.dtype)
    logits, shaped = head(hidden), shaping(core)
    return shaped(logits) if shaped else logits


def shaping(core: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What the architecture does to what the head gives, if anything: scaled, or capped."""
    config = core.config.get_text_config()
    caps = (getattr(config, name, None) for name in SOFT_CAPS)
    scale, cap = _logit_scale(config), next(filter(None, caps), None)

    def shaped(logits: torch.Tensor) -> torch.Tensor:
        if scale:
            logits = logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    return shaped if scale or cap else None


def _logit_scale(config: Any) -> float | None:
    """Cohere and Falcon-H1 multiply; Granite divides by the setting that HyperCLOVA X multiplies by."""
    scaling = getattr(config, "logits_scaling", None)
    if scaling and not config.model_type.startswith("hyperclovax"):
        scaling = 1 / scaling
    return scaling or getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None)
