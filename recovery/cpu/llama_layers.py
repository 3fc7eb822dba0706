"""Recognise Llama-like layers by their parts, and collect their weights.

Parts of these names do not prove that a layer computes what Llama's does: users compare their numbers with
the model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_not
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import SiLU
from transformers.activations import SiLUActivation

from recovery.cpu.fused_layers import epsilon

LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}
SWISH = (SiLU, SiLUActivation)
MEMORY_SHARE = 1 / 8  # of the machine's memory: larger weights are not held a second time
DTYPES = torch.float32, torch.bfloat16  # of models that the kernels read; bf16 where the processor has it


def build_of(model: Any) -> ModelBuild | None:
    """Describe a model of DTYPES on a CPU with Llama-like layers and no hooks; None for others."""
    weight = model.get_input_embeddings().weight
    if weight.device.type != "cpu" or weight.dtype not in DTYPES:
        return None
    modules = _modules(model)
    build = _build(model, modules)
    return build if build.llama and not any(map(_has_hooks, modules)) else None


def computes(kernels: Any, model: Any) -> bool:
    """Return whether there are kernels, and for numbers of the model's type."""
    half = model.get_input_embeddings().weight.dtype == torch.bfloat16
    return kernels is not None and (not half or bool(kernels.multiplies_bf16()))


@dataclass(frozen=True)
class ModelBuild:
    """What is known of a model, for as long as it has the same modules."""

    modules: list[Any]  # without the model itself, which could otherwise never be freed
    llama: bool
    adapted: bool  # some layer has an adapter
    swishes: bool  # every gate is the SiLU of the kernels


BUILDS: WeakKeyDictionary[Any, ModelBuild] = WeakKeyDictionary()


def _build(model: Any, modules: list[Any]) -> ModelBuild:
    known = BUILDS.get(model)
    inner = modules[1:]
    if known is None or len(known.modules) != len(inner) or any(map(is_not, known.modules, inner)):
        BUILDS[model] = known = _examined(model, modules)
    return known


def _examined(model: Any, modules: list[Any]) -> ModelBuild:
    body = model.get_decoder()
    layers: Any = getattr(body, "layers", None) or ()
    rotations = getattr(body.config, "rope_parameters", None) or {}
    scaled = rotations.get("llama_4_scaling_beta")  # of queries far on, which no short check shows
    llama = bool(layers) and hasattr(body, "rotary_emb") and all(map(_is_known, layers)) and not scaled
    swishes = llama and all(isinstance(layer.mlp.act_fn, SWISH) for layer in layers)
    return ModelBuild(modules[1:], llama, any(map(_is_lora, modules)), swishes)


def _modules(model: Any) -> list[Any]:
    """Return `model.modules()`, several times as fast."""
    found = [model]
    for module in found:
        found.extend(part for part in module._modules.values() if part is not None)
    return found


@dataclass(frozen=True)
class LayerWeights:
    """The weights of a layer: those of equal input joined, adapters added to the weights below them."""

    before: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None  # for every query and key head
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

    def check(self, hidden: int, feed: int, dtype: torch.dtype) -> None:
        """Raise an error unless all parts are of this type and their shapes fit a layer of this width."""
        heads = self.queries + self.keys
        queries = self.queries * self.width
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
        given = {name: tensor for name, tensor in self.tensors().items() if tensor is not None}
        same = all(tensor.dtype == dtype and tensor.device.type == "cpu" for tensor in given.values())
        if not same or any(tensor.shape != expected[name] for name, tensor in given.items()):
            raise RuntimeError("cpu: the parts of a layer do not fit each other")

    def tensors(self) -> dict[str, Tensor | None]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor | None)}


def _joined(*layers: Any) -> tuple[Tensor, Tensor | None]:
    """Join linear layers of the same input into one weight and bias."""
    weights = [_weight(layer) for layer in layers]
    biases = [layer.bias for layer in layers]
    bias = None if biases[0] is None else torch.cat(biases)
    return weights[0] if len(weights) == 1 else torch.cat(weights), bias


def _weight(linear: Any) -> Tensor:
    """Return a linear layer's weight, with what its active adapters add."""
    if is_plain(linear):
        return linear.weight
    weight = linear.get_base_layer().weight
    if linear.disable_adapters or linear.merged:
        return weight
    added = [linear.get_delta_weight(name) for name in linear.active_adapters if name in linear.lora_A]
    return torch.stack([weight, *added]).sum(0)


def _is_known(layer: Any) -> bool:
    """Return whether a layer consists of exactly the parts that are computed here, each of a known class."""
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
    """Return whether it is a plain linear layer under standard LoRA adapters (no DoRA, no bias)."""
    if (type(linear).__module__, type(linear).__name__) != ("peft.tuners.lora.layer", "Linear"):
        return False
    has_variant = bool(linear.lora_variant) or any(linear.lora_bias.values())
    return is_plain(linear.get_base_layer()) and not has_variant


def _has_hooks(module: Any) -> bool:
    """Return whether the module has hooks or a replaced forward, which the kernels would bypass."""
    forwards = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return bool(forwards or module._backward_hooks or module._backward_pre_hooks)


def _children(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()} if isinstance(module, torch.nn.Module) else set()
