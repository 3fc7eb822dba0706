"""Who writes: the Sampler protocol and the sampler that runs inside this process.

The in-process sampler decodes on transformers' own model. What makes it faster than `generate`: keys and
values are written in place instead of concatenated, grouped queries read them without repeating them, one
uniform number a row replaces noise over the whole vocabulary, prompts are read beside others of their length
and equal ones once, and rows that have ended leave the batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.errors import InputError, RecoverError
from recovery.forward import read_at_once, unwrap
from recovery.parallel import gathered
from recovery.rollouts import Rollouts

if TYPE_CHECKING:
    from recovery.models import ChatModel

__all__ = ["InProcessSampler", "Rollouts", "Sampler", "SamplingParams"]

LEAVE_SHARE = 0.25  # ended rows leave the batch when they are this share of it
ATTENTION = "recover_decode"


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. No top-p or top-k: a loss over the whole vocabulary needs samples from all of it."""

    max_new_tokens: int = 256
    temperature: float = 1.0  # 0 takes the most likely token
    seed: int = 0
    first: int = 0  # the place of the first prompt, where these are a part of a longer list

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise InputError(f"sampling: max_new_tokens {self.max_new_tokens}: give at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise InputError(
                f"sampling: temperature {self.temperature}: give 0 (greedy) or a positive number"
            )


class Sampler(Protocol):
    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]: ...  # fmt: skip


class InProcessSampler:
    """Samples from a ChatModel where it stands; its mode and attention are put back afterwards."""

    def __init__(self, chat_model: ChatModel, batch_size: int = 256) -> None:
        self.chat_model = chat_model
        self.batch_size = batch_size

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Rollouts:
        """One response a prompt, each with its log-probability under the distribution it was drawn from.

        At temperature 0 that distribution is a point; the log-probability is then the model's own.
        """
        responses, logprobs = self._sample(prompts, params, None)
        stops = set(self.chat_model.stop_ids)
        finished = [response[-1] in stops for response in responses]
        return Rollouts.from_samples(prompts, responses, logprobs, finished, self.chat_model.pad_id)

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:  # fmt: skip
        """Responses only, without their stop token; `on_progress(done, total)` after each batch."""
        responses, _ = self._sample(prompts, params, on_progress)
        return without_stops(responses, self.chat_model.stop_ids)

    def _sample(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams,
        on_progress: Callable[[int, int], None] | None,
    ) -> tuple[list[list[int]], list[list[float]]]:  # fmt: skip
        if not prompts or not all(prompts):
            raise InputError("sampling: no prompts, or an empty one: give at least one token each")
        # One row of numbers a prompt: what it draws depends on its place in the list and not on its batch.
        numbers = torch.rand(
            params.first + len(prompts), params.max_new_tokens, dtype=torch.float64,
            generator=torch.Generator().manual_seed(params.seed),
        )[params.first :]  # fmt: skip
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        responses: list[list[int]] = [[]] * len(prompts)
        logprobs: list[list[float]] = [[]] * len(prompts)
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            with gathered(self.chat_model.model), _decoding(self.chat_model.model) as model:
                batch = _Batch(model, self.chat_model, [prompts[i] for i in rows], numbers[rows], params)
                tokens, scores = batch.run()
            for i, row_tokens, row_scores in zip(rows, tokens, scores, strict=True):
                responses[i], logprobs[i] = row_tokens, row_scores
            if on_progress:
                on_progress(start + len(rows), len(order))
        return responses, logprobs


def without_stops(responses: Sequence[list[int]], stop_ids: Sequence[int]) -> list[list[int]]:
    return [response[:-1] if response[-1] in stop_ids else response for response in responses]


