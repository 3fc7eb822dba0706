"""Split a forward pass into hidden states and head, so that a loss can be computed in chunks.

Shapes: B sequences, T tokens, N selected tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from recovery.errors import InputError
from recovery.forward.fast_path import fast_path
from recovery.forward.isolation import GroupedReader, Sharing, sharing_of
from recovery.forward.packed import PackedReader
from recovery.forward.packing_check import sequences_stay_apart
from recovery.forward.passed_trials import tried
from recovery.forward.varlen import VarlenReader, varlen_reader

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts

SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
CHUNKED = "chunked_attention"  # a layer type of transformers' configs
READ_TOKENS = {  # a CPU pays for padding, an accelerator for launches
    "cpu": 1024,
    "cpu without padding": 4096,
    "accelerator": 16384,
}


def kind(device: torch.device | str) -> str:
    """Return the kind of a device, "cpu" or "accelerator"."""
    return "cpu" if torch.device(device).type == "cpu" else "accelerator"


def read_at_once(model: Any) -> int:
    """Return how many tokens, padding included, to read in one pass without gradients."""
    device = kind(unwrap(model).get_input_embeddings().weight.device)
    if device == "accelerator":
        return READ_TOKENS[device]
    with torch.no_grad():
        return READ_TOKENS["cpu without padding" if _reader(model) else "cpu"]


def is_adapter(model: Any) -> bool:
    """Return whether the model is a base with an adapter on it."""
    return hasattr(model, "disable_adapter") and hasattr(model, "get_base_model")


def unwrap(model: Any) -> Any:
    """Return the transformers model inside DDP, torch.compile and PEFT; adapter layers stay in it."""
    while True:
        if is_adapter(model):
            model = model.get_base_model()
        elif isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def decoder_layers(model: Any) -> tuple[str, torch.nn.ModuleList]:
    """Return the decoder's layers and their name in it; an empty name and list where it has none.

    They are its longest list of modules. A list inside a layer, such as its experts, may be longer.
    """
    named = unwrap(model).get_decoder().named_modules()
    lists = [(name, one) for name, one in named if isinstance(one, torch.nn.ModuleList)]
    outermost = min((name.count(".") for name, _ in lists), default=0)
    own = [(name, one) for name, one in lists if name.count(".") == outermost]
    return max(own, key=lambda found: len(found[1]), default=("", torch.nn.ModuleList()))


def require_layers(model: Any, setting: str) -> torch.nn.ModuleList:
    """Return the decoder's layers; raise InputError, naming the setting that needs them, if it has none."""
    layers = decoder_layers(model)[1]
    if not len(layers):
        raise InputError(f"{setting}: {type(unwrap(model)).__name__} has no list of layers: set it to false")
    return layers


def hidden_states(
    model: Any,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the head's inputs (B, T, D) without computing logits.

    Padding may be left or right. With positions, rows may be packed: each restart at 0 begins a sequence
    that does not attend to those before it (see `can_pack`). DDP hooks the wrapped model's own forward: call
    this on the bare model only where gradients are not needed or are reduced explicitly.
    """
    given = tokens_BT, attention_BT, positions_BT
    reader = _reader(model)
    return reader(*given) if reader else plain_states(unwrap(model), *given)


def states_at(
    model: Any,
    wanted_BT: torch.Tensor,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the hidden states (N, D) of the selected tokens; where possible the others are not computed."""
    reader = _reader(model)
    padding = None if attention_BT is None else ~attention_BT.bool()
    if reader and (padding is None or not bool((wanted_BT & padding).any())):
        return reader.at(wanted_BT, tokens_BT, attention_BT, positions_BT)
    return hidden_states(model, tokens_BT, attention_BT, positions_BT)[wanted_BT]


def predicting_states(model: Any, rollouts: Rollouts) -> torch.Tensor:
    """Return the hidden states (N, D) that predict the counted tokens of rollouts."""
    return states_at(model, rollouts.predictors_BT, *rollouts.model_inputs)


def _reader(model: Any) -> PackedReader | None:
    """Return a reader that computes no padding, or keeps apart what must not be read together, if any."""
    core = unwrap(model)
    sharing = row_sharing(core)
    fast = fast_path().reader(core, plain_states)
    if fast and not sharing.has_boundary:
        return fast
    varlen = varlen_reader(core, plain_states)
    if not sharing.is_limited:
        return varlen
    return GroupedReader(varlen or partial(plain_states, core), sharing)


def row_sharing(model: Any) -> Sharing:
    """Return which sequences of this model may share a forward pass."""
    return sharing_of(unwrap(model), plain_states)


def plain_states(
    model: Any,
    tokens_BT: torch.Tensor,
    attention_BT: torch.Tensor | None = None,
    positions_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return `hidden_states` as transformers computes them, for an unwrapped model."""
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
    """Read packed rows: flash-attention packages take the sequences' bounds, all else transformers' own mask.

    transformers infers that mask from the positions; padding becomes sequences of one token.
    """
    decoder = model.get_decoder()
    attention = str(getattr(model.config, "_attn_implementation", ""))
    if not _takes_positions(decoder):
        raise InputError(f"{type(decoder).__name__} can't be packed: give each sequence a row")
    if "flash" in attention:
        return VarlenReader(model, plain_states)(tokens_BT, attention_BT, positions_BT)
    if attention_BT is not None:
        positions_BT = positions_BT.masked_fill(~attention_BT.bool(), 0)
    return decoder(input_ids=tokens_BT, use_cache=False, position_ids=positions_BT)[0]


def can_pack(model: Any) -> bool:
    """Return whether sequences packed in one row stay apart; recurrent architectures, for one, leak.

    Chunked attention counts its chunks from the row's beginning, which a trial of few tokens does not show.
    """
    core = unwrap(model)
    if CHUNKED in (getattr(core.config.get_text_config(), "layer_types", None) or ()):
        return False
    return tried("packing", core, bool, lambda: sequences_stay_apart(core, plain_states))


def _takes_positions(decoder: Any) -> bool:
    return "position_ids" in inspect.signature(decoder.forward).parameters


def embedding_weights(model: Any) -> list[torch.nn.Parameter]:
    """Return the weights of embeddings and head; the same tensor twice where they are tied."""
    core = unwrap(model)
    return [layer.weight for layer in (core.get_input_embeddings(), core.get_output_embeddings())]


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Apply the head to hidden states (..., D) -> logits (..., V), with the architecture's scale or cap."""
    core = unwrap(model)
    head = core.get_output_embeddings()
    if head.weight.dtype != hidden.dtype and head.weight.is_floating_point():
        hidden = hidden.to(head.weight.dtype)
    logits = head(hidden)
    transform = logit_transform(core)
    return transform(logits) if transform else logits


def logit_transform(core: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return what the architecture applies to the head's output: a scale, a soft cap, both, or None."""
    config = core.config.get_text_config()
    caps = (getattr(config, name, None) for name in SOFT_CAPS)
    scale = _logit_scale(config)
    cap = next(filter(None, caps), None)

    def transform(logits: torch.Tensor) -> torch.Tensor:
        if scale:
            logits = logits * scale
        return torch.tanh(logits / cap) * cap if cap else logits

    return transform if scale or cap else None


def _logit_scale(config: Any) -> float | None:
    """Return what the config multiplies logits by; Granite's setting divides, HyperCLOVA X's does not."""
    scaling = getattr(config, "logits_scaling", None)
    if scaling and not config.model_type.startswith("hyperclovax"):
        scaling = 1 / scaling
    return scaling or getattr(config, "logit_scale", None) or getattr(config, "lm_head_multiplier", None)
