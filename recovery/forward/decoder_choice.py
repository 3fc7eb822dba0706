"""Choose how a model decodes, by trial: the first way that gives the numbers of its own forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from recovery.forward import graph_decoder
from recovery.forward.common_beginning import SAVED
from recovery.forward.decoder import Decoder
from recovery.forward.eval_mode import evaluating
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import row_sharing, unwrap
from recovery.forward.isolation import PADDING, Rows, Sharing, rows_stay_apart
from recovery.forward.model_decoder import ATTENTION, ModelDecoder
from recovery.forward.passed_trials import tried
from recovery.forward.unpadded_decoders import GroupedDecoder, OwnCacheDecoder, RereadDecoder
from recovery.forward.varlen import VARLEN

STEPS = 3  # tokens that a trial decodes
BEGINNING = 6  # tokens of a trial in which all rows begin alike


@dataclass(frozen=True)
class Way:
    """A decoder, the attention that it computes with, and which rows it decodes together."""

    decoder: type[ModelDecoder | OwnCacheDecoder | RereadDecoder]
    attention: str
    sharing: Sharing
    description: str
    saves_at_least: float = math.inf  # as of its decoders

    def make(self, model: Any, pad_id: int, max_new_tokens: int) -> Decoder:
        """Return a decoder of the model inside `decoding`."""
        asked = model, pad_id, max_new_tokens
        if not self.sharing.is_limited:  # as of a ModelDecoder alone
            return self.set_up(graph_decoder.decoder_of(*asked) or ModelDecoder(*asked))
        of_group: Callable[[], Decoder] = partial(self.decoder, model)
        if issubclass(self.decoder, ModelDecoder):
            of_group = partial(self.decoder, *asked)
        return GroupedDecoder(of_group, self.sharing, model.get_input_embeddings().weight.device)

    def set_up(self, decoder: Decoder) -> Decoder:
        """Return a decoder that reads what all prompts begin with once, where this way may."""
        decoder.saves_at_least = self.saves_at_least
        return decoder


_chosen: WeakKeyDictionary[Any, Way] = WeakKeyDictionary()


def decoder_of(model: Any, pad_id: int, max_new_tokens: int) -> Decoder:
    """Return the fastest decoder for a model inside `decoding`."""
    way = decoding_way(model)
    apart = row_sharing(model).has_boundary
    fast = None if apart else fast_path().decoder(model, pad_id, max_new_tokens)
    return way.make(model, pad_id, max_new_tokens) if fast is None else way.set_up(fast)


@contextmanager
def decoding(model: Any) -> Iterator[Any]:
    """Yield the bare model in eval and inference mode, with its way's attention; restore all of it.

    A PEFT wrapper's forward only costs time: the adapters are in the modules. Layers compiled for training
    are not compiled again for single tokens.
    """
    inner = unwrap(model)
    with evaluating(model), torch.inference_mode(), _uncompiled(inner), _without_cudnn_attention():
        with _attention(inner, decoding_way(inner).attention):
            yield inner


def decoding_way(model: Any) -> Way:
    """Return how an unwrapped model decodes; tried once."""
    if model not in _chosen:
        _chosen[model] = tried(
            "decoding", model, lambda way: way.saves_at_least == SAVED, lambda: _choose(model)
        )
    return _chosen[model]


def _choose(model: Any) -> Way:
    """Return the first way that passes its trial, and whether a common beginning may be read once."""
    ways = _ways(model)
    chosen = next((way for way in ways[:-1] if _is_sound(model, way)), ways[-1])
    return replace(chosen, saves_at_least=SAVED) if _begins_soundly(model, chosen) else chosen


@contextmanager
def decoding_by(model: Any, way: Way) -> Iterator[None]:
    """Make an unwrapped model decode in this way inside the block, untried, so that ways can be compared."""
    before = decoding_way(model)
    _chosen[model] = way
    try:
        yield
    finally:
        _chosen[model] = before


def _ways(model: Any) -> list[Way]:
    """Return all ways, the fastest first; the last is the model's own forward pass."""
    own = model.config._attn_implementation
    sharing = row_sharing(model)
    in_place = ATTENTION if own in ("sdpa", VARLEN) else own
    alone = replace(sharing, equal_lengths=True)
    return [
        Way(ModelDecoder, in_place, sharing, "in padded rows"),
        Way(ModelDecoder, own, sharing, "in padded rows"),
        Way(OwnCacheDecoder, own, alone, "in rows of one length"),
        Way(RereadDecoder, own, alone, "without a cache"),
    ]


def _begins_soundly(model: Any, way: Way) -> bool:
    """Return whether that also holds for rows whose common beginning is read once.

    Where long rows change the rotary frequencies, a beginning read alone would have those of a short one.
    """
    if way.decoder is not ModelDecoder or way.sharing.is_limited:
        return False
    return _is_sound(model, replace(way, saves_at_least=1), BEGINNING)


def _is_sound(model: Any, way: Way, alike: int = 0) -> bool:
    """Return whether rows decoded together, with a KV cache, get the logits of a forward pass each.

    The rows may begin with `alike` tokens that all of them share.
    """
    beginning = list(range(PADDING + 1, PADDING + 1 + alike))
    own = model.config._attn_implementation

    def together(rows: Rows) -> Iterator[Tensor]:
        with _attention(model, way.attention):
            decoder = way.make(model, PADDING, STEPS)
            yield decoder.prefill([beginning + row[:-STEPS] for row in rows])
            for step in range(STEPS):
                token_B = torch.tensor([row[step - STEPS] for row in rows], device=decoder.device)
                yield decoder.step(token_B)

    def alone(row: list[int]) -> Tensor:
        with _attention(model, own):
            tokens_BT = torch.tensor([beginning + row], device=device)
            logits_V: Tensor = model(tokens_BT, use_cache=False).logits[0, -1]
        return logits_V

    device = model.get_input_embeddings().weight.device
    trace = way.decoder is ModelDecoder and not alike
    return rows_stay_apart(model, together, alone, trace)


@contextmanager
def _attention(model: Any, name: str) -> Iterator[None]:
    """Make the model compute with this attention inside the block."""
    before = model.config._attn_implementation
    try:
        if name != before:
            model.config._attn_implementation = name
        yield
    finally:
        if name != before:
            model.config._attn_implementation = before


def _uncompiled(model: Any) -> AbstractContextManager[Any]:
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


@contextmanager
def _without_cudnn_attention() -> Iterator[None]:
    """Leave sdpa its other kernels inside the block.

    cuDNN's, which sdpa prefers on Hopper and Blackwell, builds a plan for every new shape, so one for each
    token: each is one slot more.
    """
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
