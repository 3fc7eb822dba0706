"""Count the memory of a model's forward and backward pass by running it on PyTorch's meta device.

Nothing is computed or allocated there, yet every tensor has a size and a lifetime. So the count is that of
the model's own code: what its norms keep in fp32, what an adapter copies, what checkpointing drops.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

from recovery.forward.hidden_states import decoder_layers
from recovery.forward.unpadded_decoders import CACHES
from recovery.models.adapters import LoraSpec, with_adapter

ATTENTION = "recover_counted"
ROW = 256  # tokens of a sequence
ROWS = 256, 512  # sequences of two passes; the difference leaves out what does not grow with the tokens
META = torch.device("meta")
REMEMBERED = 4096  # operations whose results' shapes are known


@dataclass(frozen=True)
class Training:
    """The bytes per token that a forward and backward pass holds beside weights and their gradients."""

    kept: float  # once the decoder's hidden states are there
    peak: float  # at most, until their gradient has gone back through all layers


@dataclass(frozen=True)
class Decoding:
    """What decoding holds for one row, in bytes."""

    cache: float  # keys, values and recurrent states
    step: float  # beside them while one token more is read


def count_training(model: Any, rank: int | None, recomputing: bool) -> Training:
    """Count a training pass on the meta device, with an adapter of that rank if any.

    `recomputing` is gradient checkpointing."""
    model.requires_grad_(True)
    if recomputing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return Training(*_over_depths(model, _training, rank))


def count_reading(model: Any) -> float:
    """Count the bytes per token of a pass without gradients, of a model on the meta device."""
    return _over_depths(model.eval(), _reading)[0]


def count_decoding(model: Any, tokens: int) -> Decoding:
    """Count what decoding holds for a row of so many tokens, of a model on the meta device."""
    return Decoding(*_over_depths(model.eval(), lambda model: _decode(model, tokens)))


def _over_depths(
    model: Any, count: Callable[[Any], tuple[float, ...]], rank: int | None = None
) -> tuple[float, ...]:
    """Count on the meta device, with an adapter of that rank if any.

    Of repeated layers only a few are run: what one more period of them adds is counted and multiplied.
    """
    name, layers = decoder_layers(model)
    depths, more = _depths(_kinds(model, layers))
    model.config._attn_implementation = ATTENTION
    found: list[tuple[float, ...]] = []
    with _unread_masks(), torch.device("meta"):
        for depth in reversed(depths):
            if name:
                model.get_decoder().set_submodule(name, decoder_layers(model)[1][:depth])
            if rank and not found:
                with_adapter(model, LoraSpec(rank=rank))
            found.append(count(model))
    last = found[0]
    first = found[-1]
    return tuple(b + more * (b - a) for a, b in zip(first, last, strict=True))


def _depths(kinds: list[Any]) -> tuple[tuple[int, ...], int]:
    """Return how many layers to run, and how many periods of layers lie behind the last.

    Layers are left out where the kinds at the end repeat with a period. Two periods are always run: behind
    the first layers a pass holds the embeddings beside its states, which one period would not show.
    """
    count = len(kinds)
    for period in range(1, count // 3 + 1):
        repeats = 0
        while repeats < count - period and kinds[-1 - repeats] == kinds[-1 - repeats - period]:
            repeats += 1
        second = count - repeats + period  # the end of the second period
        first = second + (count - second) % period  # whole periods lie behind it
        if first + period < count:
            return (first, first + period), (count - first) // period - 1
    return (count,), 0


def _kinds(model: Any, layers: Any) -> list[Any]:
    """Return what tells one layer from another; the config says which attend to a window only."""
    attention = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if len(attention) != len(layers):
        attention = [""] * len(layers)
    shapes = [tuple((name, one.shape) for name, one in layer.named_parameters()) for layer in layers]
    return list(zip(map(type, layers), attention, shapes, strict=True))


def _training(model: Any) -> tuple[float, ...]:
    """Return bytes per token: those kept, and the peak."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    hooks = [weight.register_post_accumulate_grad_hook(_drop_gradient) for weight in trained]
    model.train()
    counted = _difference(model, _train)
    for hook in hooks:
        hook.remove()
    return counted


def _reading(model: Any) -> tuple[float, ...]:
    return _difference(model, _read)


def _difference(model: Any, run: Callable[[Any, Tensor, _Allocations], tuple[int, ...]]) -> tuple[float, ...]:
    """Return the growth per token, from a small to a larger batch, of each number that `run` returns."""
    found = []
    for rows in ROWS:
        with _Allocations(model) as allocations:
            found.append(run(model, torch.zeros(rows, ROW, dtype=torch.long), allocations))
    tokens = (ROWS[1] - ROWS[0]) * ROW
    return tuple((more - less) / tokens for less, more in zip(*found, strict=True))


