"""What a Llama-like layer is made of, for those who compute it by hand (decoder.py, reader.py).

Whether a layer whose parts have these names computes as Llama's does is not known from here: who uses it
holds its own numbers against the model's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import SiLU
from transformers.activations import SiLUActivation

from recovery.cpu.fused_layers import SWITCH, epsilon

LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SWISH = (SiLU, SiLUActivation)
MOST_WEIGHTS = 2**26  # where there are more, the products themselves take the time


def build_of(model: Any) -> Build | None:
    """How a small model is built whose layers look like Llama's, in fp32 on a CPU, if nobody listens in."""
    weight = model.get_input_embeddings().weight
    if os.environ.get(SWITCH) == "0" or weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    modules = _modules(model)
    build = _build(model, modules)
    return build if build.llama and not any(map(_is_watched, modules)) else None


@dataclass(frozen=True)
class Build:
    """Looked at once for the modules that a model has."""

    modules: list[Any]  # but the model itself, which would otherwise never be let go
    llama: bool
    adapted: bool  # adapters lie on the layers
    swishes: bool  # every gate is the one that the kernels know


BUILDS: WeakKeyDictionary[Any, Build] = WeakKeyDictionary()


def _build(model: Any, modules: list[Any]) -> Build:
    known = BUILDS.get(model)
    own = modules[1:]
    if known is None or len(known.modules) != len(own) or any(map(is_not, known.modules, own)):
        BUILDS[model] = known = _looked_at(model, modules)
    return known


def _looked_at(model: Any, modules: list[Any]) -> Build:
    body = model.get_decoder()
    layers: Any = getattr(body, "layers", None) or ()
    llama = bool(layers) and hasattr(body, "rotary_emb") and all(map(_is_known, layers))
    llama = llama and sum(weight.numel() for weight in layers.parameters()) <= MOST_WEIGHTS
    swishes = llama and all(isinstance(layer.mlp.act_fn, SWISH) for layer in layers)
    return Build(modules[1:], llama, any(map(_is_lora, modules)), swishes)


def _modules(model: Any) -> list[Any]:
    """`model.modules()`, which takes as long as a small product."""
    found = [model]
    for module in found:
        found.extend(part for part in module._modules.values() if part is not None)
    return found


@dataclass(frozen=True)
class LayerWeights:
    """What a layer computes with: weights of equal input beside each other, adapters added to theirs."""

    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None  # of every query and key head
    out: Tensor
    out_bias: Tensor | None
    between: Tensor
    gate: Tensor
    gate_bias: Tensor | None
    up: Tensor
    up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None
    queries: int
    keys: int
    width: int
    scale: float
    before_epsilon: float
    head_epsilon: float
    between_epsilon: float

    @classmethod
    def of(cls, layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        width = attention.head_dim
        queries, keys = (part.out_features // width for part in (attention.q_proj, attention.k_proj))
        head_norm, head_epsilon = None, 0.0
        if hasattr(attention, "q_norm"):
            both = (attention.q_norm, queries), (attention.k_norm, keys)
            head_norm = torch.cat([norm.weight.expand(heads, -1) for norm, heads in both])
            head_epsilon = epsilon(attention.q_norm)
        return cls(
            layer.input_layernorm.weight,
            *_joined(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norm,
            *_joined(attention.o_proj),
            layer.post_attention_layernorm.weight,
            *_joined(mlp.gate_proj),
            *_joined(mlp.up_proj),
            *_joined(mlp.down_proj),
            queries,
            keys,
            width,
            attention.scaling,
            epsilon(layer.input_layernorm),
            head_epsilon,
            epsilon(layer.post_attention_layernorm),
        )

    def with_tensors(self, tensors: Sequence[Tensor | None]) -> LayerWeights:
        """The same with others in place of `tensors()`."""
        named: dict[str, Any] = dict(zip(self.tensors(), tensors, strict=True))
        return replace(self, **named)

    def gate_up(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of both as one product."""
        if self.gate_bias is None or self.up_bias is None:
            return torch.cat([self.gate, self.up]), None
        return torch.cat([self.gate, self.up]), torch.cat([self.gate_bias, self.up_bias])

    def check(self, hidden: int, feed: int) -> None:
        """Whether the parts fit each other in a layer between `hidden` numbers, all in fp32."""
        heads, queries = self.queries + self.keys, self.queries * self.width
        qkv = queries + 2 * self.keys * self.width
        expected = {
            "before": (hidden,),
            "qkv": (qkv, hidden),
            "qkv_bias": (qkv,),
            "head_norm": (heads, self.width),
            "out": (hidden, queries),
            "out_bias": (hidden,),
            "between": (hidden,),
            "gate": (feed, hidden),
            "gate_bias": (feed,),
            "up": (feed, hidden),
            "up_bias": (feed,),
            "down": (hidden, feed),
            "down_bias": (hidden,),
        }
        there = {name: tensor for name, tensor in self.tensors().items() if tensor is not None}
        whole = all(tensor.dtype == torch.float32 for tensor in there.values())
        if not whole or any(tensor.shape != expected[name] for name, tensor in there.items()):
            raise RuntimeError("the parts of a layer do not fit each other")

    def tensors(self) -> dict[str, Tensor | None]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor | None)}


def _joined(*layers: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of linear layers of the same input as one."""
    weights, biases = [_weight(layer) for layer in layers], [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat(biases)
    return weights[0] if len(weights) == 1 else torch.cat(weights), bias


def _weight(linear: Any) -> Tensor:
    """A linear layer's weight, with what its adapters add."""
    if is_plain(linear):
        return linear.weight
    weight = linear.get_base_layer().weight
    if linear.disable_adapters or linear.merged:
        return weight
    added = [linear.get_delta_weight(name) for name in linear.active_adapters if name in linear.lora_A]
    return torch.stack([weight, *added]).sum(0)


def _is_known(layer: Any) -> bool:
    """Whether a layer is made of what is computed here, each part an ordinary one."""
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    if _children(layer) != LAYER or _children(mlp) != FEED_FORWARD:
        return False
    if _children(attention) - HEAD_NORMS != ATTENTION:
        return False
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in HEAD_NORMS & _children(attention)]
    linears = [getattr(attention, name) for name in ATTENTION] + [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return all(map(epsilon, norms)) and all(is_plain(part) or _is_lora(part) for part in linears)


def is_plain(linear: Any) -> bool:
    return type(linear) is torch.nn.Linear


def _is_lora(linear: Any) -> bool:
    """A plain linear layer with low-rank adapters of the ordinary sort on it."""
    if (type(linear).__module__, type(linear).__name__) != ("peft.tuners.lora.layer", "Linear"):
        return False
    extraordinary = bool(linear.lora_variant) or any(linear.lora_bias.values())
    return is_plain(linear.get_base_layer()) and not extraordinary


def _is_watched(module: Any) -> bool:
    """Whether someone's hooks would be passed by."""
    forwards = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return bool(forwards or module._backward_hooks or module._backward_pre_hooks)


def _children(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()} if isinstance(module, torch.nn.Module) else set()
