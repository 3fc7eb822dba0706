"""transformers' layers on a batch without its padding: one row, in which each sequence sees itself alone.

Nothing in a transformer but its attention needs to know where a sequence begins, so attention is told
(`cu_seq_lens`, as transformers calls it), no mask is made and no padding is computed. On a GPU that is
PyTorch's own flash kernel for sequences of any length; on a CPU sdpa of those that are about as long. A model
is read this way only after its own states and gradients came out the same both ways when it was loaded.

Shapes: B rows, T columns, N tokens that are no padding, D hidden size; heads H, W numbers wide.
"""

from __future__ import annotations

import inspect
import logging
import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.batches.length_groups import alike
from recovery.forward.equality import UNLIKE, near_by_token
from recovery.forward.kv_cache import sight
from recovery.forward.packed import Packed, PackedReader, Read

log = logging.getLogger(__name__)
FLAT = "flat"  # sdpa to a pass that does not say where its sequences begin
GROUP_TOKENS = 2**14  # tokens that attention takes at once on a CPU, padding included
DROPOUTS = ("attention_dropout", "attn_pdrop")
LENGTHS = (5, 1, 3)  # of the sequences that it is proven on


def use_flat(model: Any) -> None:
    """From now on the model is read flat, if it can be."""
    if model.config._attn_implementation != "sdpa":
        return
    why = "its layers need more than where a sequence begins"
    try:
        if _may_be(model):
            model.config._attn_implementation = FLAT
            if _agrees(model):
                return
            why = "its states come out otherwise"
    except (*UNLIKE, AssertionError) as error:
        why = str(error)
    model.config._attn_implementation = "sdpa"
    log.info("flat: %s is read in rows: %s", type(model).__name__, why)


def flat_reader(model: Any, plain: Read) -> FlatReader | None:
    """For a model that has been found to be read flat; `plain` reads what it can't."""
    return FlatReader(model, plain) if model.config._attn_implementation == FLAT else None


class FlatReader(PackedReader):
    """Reads all sequences in one row; where a layer sees less than the longest, `plain` reads them."""

    def __init__(self, model: Any, plain: Read) -> None:
        self.model, self.plain = model, plain
        # The packages of flash attention know windows.
        self.sight = sight(model) if model.config._attn_implementation == FLAT else math.inf

    def __call__(
        self, tokens_BT: Tensor, attention_BT: Tensor | None = None, positions_BT: Tensor | None = None
    ) -> Tensor:
        given = tokens_BT, attention_BT, positions_BT
        return super().__call__(*given) if self._sees(*given) else self.plain(self.model, *given)

    def at(
        self,
        wanted_BT: Tensor,
        tokens_BT: Tensor,
        attention_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
    ) -> Tensor:
        given = tokens_BT, attention_BT, positions_BT
        if self._sees(*given):
            return super().at(wanted_BT, *given)
        return self.plain(self.model, *given)[wanted_BT]

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        if not len(tokens.tokens_N):
            return self.model.get_input_embeddings()(tokens.tokens_N)
        states_ND = in_one_row(self.model, tokens)
        return states_ND if wanted_N is None else states_ND[wanted_N]

    def _sees(self, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None) -> bool:
        """Whether no sequence is longer than what every layer sees."""
        if tokens_BT.shape[1] <= self.sight:
            return True
        if positions_BT is not None:
            return int(positions_BT.max()) < self.sight
        return attention_BT is not None and int(attention_BT.sum(1).max()) <= self.sight


def in_one_row(model: Any, tokens: Packed, x_ND: Tensor | None = None) -> Tensor:
    """From the tokens, or from their embeddings."""
    starts = tokens.bounds.int()
    # A decoder that is given a mask makes none; the packages of flash attention want none.
    made = starts.view(1, 1, 1, -1) if model.config._attn_implementation == FLAT else None
    return _decoded(
        model,
        tokens.tokens_N[None],
        None if x_ND is None else x_ND[None],
        attention_mask=made,
        position_ids=tokens.positions_N[None],
        cu_seq_lens_q=starts,
        cu_seq_lens_k=starts,
        max_length_q=tokens.longest,
        max_length_k=tokens.longest,
    )[0]


def in_rows(model: Any, tokens: Packed, x_ND: Tensor | None = None) -> Tensor:
    """The same as transformers reads it, each sequence in a row of its own."""
    lengths = tokens.lengths.tolist()

    def rows(of_N: Tensor) -> Tensor:
        return pad_sequence(of_N.split(lengths), batch_first=True)

    there_BT = rows(torch.ones_like(tokens.tokens_N))
    states_BTD = _decoded(
        model,
        rows(tokens.tokens_N),
        None if x_ND is None else rows(x_ND),
        attention_mask=there_BT,
        position_ids=rows(tokens.positions_N),
    )
    return states_BTD[there_BT.bool()]