class _Batch:
    """One batch on its way from prompts to responses. Tensors ending in _B hold the rows still in the batch.

    All rows write the same slot S of the cache: a shorter prompt starts later, behind hidden slots.
    """

    def __init__(
        self,
        model: Any,
        chat_model: ChatModel,
        prompts: list[Sequence[int]],
        numbers_BT: Tensor,
        params: SamplingParams,
    ) -> None:
        self.model, self.params, self.device = model, params, torch.device(chat_model.device)
        self.prompts, self.pad_id, self.width = prompts, chat_model.pad_id, max(map(len, prompts))
        self.stops = torch.tensor(chat_model.stop_ids, device=self.device)
        self.rows_B = torch.arange(len(prompts), device=self.device)
        self.ended_B = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        self.lengths_B = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        self.numbers_BT = numbers_BT.to(self.device)
        self.accepts = set(inspect.signature(model.forward).parameters)
        self.in_place = _takes_own_cache(model, self.accepts)

    def run(self) -> tuple[list[list[int]], list[list[float]]]:
        """Read the prompts, then one token a step for every row until all have ended or the limit is met."""
        limit = self.params.max_new_tokens
        tokens_RT = torch.zeros(len(self.prompts), limit, dtype=torch.long, device=self.device)
        logprobs_RT = torch.zeros(len(self.prompts), limit, device=self.device)
        look_every = 1 if self.device.type == "cpu" else 8  # looking makes an accelerator wait
        logits_BV = self._read_prompts()
        for step in range(limit):
            token_B, logprob_B = choose(logits_BV, self.numbers_BT[:, step], self.params.temperature)
            tokens_RT[self.rows_B, step], logprobs_RT[self.rows_B, step] = token_B, logprob_B
            self.ended_B |= (token_B[:, None] == self.stops).any(1)
            if (step + 1) % look_every == 0:
                token_B = self._leave(token_B)
            if step + 1 == limit or not len(token_B):
                break
            logits_BV = self._next_logits(token_B, step)
        if not bool(logprobs_RT.isfinite().all()):
            raise RecoverError(
                "sampling: the model gives logits that are not finite: load a whole checkpoint"
            )
        return self._cut(tokens_RT, logprobs_RT)

    def _read_prompts(self) -> Tensor:
        """Each distinct prompt once, beside others of its length; then a row for everyone who asked."""
        distinct = sorted(dict.fromkeys(map(tuple, self.prompts)), key=len)
        groups = list(_by_tokens(distinct, read_at_once(self.device))) if self.in_place else [distinct]
        caches, logits = zip(*map(self._read, groups), strict=True)
        self.cache = _joined(caches, self.width) if self.in_place else caches[0]
        places = {prompt: i for i, prompt in enumerate(distinct)}
        rows = torch.tensor([places[tuple(prompt)] for prompt in self.prompts], device=self.device)
        self.cache.reorder_cache(rows)
        return torch.cat(logits)[rows]

    def _read(self, prompts: list[tuple[int, ...]]) -> tuple[Cache, Tensor]:
        """Left-padded prompts through the model: their cache and the logits that follow each."""
        width = max(map(len, prompts))
        tokens = [[self.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        starts_B1 = torch.tensor([[width - len(prompt)] for prompt in prompts], device=self.device)
        offsets_BT = torch.arange(width, device=self.device) - starts_B1
        mask_BT = offsets_BT >= 0 if min(map(len, prompts)) < width else None
        cache = DynamicCache(config=self.model.config)
        if self.in_place:
            cache = Cache(layers=[_InPlaceLayer() for _ in cache.layers])
        tokens_BT = torch.tensor(tokens, device=self.device)
        return cache, self._forward(tokens_BT, offsets_BT.clamp(min=0), mask_BT, cache)

    def _next_logits(self, token_B: Tensor, step: int) -> Tensor:
        """Logits after one more token a row."""
        seen = self.width + step + 1
        visible_BS = torch.arange(seen, device=self.device) >= self.width - self.lengths_B[:, None]
        mask = visible_BS
        if self.in_place:
            _make_room(self.cache, seen)
            hidden = torch.full((), float("-inf"), dtype=self.model.dtype, device=self.device)
            mask = torch.where(visible_BS, 0.0, hidden)[:, None, None]
        return self._forward(token_B[:, None], (self.lengths_B + step)[:, None], mask, self.cache)

    def _forward(self, tokens_BT: Tensor, positions_BT: Tensor, mask: Tensor | None, cache: Cache) -> Tensor:
        """Logits of the last position."""
        optional = {"position_ids": positions_BT, "logits_to_keep": 1}
        accepted = {name: value for name, value in optional.items() if name in self.accepts}
        out = self.model(tokens_BT, attention_mask=mask, past_key_values=cache, use_cache=True, **accepted)
        return out.logits[:, -1]

    def _leave(self, token_B: Tensor) -> Tensor:
        """Let ended rows go once there are enough of them to be worth moving the cache."""
        n_ended = int(self.ended_B.sum())
        if n_ended == len(token_B):
            return token_B[:0]
        if n_ended < LEAVE_SHARE * len(token_B):
            return token_B
        kept = (~self.ended_B).nonzero()[:, 0]
        self.cache.reorder_cache(kept)
        for name in ("rows_B", "ended_B", "lengths_B", "numbers_BT"):
            setattr(self, name, getattr(self, name)[kept])
        return token_B[kept]

    def _cut(self, tokens_RT: Tensor, logprobs_RT: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """Each row up to its first stop token: ended rows went on for a while before they left."""
        stop_RT = (tokens_RT[..., None] == self.stops).any(-1)
        ends = torch.where(stop_RT.any(1), stop_RT.int().argmax(1) + 1, tokens_RT.shape[1]).tolist()
        tokens = [row[:end] for row, end in zip(tokens_RT.tolist(), ends, strict=True)]
        return tokens, [row[:end] for row, end in zip(logprobs_RT.tolist(), ends, strict=True)]


def choose(logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The token where the cumulative distribution passes each row's number; its fp32 log-probability."""
    logits_BV = logits_BV.float()
    if temperature not in (0.0, 1.0):
        logits_BV = logits_BV / temperature
    p_BV = logits_BV.softmax(-1)
    if temperature == 0.0:
        token_B = logits_BV.argmax(-1)
    else:
        # float64: in float32 the sum over a large vocabulary rounds its rare tokens away
        passed_BV = p_BV.cumsum(-1, dtype=torch.float64)
        target_B1 = numbers_B[:, None] * passed_BV[:, -1:]
        token_B = torch.searchsorted(passed_BV, target_B1, right=True)[:, 0]
        token_B = token_B.clamp(max=logits_BV.shape[-1] - 1)
    return token_B, p_BV.gather(-1, token_B[:, None])[:, 0].log()


class _InPlaceLayer(DynamicLayer):
    """Keys and values in a buffer with room ahead: a step writes its slot and returns what is written."""

    length = 0
    is_initialized: bool

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        start, self.length = self.length, self.length + key_states.shape[-2]
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states, value_states, True
            return key_states, value_states
        self.keys[:, :, start : self.length] = key_states
        self.values[:, :, start : self.length] = value_states
        return self.keys[:, :, : self.length], self.values[:, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def pad(self, before: int, after: int) -> tuple[Tensor, Tensor]:
        """Keys and values with empty slots around them."""
        return _wider(self.keys, before, after), _wider(self.values, before, after)


def _wider(slots_BHSD: Tensor, before: int, after: int) -> Tensor:
    """Slots before hold zeros, since a hidden slot still meets a probability of zero; those after are written
    before they are read."""
    batch, heads, filled, width = slots_BHSD.shape
    wide = slots_BHSD.new_empty(batch, heads, before + filled + after, width)
    wide[:, :, :before] = 0
    wide[:, :, before : before + filled] = slots_BHSD
    return wide


def _joined(caches: Sequence[Cache], width: int) -> Cache:
    """One cache from several read apart: their prompts end in the same slot."""
    joined = Cache(layers=[_InPlaceLayer() for _ in caches[0].layers])
    for i, layer in enumerate(joined.layers):
        parts = [cache.layers[i].pad(width - cache.layers[i].length, 0) for cache in caches]
        layer.update(torch.cat([keys for keys, _ in parts]), torch.cat([values for _, values in parts]))
    return joined


def _make_room(cache: Cache, seen: int) -> None:
    """Let the cache hold `seen` slots. It grows by a half: every growth moves all that is there."""
    room = cache.layers[0].keys.shape[-2]
    if seen > room:
        for layer in cache.layers:
            layer.keys, layer.values = layer.pad(0, max(16, seen // 2))


def _by_tokens(prompts: list[tuple[int, ...]], budget: int) -> Iterator[list[tuple[int, ...]]]:
    """Prompts sorted by length, cut where a group with its padding would pass the budget."""
    group: list[tuple[int, ...]] = []
    for prompt in prompts:
        if group and (len(group) + 1) * len(prompt) > budget:
            yield group
            group = []
        group.append(prompt)
    yield group


def _takes_own_cache(model: Any, accepts: set[str]) -> bool:
    """Whether every layer sees the whole past through the mask it is given.

    Sliding windows, recurrent states, alibi and other kernels keep transformers' own caches and masks.
    """
    whole = all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)
    explicit = model.config._attn_implementation == ATTENTION and "position_ids" in accepts
    return whole and explicit and not getattr(model.config, "alibi", False)


@contextmanager
def _decoding(model: Any) -> Iterator[Any]:
    """Eval and inference mode, and this file's attention in place of sdpa; all put back afterwards.

    A PEFT wrapper is passed by: its adapters live in the modules, its forward only costs time.
    """
    inner = unwrap(model)
    attention = inner.config._attn_implementation
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        if attention == "sdpa":
            inner.config._attn_implementation = ATTENTION
        with torch.inference_mode():
            yield inner
    finally:
        inner.config._attn_implementation = attention
        for module, training in modes:
            module.training = training


def decode_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """sdpa that, for one new token, takes a group's queries as so many positions of one head.

    The same numbers as repeating the cache for every query head, without the copy. On a CPU two matrix
    products beat the kernel.
    """
    batch, heads, positions, width = query.shape
    if positions > 1 or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(batch, key.shape[1], -1, width)
    scale = kwargs.get("scaling") or width**-0.5
    if query.device.type == "cpu" and attention_mask.dtype == query.dtype:
        scores = torch.matmul(grouped * scale, key.transpose(2, 3)).add_(attention_mask)
        out = torch.matmul(scores.softmax(-1, dtype=torch.float32).to(value.dtype), value)
    else:
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scale)
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, decode_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
