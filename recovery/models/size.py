"""Count what a model holds and computes: weights, weights a token meets, KV cache, layer widths.

One count for a model in memory and for one that exists only as a config: the latter is built without numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from recovery.errors import InputError
from recovery.forward.context_length import context_length
from recovery.forward.hidden_states import embedding_weights, unwrap
from recovery.models.adapters import expert_count, is_linear, linear_targets, matrix_shape, plain_layer
from recovery.models.hub import quiet
from recovery.models.loading import loader_for, settle_architecture
from recovery.models.quantization import BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from recovery.models.activations import Decoding, Training

Counted = TypeVar("Counted")

USED_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk")
ELSEWHERE = ("quantization_config", "_name_or_path", "dtype")  # settings that no module's shape depends on
TRIED = 128, 256  # tokens of two rows, from whose difference a token's bytes are counted
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "wo")  # the projection that ends an attention layer


@dataclass(frozen=True)
class Matrix:
    """The widths of a weight matrix; of routed experts, how many there are and how many a token uses."""

    inputs: int
    outputs: int
    copies: int = 1  # experts
    used: int = 1  # of them, by one token

    @property
    def is_routed(self) -> bool:
        return self.copies > 1


@dataclass(frozen=True)
class Size:
    """The counts of a model that plans and estimates are made from."""

    parameters: int
    embeddings: int  # the head included, where it is not the same
    active: int  # weights that one token is multiplied with, the head included
    layers: int
    hidden: int
    vocabulary: int
    attention_width: int  # heads times their width, summed over the layers
    cache_numbers: int  # keys and values of one token, over all layers
    matrices: tuple[Matrix, ...]
    unused: int = 0  # parameters that no text meets, as of a vision tower: they are never trained
    name: str = ""
    context: int | None = None  # positions that it was made for
    empty: EmptyModel | None = field(default=None, compare=False, repr=False)  # builds it without numbers

    def weight_bytes(self, quantize: bool = False, number_bytes: int = 2) -> float:
        """Return the bytes of all weights, so many each; quantised, linear layers but the head are in 4 bits.

        Fused experts are no linear layers: they stay as they are.
        """
        if not quantize:
            return float(number_bytes * self.parameters)
        held = sum(matrix.inputs * matrix.outputs for matrix in self.matrices if not matrix.is_routed)
        return number_bytes * (self.parameters - held) + BYTES * held

    def training(
        self, rank: int | None = None, recomputing: bool = False, number_bytes: int = 2
    ) -> Training | None:
        """Count a training pass, with an adapter of that rank if any; None where that fails.

        `recomputing` is gradient checkpointing."""
        from recovery.models.activations import count_training

        return _count(self._empty(number_bytes), count_training, rank, recomputing)

    def reading(self, number_bytes: int = 2) -> float | None:
        """Count the bytes per token of a pass without gradients; None where that fails."""
        from recovery.models.activations import count_reading

        return _count(self._empty(number_bytes), count_reading)

    def decoding(self, tokens: int, number_bytes: int = 2) -> Decoding:
        """Count what decoding holds for a row of so many tokens; by the widths where that fails."""
        numbers = number_bytes * self.cache_numbers * tokens
        return _decoding(self._empty(number_bytes), tokens) or _by_widths(float(numbers), self.layers)

    def _empty(self, number_bytes: int) -> EmptyModel | None:
        return replace(self.empty, number_bytes=number_bytes) if self.empty else None

    def adapter_weights(self, rank: int) -> int:
        """Return the number of weights of a LoRA adapter on every matrix of the decoder's layers."""
        return sum(matrix.copies * rank * (matrix.inputs + matrix.outputs) for matrix in self.matrices)


@lru_cache(maxsize=128)
def _count(empty: EmptyModel | None, count: Callable[..., Counted], *given: object) -> Counted | None:
    """Count a pass of a model; None where its code reads numbers, of which there are none."""
    if empty is None:
        return None
    try:
        with quiet(), torch.inference_mode(False):
            return count(empty(), *given)
    except Exception:  # noqa: BLE001 - code that reads numbers fails in any way
        return None


def _decoding(empty: EmptyModel | None, tokens: int) -> Decoding | None:
    from recovery.models.activations import count_decoding

    return _count(empty, count_decoding, tokens)


def _by_widths(cache: float, layers: int) -> Decoding:
    """Return the bytes of a row's keys and values, and of a copy of a layer's beside them."""
    from recovery.models.activations import Decoding

    return Decoding(cache, cache / layers)


def size_of(model: Any) -> Size:
    """Count a transformers model, also one on the meta device; leave out the weights of adapters."""
    core = unwrap(model)
    config = core.config.get_text_config()
    counts = _counts(core)
    ends = {id(weight): weight.numel() for weight in embedding_weights(core)}
    experts = expert_count(config)
    matrices = tuple(_matrices(core, experts, _used(config)))
    idle = sum((m.copies - m.used) * m.inputs * m.outputs for m in matrices if m.is_routed)
    used = {id(one) for one in core.get_decoder().parameters()} | ends.keys()
    return Size(
        parameters=sum(counts.values()),
        embeddings=sum(ends.values()),
        active=_read_by_text(core, counts) - idle,
        layers=int(getattr(config, "num_hidden_layers", None) or config.n_layer),
        hidden=int(config.hidden_size),
        vocabulary=int(config.vocab_size),
        attention_width=sum(wide for wide, _ in _attention(core, config)),
        cache_numbers=cache_numbers(core),
        matrices=matrices,
        unused=sum(count for weight, count in counts.items() if weight not in used),
        context=context_length(core.config),
    )