def _decoded(model: Any, tokens: Tensor, x: Tensor | None, **told: Any) -> Tensor:
    given = {"input_ids": tokens} if x is None else {"inputs_embeds": x}
    return model.get_decoder()(**given, use_cache=False, **told)[0]


# Attention --------------------------------------------------------------------------------------------------


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **settings: Any,
) -> tuple[Tensor, None]:
    """sdpa; where the pass says where its sequences begin, of each by itself."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    by = by_groups if query.device.type == "cpu" else at_once
    return by(module, query, key, value, cu_seq_lens_q, max_length_q, **settings), None


@torch.compiler.disable  # loops that are seldom twice as long
def by_groups(
    module: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, **settings: Any
) -> Tensor:
    """Rows of sequences about as long. Padding on the right needs no mask: none looks ahead."""
    groups, back_N = _groups(tuple(starts.tolist()))
    whole = [x[0].transpose(0, 1) for x in (query, key, value)]
    parts = []
    for places_ST in groups:
        rows = [
            x_NHW.index_select(0, places_ST.flatten()).unflatten(0, places_ST.shape).transpose(1, 2)
            for x_NHW in whole
        ]
        parts.append(sdpa_attention_forward(module, *rows, None, **settings)[0].flatten(0, 1))
    return torch.cat(parts).index_select(0, back_N)[None]


@lru_cache(maxsize=4)  # all layers ask for the same
@torch.inference_mode(False)  # and what is read now may be trained on next
def _groups(starts: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
    """Which tokens make each group's rows, any where there is none; and where in all of them each is."""
    begins, lengths = torch.tensor(starts[:-1]), torch.tensor(starts).diff()
    order_S = lengths.argsort(stable=True)
    groups, back_N, before = [], torch.empty(starts[-1], dtype=torch.long), 0
    for cut in alike(lengths[order_S].tolist(), GROUP_TOKENS):
        rows_S = order_S[cut]
        place_T = torch.arange(int(lengths[rows_S].max()))
        places_ST = begins[rows_S, None] + place_T
        there_ST = place_T < lengths[rows_S, None]
        back_N[places_ST[there_ST]] = before + there_ST.flatten().nonzero()[:, 0]
        groups.append(places_ST.where(there_ST, 0))
        before += places_ST.numel()
    return groups, back_N


def at_once(
    module: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, **settings: Any
) -> Tensor:
    q_NHW, k_NHW, v_NHW = (x[0].transpose(0, 1) for x in (query, key, value))
    mixed_NHW = varlen_attn(
        q_NHW,
        k_NHW,
        v_NHW,
        starts,
        starts,
        longest,
        longest,
        scale=settings.get("scaling"),
        window_size=(-1, 0),
        enable_gqa=True,
    )
    return mixed_NHW[None]  # type: ignore[call-overload]  # it gives more where more is asked for


AttentionInterface.register(FLAT, attend)
AttentionMaskInterface.register(FLAT, sdpa_mask)


# Whether it is right ----------------------------------------------------------------------------------------


def _may_be(model: Any) -> bool:
    """Recurrent states and alibi need more than where a sequence begins; dropout has no kernel."""
    accepts = inspect.signature(model.get_decoder().forward).parameters
    config = model.config.get_text_config()
    dropped = any(getattr(config, name, 0.0) for name in DROPOUTS)
    return {"position_ids", "kwargs"} <= set(accepts) and not dropped and sight(model) >= max(LENGTHS)


def _agrees(model: Any) -> bool:
    """States of a few tokens, and the gradients of their embeddings."""
    embed = model.get_input_embeddings()
    tokens = Packed.of([list(range(length)) for length in LENGTHS], embed.weight.device)
    found = []
    with torch.enable_grad():
        for read in (in_one_row, in_rows):
            x_ND = embed(tokens.tokens_N).detach().requires_grad_()
            states_ND = read(model, tokens, x_ND)
            uneven_D = torch.linspace(-1, 2, x_ND.shape[1], device=x_ND.device, dtype=x_ND.dtype)
            found.append([states_ND, *torch.autograd.grad((states_ND @ uneven_D).sum(), x_ND)])
    return all(near_by_token(one, other) for one, other in zip(*found, strict=True))
