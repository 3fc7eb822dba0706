"""The sampler that runs inside this process.

It decodes on transformers' own model. What makes it faster than `generate`: keys and
values are written in place instead of concatenated, grouped queries read them without repeating them, one
uniform number a row replaces noise over the whole vocabulary, prompts are read beside others of their length
and equal ones once, rows that have ended leave the batch, and small models take a shorter way (decoder.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.batches.length_groups import alike
from recovery.batches.rollouts import Rollouts
from recovery.cpu import kernels
from recovery.cpu.kernels import Rows, Writing
from recovery.cpu.llama_decode import PROVEN, Decoder, decoder_of
from recovery.distributed import gathered
from recovery.errors import InputError, RecoverError
from recovery.forward.equality import UNLIKE, near
from recovery.forward.hidden_states import READ_TOKENS, by_hand, logits_of, read_at_once, unwrap
from recovery.forward.kv_cache import Slots, attend, mask_of, sees_all
from recovery.forward.varlen import FLAT
from recovery.sampling.protocol import SamplingParams

if TYPE_CHECKING:
    from recovery.cpu.llama_forward import Reader
    from recovery.models.chat_model import ChatModel

AT_ONCE = 8  # steps, before anybody is heard who wants to stop
LEAVE_SHARE = 0.125  # ended rows leave the batch when they are this share of it
PIECE, BELOW_ONE = 128, 1 - 1e-12  # entries of a vocabulary; a share that rounding leaves below the whole
ATTENTION = "recover_decode"


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
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[list[int]]:
        """Responses only, without their stop token; `on_progress(done, total)` after each batch."""
        responses, _ = self._sample(prompts, params, on_progress)
        return without_stops(responses, self.chat_model.stop_ids)

    def _sample(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        on_progress: Callable[[int, int], None] | None,
    ) -> tuple[list[list[int]], list[list[float]]]:
        if not prompts or not all(prompts):
            raise InputError("sampling: no prompts, or an empty one: give at least one token each")
        # One row of numbers a prompt: what it draws depends on its place in the list and not on its batch.
        numbers = torch.rand(
            params.first + len(prompts),
            params.max_new_tokens,
            dtype=torch.float64,
            generator=torch.Generator().manual_seed(params.seed),
        )[params.first :]
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
    """One batch on its way from prompts to responses: R rows, of which B are still in the batch.

    All rows write the same slot S of the cache: a shorter prompt starts later, behind hidden slots.
    """

    alone = True  # no one else has a say in what follows

    def __init__(
        self,
        model: Any,
        chat_model: ChatModel,
        prompts: list[Sequence[int]],
        numbers_RT: Tensor,
        params: SamplingParams,
    ) -> None:
        self.model, self.params, self.device = model, params, torch.device(chat_model.device)
        self.prompts, self.pad_id, self.width = prompts, chat_model.pad_id, max(map(len, prompts))
        self.stops = torch.tensor(chat_model.stop_ids, device=self.device)
        self.rows_B = torch.arange(len(prompts), device=self.device)
        self.ended_B = torch.zeros(len(prompts), dtype=torch.bool, device=self.device)
        self.starts_B = torch.tensor([self.width - len(prompt) for prompt in prompts], device=self.device)
        self.numbers_RT = numbers_RT.to(self.device)
        self.accepts = set(inspect.signature(model.forward).parameters)
        self.in_place = _takes_own_cache(model, self.accepts)
        self.decoder: Decoder | None = None
        self.asked = False

    def run(self) -> tuple[list[list[int]], list[list[float]]]:
        """Read the prompts, then one token a step for every row until all have ended or the limit is met."""
        limit = self.params.max_new_tokens
        self.tokens_RT = torch.zeros(len(self.prompts), limit, dtype=torch.long, device=self.device)
        self.logprobs_RT = torch.zeros(len(self.prompts), limit, device=self.device)
        step, token_B = 1, self._take(self._read_prompts(), 0)
        while step < limit and len(token_B):
            decoder = self._shorter_way(token_B)
            if decoder and decoder.writes and self.alone:
                step, token_B = self._write_on(decoder, token_B, step)
            else:
                step, token_B = step + 1, self._take(self._next_logits(token_B), step)
        if not bool(self.logprobs_RT.isfinite().all()):
            raise RecoverError(
                "sampling: the model gives logits that are not finite: load a whole checkpoint"
            )
        return self._cut()

    def _take(self, logits_BV: Tensor, step: int) -> Tensor:
        """Each row's token; those that have ended leave."""
        token_B, logprob_B = choose(logits_BV, self.numbers_RT[self.rows_B, step], self.params.temperature)
        self.tokens_RT[self.rows_B, step], self.logprobs_RT[self.rows_B, step] = token_B, logprob_B
        self.ended_B |= (token_B[:, None] == self.stops).any(1)
        look_every = 1 if self.device.type == "cpu" else 8  # looking makes an accelerator wait
        return self._leave(token_B) if (step + 1) % look_every == 0 else token_B

    def _write_on(self, decoder: Decoder, token_B: Tensor, step: int) -> tuple[int, Tensor]:
        """Some steps at once: how many have been made then, and the rows that go on."""
        seen = self.cache.get_seq_length()
        self.cache.make_room(seen + 1)
        steps = min(self.params.max_new_tokens - step, self.cache.room - seen, AT_ONCE)
        rows = Rows(token_B, self.starts_B, self.cache.places(len(token_B)), self.rows_B)
        if len(self.ended_B):  # from here on who ends leaves at once
            rows, self.ended_B = rows.take(~self.ended_B), self.ended_B[:0]
        warmth = self.params.temperature
        numbers_RT = self.numbers_RT if warmth else None
        writing = Writing(self.tokens_RT, self.logprobs_RT, numbers_RT, 1 / (warmth or 1.0), self.stops)
        made, rows = decoder.write_on(rows, self.cache, writing, step, steps)
        self.starts_B, self.cache.places_B, self.rows_B = rows.start_B, rows.place_B, rows.which_B
        return step + made, rows.token_B

    def _read_prompts(self) -> Tensor:
        """Each distinct prompt once, beside others of its length; then a row for everyone who asked."""
        distinct = sorted(dict.fromkeys(map(tuple, self.prompts)), key=len)
        reader = by_hand(self.model) if self.in_place else None
        if reader:
            logits_BV = logits_of(self.model, self._remembered(reader, distinct))
        else:
            at_once = read_at_once(self.model)
            groups = alike(list(map(len, distinct)), at_once) if self.in_place else [slice(None)]
            caches, logits = zip(*(self._read(distinct[group]) for group in groups), strict=True)
            self.cache = Slots.joined(caches, self.width) if self.in_place else caches[0]
            logits_BV = torch.cat(logits)
        places = {prompt: i for i, prompt in enumerate(distinct)}
        rows = torch.tensor([places[tuple(prompt)] for prompt in self.prompts], device=self.device)
        if torch.equal(rows, torch.arange(len(distinct), device=self.device)):
            return logits_BV
        self.cache.reorder_cache(rows)
        return logits_BV[rows]

    def _remembered(self, reader: Reader, prompts: list[tuple[int, ...]]) -> Tensor:
        """Where padding costs nothing: the last state of each prompt."""
        lengths = list(map(len, prompts))
        self.cache = reader.slots(lengths)
        groups = alike(lengths, READ_TOKENS["no padding"])
        return torch.cat([reader.remember(prompts[group], self.cache, group.start) for group in groups])

    def _read(self, prompts: list[tuple[int, ...]]) -> tuple[Cache, Tensor]:
        """Left-padded prompts through the model: their cache and the logits that follow each."""
        width = max(map(len, prompts))
        tokens = [[self.pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
        starts_B1 = torch.tensor([[width - len(prompt)] for prompt in prompts], device=self.device)
        offsets_BT = torch.arange(width, device=self.device) - starts_B1
        mask_BT = offsets_BT >= 0 if min(map(len, prompts)) < width else None
        cache: Cache = DynamicCache(config=self.model.config)
        if self.in_place:
            cache = Slots(len(cache.layers))
        tokens_BT = torch.tensor(tokens, device=self.device)
        return cache, self._forward(tokens_BT, offsets_BT.clamp(min=0), mask_BT, cache)

    def _next_logits(self, token_B: Tensor) -> Tensor:
        """Logits after one more token a row."""
        seen = self.cache.get_seq_length() + 1
        if not self.in_place:
            visible_BS = torch.arange(seen, device=self.device) >= self.starts_B[:, None]
            return self._forward(token_B[:, None], seen - 1 - self.starts_B[:, None], visible_BS, self.cache)
        self.cache.make_room(seen)
        if decoder := self._shorter_way(token_B):
            return decoder.logits(token_B, self.starts_B, self.cache)
        return self._by_model(token_B)

    def _by_model(self, token_B: Tensor) -> Tensor:
        seen = self.cache.get_seq_length() + 1
        mask = mask_of(self.starts_B, seen, self.model.dtype)
        return self._forward(token_B[:, None], seen - 1 - self.starts_B[:, None], mask, self.cache)

    def _shorter_way(self, token_B: Tensor) -> Decoder | None:
        if not self.asked:
            self.decoder, self.asked = self._proven_decoder(token_B) if self.in_place else None, True
        return self.decoder

    def _proven_decoder(self, token_B: Tensor) -> Decoder | None:
        """The model's weights laid out for decoding, if that says what the model says: of the first step that
        a model takes, which is then undone."""
        decoder = decoder_of(self.model)
        if decoder is None or self.model in PROVEN:
            return decoder
        seen = self.cache.get_seq_length()
        self.cache.make_room(seen + 1)
        own_BV = self._by_model(token_B)
        self.cache.fill_to(seen)
        try:
            PROVEN[self.model] = near(decoder.logits(token_B, self.starts_B, self.cache), own_BV)
        except UNLIKE:
            PROVEN[self.model] = False
        self.cache.fill_to(seen)
        return decoder if PROVEN[self.model] else None

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
        kept = remaining(self.ended_B)
        self.cache.reorder_cache(kept)
        for name in ("rows_B", "ended_B", "starts_B"):
            setattr(self, name, getattr(self, name)[kept])
        return token_B[kept]

    def _cut(self) -> tuple[list[list[int]], list[list[float]]]:
        """Each row up to its first stop token: ended rows may go on for a while before they leave."""
        stop_RT = (self.tokens_RT[..., None] == self.stops).any(-1)
        ends = torch.where(stop_RT.any(1), stop_RT.int().argmax(1) + 1, stop_RT.shape[1]).tolist()
        tokens = [row[:end] for row, end in zip(self.tokens_RT.tolist(), ends, strict=True)]
        return tokens, [row[:end] for row, end in zip(self.logprobs_RT.tolist(), ends, strict=True)]


def remaining(ended_B: Tensor) -> Tensor:
    """The rows that go on: the last of them take the places of ended ones, so that few move."""
    going = (~ended_B).nonzero()[:, 0]
    rows = torch.arange(len(going), device=ended_B.device)
    rows[ended_B[: len(going)]] = going[going >= len(going)]
    return rows


def choose(logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The token where the cumulative distribution passes each row's number; its fp32 log-probability."""
    logits_BV = logits_BV.float()
    if temperature and (drawn := kernels.draw(logits_BV, numbers_B, temperature)):
        return drawn
    if temperature not in (0.0, 1.0):
        logits_BV = logits_BV / temperature
    p_BV = logits_BV.softmax(-1)
    token_B = logits_BV.argmax(-1) if temperature == 0.0 else _passed(p_BV, numbers_B)
    return token_B, p_BV.gather(-1, token_B[:, None])[:, 0].log()


def _passed(p_BV: Tensor, numbers_B: Tensor) -> Tensor:
    """Where in each row the running sum passes this share of the whole: the piece P first, then its entry E.

    Running sums are in float64, as in float32 rare tokens of a large vocabulary are rounded away; and only
    over sums of pieces and within one of them, as they are slow.
    """
    rows, vocabulary = p_BV.shape
    if rest := -vocabulary % PIECE:
        p_BV = pad(p_BV, (0, rest))
    p_BPE = p_BV.view(rows, -1, PIECE)
    ends_BP = pad(p_BPE.sum(-1).cumsum(-1, dtype=torch.float64), (1, 0))
    target_B1 = numbers_B[:, None].clamp(max=BELOW_ONE) * ends_BP[:, -1:]
    piece_B1 = (torch.searchsorted(ends_BP, target_B1, right=True) - 1).clamp_(max=p_BPE.shape[1] - 1)
    within_BE = p_BPE[torch.arange(rows, device=p_BV.device), piece_B1[:, 0]].cumsum(-1, dtype=torch.float64)
    left_B1 = torch.minimum(target_B1 - ends_BP.gather(1, piece_B1), within_BE[:, -1:] * BELOW_ONE)
    entry_B1 = torch.searchsorted(within_BE, left_B1, right=True)
    return (piece_B1 * PIECE + entry_B1)[:, 0].clamp_(max=vocabulary - 1)


def _takes_own_cache(model: Any, accepts: set[str]) -> bool:
    """Whether every layer sees the whole past through the mask it is given.

    Sliding windows, recurrent states, alibi and other kernels keep transformers' own caches and masks.
    """
    explicit = model.config._attn_implementation == ATTENTION and "position_ids" in accepts
    return explicit and sees_all(model)


@contextmanager
def _decoding(model: Any) -> Iterator[Any]:
    """Eval and inference mode, and this file's attention in place of sdpa; all put back afterwards.

    A PEFT wrapper is passed by: its adapters live in the modules, its forward only costs time. What has been
    compiled for training is not compiled again for a token a row.
    """
    inner = unwrap(model)
    attention = inner.config._attn_implementation
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        if attention in ("sdpa", FLAT):
            inner.config._attn_implementation = ATTENTION
        with torch.inference_mode(), _as_it_stands(inner):
            yield inner
    finally:
        inner.config._attn_implementation = attention
        for module, training in modes:
            module.training = training


def _as_it_stands(model: Any) -> AbstractContextManager[Any]:
    """Nothing is compiled meanwhile."""
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()


def decode_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """sdpa, but for one new token a row."""
    batch, heads, positions, width = query.shape
    if positions > 1 or attention_mask is None or kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    grouped = query.reshape(batch, key.shape[1], -1, width)
    out = attend(grouped, key, value, attention_mask, kwargs.get("scaling") or width**-0.5)
    return out.reshape(batch, 1, heads, value.shape[-1]), None


AttentionInterface.register(ATTENTION, decode_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
