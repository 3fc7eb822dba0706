"""One more token a row through a Llama-like model on a CPU, in as few operations as that takes.

Where matrices are small, half of a step is what lies around the products: a module call for each, queries'
norms apart from keys', weights read across their order. Here the weights lie as products read them, those of
equal input beside each other. Whether a model computes this way at all is for the caller to prove: its own
logits of a step are there to be compared with.

Shapes: B rows, D hidden, H query heads, G key heads, W head width, F feed-forward width, V vocabulary.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery.forward import logits_of
from recovery.fused import SWITCH, epsilon, rms_norm, rotate
from recovery.slots import SlotLayer, Slots, attend

LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
FEED_FORWARD = {"gate_proj", "up_proj", "down_proj", "act_fn"}
UNLIKE = (AttributeError, RuntimeError, TypeError)  # parts have the same names and are made otherwise
MOST_WEIGHTS = 2**26  # 256 MiB are held twice; where there are more, the products themselves take the time
PROVEN: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()  # models held against their decoder: was it right?


def decoder_of(model: Any) -> Decoder | None:
    """A decoder of the weights as they are now; None where it would not help or layers are not Llama's."""
    if os.environ.get(SWITCH) == "0" or PROVEN.get(model) is False:
        return None
    body, weight = model.get_decoder(), model.get_input_embeddings().weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return None
    if not hasattr(body, "rotary_emb") or not all(map(_is_known, getattr(body, "layers", [None]))):
        return None
    if sum(weight.numel() for weight in body.layers.parameters()) > MOST_WEIGHTS:
        return None
    if any(map(_is_watched, model.modules())):
        return None
    try:
        return Decoder(model)
    except UNLIKE:
        return None


class Decoder:
    """A model's weights, laid out for a token a row."""

    def __init__(self, model: Any) -> None:
        body = model.get_decoder()
        self.model, self.embed, self.norm = model, model.get_input_embeddings(), body.norm
        self.rotary, self.layers = body.rotary_emb, [_Layer(layer) for layer in body.layers]

    def logits(self, token_B: Tensor, position_B: Tensor, mask_B11S: Tensor, slots: Slots) -> Tensor:
        """What follows each row's token, which is written into the next slot."""
        x_BD = self.embed(token_B)
        cos_B1W, sin_B1W = self.rotary(x_BD, position_B[:, None])
        for layer, own in zip(self.layers, slots.layers, strict=True):
            x_BD = layer(x_BD, cos_B1W, sin_B1W, mask_B11S, own)
        return logits_of(self.model, self.norm(x_BD))


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.qkv = _Product(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.down = _Product(attention.o_proj), _Product(mlp.down_proj)
        self.gate_up, self.act = _Product(mlp.gate_proj, mlp.up_proj), mlp.act_fn
        self.width, self.scale = attention.head_dim, attention.scaling
        self.queries = attention.q_proj.out_features // self.width
        self.keys = attention.k_proj.out_features // self.width
        self.head_norm = None
        if hasattr(attention, "q_norm"):
            both = (attention.q_norm, self.queries), (attention.k_norm, self.keys)
            weights = torch.cat([norm.weight.expand(heads, -1) for norm, heads in both])
            self.head_norm = _Norm(attention.q_norm, weights)

    def __call__(self, x_BD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slots: SlotLayer) -> Tensor:
        x_BD = self.out(self._attend(self.before(x_BD), cos, sin, mask, slots)).add_(x_BD)
        gate_BF, up_BF = self.gate_up(self.between(x_BD)).chunk(2, -1)
        return self.down(self.act(gate_BF).mul_(up_BF)).add_(x_BD)

    def _attend(self, x_BD: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, slots: SlotLayer) -> Tensor:
        heads, rows = self.queries + self.keys, len(x_BD)
        qkv = self.qkv(x_BD).view(rows, -1, self.width)
        qk, v = qkv[:, :heads], qkv[:, heads:, None]
        if self.head_norm:
            qk = self.head_norm(qk)
        qk = rotate(qk, cos, sin)
        keys, values = slots.update(qk[:, self.queries :, None], v)
        q = qk[:, : self.queries].view(rows, self.keys, -1, self.width)
        return attend(q, keys, values, mask, self.scale).view(rows, -1)


class _Product:
    """Linear layers of the same input as one."""

    def __init__(self, *layers: Any) -> None:
        self.weight_t = torch.cat([_weight(layer) for layer in layers]).t().contiguous()
        self.bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.mm(x, self.weight_t)
        return y if self.bias is None else y.add_(self.bias)


class _Norm:
    def __init__(self, norm: Any, weight: Tensor | None = None) -> None:
        self.weight, self.epsilon = norm.weight if weight is None else weight, epsilon(norm)

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.epsilon)


def _weight(linear: Any) -> Tensor:
    """A linear layer's weight, with what its adapters add."""
    if _is_plain(linear):
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
    return all(map(epsilon, norms)) and all(_is_plain(part) or _is_lora(part) for part in linears)


def _is_plain(linear: Any) -> bool:
    return type(linear) is torch.nn.Linear


def _is_lora(linear: Any) -> bool:
    """A plain linear layer with low-rank adapters of the ordinary sort on it."""
    if (type(linear).__module__, type(linear).__name__) != ("peft.tuners.lora.layer", "Linear"):
        return False
    extraordinary = bool(linear.lora_variant) or any(linear.lora_bias.values())
    return _is_plain(linear.get_base_layer()) and not extraordinary


def _is_watched(module: Any) -> bool:
    """Whether someone's hooks would be passed by."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _children(module: Any) -> set[str]:
    return {name for name, _ in module.named_children()} if isinstance(module, torch.nn.Module) else set()