def decoding_bytes(model: Any) -> tuple[float, float]:
    """Return what decoding with a loaded model holds for each token of a row, and for each row beside them.

    Keys, values, and what a layer makes of them at each step grow with the tokens; recurrent states do not.
    On a CPU they are in fp32, as the kernels keep them.
    """
    core = unwrap(model)
    weight = embedding_weights(core)[0]
    itemsize = max(weight.itemsize, 4) if weight.device.type == "cpu" else weight.itemsize
    empty = EmptyModel(_settings(core.config.to_dict()))
    short, long = (_decoding(empty, tokens) for tokens in TRIED)
    if short is None or long is None:
        return float(cache_numbers(core) * itemsize), 0.0
    less, more = (itemsize / 2 * (one.cache + one.step) for one in (short, long))
    token = (more - less) / (TRIED[1] - TRIED[0])
    return token, less - token * TRIED[0]


def cache_numbers(model: Any) -> int:
    """Count the numbers that the KV cache holds for one token, over all layers."""
    core = unwrap(model)
    return sum(cached for _, cached in _attention(core, core.config.get_text_config()))


def size_from_config(name: str, values: dict[str, Any]) -> Size:
    """Count the model that a config.json describes: its modules are built, no number is allocated."""
    if "model_type" not in values:
        raise InputError(f"{name}: its config.json lacks 'model_type': give a size instead, as in 8B")
    try:
        return replace(_size_of_empty(EmptyModel(_settings(values))), name=name)
    except Exception as error:
        said = " ".join(str(error).split())[:160]
        raise InputError(f"{name}: its config.json can't be sized ({said}): give a size, as in 8B") from error


def _settings(config: dict[str, Any]) -> str:
    """Return, as JSON, the settings that make an architecture's modules and their sizes."""
    kept = {key: value for key, value in config.items() if key not in ELSEWHERE}
    return json.dumps(json.loads(json.dumps(kept, default=str), object_hook=_number))


def _number(value: dict[str, Any]) -> Any:
    """Return the number that transformers writes as {"__float__": "Infinity"}; anything else as it is."""
    return float(value["__float__"]) if set(value) == {"__float__"} else value


@dataclass(frozen=True)
class EmptyModel:
    """Builds the model of a config.json on the meta device: shapes, no numbers."""

    config: str  # JSON
    number_bytes: int = 2  # bfloat16; 4: float32

    def __call__(self) -> Any:
        from transformers import AutoConfig

        values = json.loads(self.config)
        dtype = torch.float32 if self.number_bytes == 4 else torch.bfloat16
        with quiet(), torch.device("meta"):
            model = loader_for(values).from_config(AutoConfig.for_model(**values), dtype=dtype)
            settle_architecture(model)
        return model


@lru_cache(maxsize=32)
def _size_of_empty(empty: EmptyModel) -> Size:
    return replace(size_of(empty()), empty=empty)


def _counts(core: Any) -> dict[int, int]:
    """Return how many numbers each tensor of weights stands for, by its id, without those of adapters.

    A linear layer in 4 bits holds two in a byte.
    """
    counts = {id(one): one.numel() for name, one in core.named_parameters() if ".lora_" not in name}
    for layer in core.modules():
        if isinstance(layer, torch.nn.Linear) and not layer.weight.is_floating_point():
            counts[id(layer.weight)] = layer.in_features * layer.out_features
    return counts


def _read_by_text(core: Any, counts: dict[int, int]) -> int:
    """Count the weights of decoder and head; an input embedding besides the head is only looked up."""
    looked_up, head = embedding_weights(core)
    read = {id(one) for one in core.get_decoder().parameters()} | {id(head)}
    tables = {id(m.weight) for m in core.get_decoder().modules() if isinstance(m, torch.nn.Embedding)}
    only_looked_up = (tables | {id(looked_up)}) - {id(head)}
    return sum(counts[weight] for weight in counts.keys() & (read - only_looked_up))


def _used(config: Any) -> int:
    return next((int(used) for name in USED_EXPERTS if (used := getattr(config, name, None))), 1)


def _matrices(core: Any, experts: int, used: int) -> list[Matrix]:
    targets = linear_targets(core)
    found = []
    for name in targets.modules:
        found.append(Matrix(*matrix_shape(plain_layer(core.get_submodule(name)))))
    for name in targets.parameters:
        owner, _, key = name.rpartition(".")
        shape = getattr(plain_layer(core.get_submodule(owner)), key).shape
        stacked = len(shape) == 3
        found.append(Matrix(shape[-1], shape[-2], experts if stacked else 1, used if stacked else 1))
    return found


def _attention(core: Any, config: Any) -> list[tuple[int, int]]:
    """Return (heads times width, numbers cached for a token) of each attention layer, by its projections."""
    found = []
    for module in core.get_decoder().modules():
        children = {name: plain_layer(one) for name, one in module.named_children()}
        layers = {name: one for name, one in children.items() if is_linear(one)}
        output = next((layers.pop(name) for name in OUTPUTS if name in layers), None)
        if output is None or not type(module).__name__.endswith("Attention"):
            continue
        wide = matrix_shape(output)[0]
        found.append((wide, _cached(layers, wide, config)))
    return found


def _cached(layers: dict[str, Any], wide: int, config: Any) -> int:
    if "kv_b_proj" in layers:  # multi-head latent attention: the latent and the rotary part are cached
        return config.kv_lora_rank + config.qk_rope_head_dim
    if "q_proj" in layers:  # shared or tied ones have no projection of that name
        keys_values = [layers[name] for name in ("k_proj", "v_proj") if name in layers]
        return sum(matrix_shape(one)[1] for one in keys_values)
    return max(
        0, sum(matrix_shape(one)[1] for one in layers.values()) - wide
    )  # queries, keys and values in one