def _read(model: Any, tokens_BT: Tensor, allocations: _Allocations) -> tuple[int, ...]:
    with torch.no_grad():
        model.get_decoder()(input_ids=tokens_BT, use_cache=False)
    return (allocations.peak,)


def _train(model: Any, tokens_BT: Tensor, allocations: _Allocations) -> tuple[int, ...]:
    states_BTD = model.get_decoder()(input_ids=tokens_BT, use_cache=False)[0]
    kept = allocations.held
    states_BTD.backward(torch.zeros_like(states_BTD))
    return kept, allocations.peak


def _decode(model: Any, tokens: int) -> tuple[float, ...]:
    """Return the bytes that a row adds: in the cache, and beside it during one step."""
    found = []
    for rows in (1, 2):
        tokens_BT = torch.zeros(rows, tokens, dtype=torch.long)
        with torch.no_grad(), _Allocations(model, tokens_BT) as allocations:
            read = _read_into_cache(model, tokens_BT[:, :-1], {})
            cache = _read_into_cache(model, tokens_BT[:, -1:], read)
            del read
            held = allocations.peak = allocations.held
            _read_into_cache(model, tokens_BT[:, :1], cache)
        found.append((held, allocations.peak - held))
    one, two = found
    return two[0] - one[0], two[1] - one[1]


def _read_into_cache(model: Any, tokens_BT: Tensor, cache: dict[str, Any]) -> dict[str, Any]:
    """Read tokens behind those in the cache that the model itself makes; return the cache."""
    out = model.get_decoder()(input_ids=tokens_BT, use_cache=True, **cache)
    return {name: out[name] for name in CACHES if name in out}


def _drop_gradient(weight: Tensor) -> None:
    weight.grad = None


class _Allocations(TorchDispatchMode):
    """Add up the tensors that live inside the block, and remember the highest sum."""

    def __init__(self, model: Any, *given: Tensor) -> None:
        """Leave out the model's weights and the tensors given."""
        super().__init__()
        there = [*model.parameters(), *model.buffers(), *given]
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in there}
        self.held = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = _made(func, args, kwargs or {})
        for tensor in (made,) if isinstance(made, Tensor) else tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            self.held += self.sizes[key]
            self.peak = max(self.peak, self.held)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.held -= self.sizes.pop(key)


_shapes: dict[Any, tuple[Any, ...]] = {}  # of new results, by the operation and what it was given


def _made(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what an operation makes; from the second time on an empty tensor like the first.

    PyTorch derives a shape in Python, and layers repeat theirs: half of a count went into that.
    """
    key = func, _described(args), _described(tuple(kwargs.items()))
    try:
        known = _shapes.get(key)
    except TypeError:  # an argument that has no hash
        return func(*args, **kwargs)
    if known:
        return torch.empty_strided(known[0], known[1], dtype=known[2], device=META)
    made = func(*args, **kwargs)
    if known is None:
        if len(_shapes) >= REMEMBERED:
            _shapes.clear()
        is_new = _is_new(func, made, (args, kwargs))
        _shapes[key] = (made.shape, made.stride(), made.dtype) if is_new else ()
    return made


def _described(value: Any) -> Any:
    """Return what decides a result's shape, as a value with a hash: of a tensor its own shape."""
    if isinstance(value, Tensor):
        return Tensor, value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(map(_described, value))
    return type(value), value


def _is_new(func: Any, made: Any, given: Any) -> bool:
    """Return whether an operation changes nothing and makes one tensor, no larger than its numbers are."""
    if func._schema.is_mutable or not isinstance(made, Tensor) or made.device != META:
        return False
    storage = made.untyped_storage()
    shared = {one.untyped_storage()._cdata for one in tree_leaves(given) if isinstance(one, Tensor)}
    alike = torch.empty_strided(made.shape, made.stride(), dtype=made.dtype, device=META)
    return storage._cdata not in shared and storage.nbytes() == alike.untyped_storage().nbytes()


class _FlashAttention(torch.autograd.Function):
    """Keeps what a flash-attention kernel keeps: queries, keys, values and the result."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, length, _ = query.shape
        mixed = query.new_empty(batch, length, heads, value.shape[-1])
        ctx.save_for_backward(
            query, key, value, mixed, query.new_empty(batch, heads, length, dtype=torch.float)
        )
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(one) for one in ctx.saved_tensors[:3])


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    return _FlashAttention.apply(query, key, value), None


@contextmanager
def _unread_masks() -> Iterator[None]:
    """Build no masks: transformers reads numbers for them, unless it takes the pass for a trace."""
    before = masking_utils.is_tracing
    masking_utils.is_tracing = lambda *_: True
    try:
        yield
    finally:
        masking_utils.is_tracing = before


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
