"""Read a batch by transformers' layers without padding: one row, in which each sequence attends to itself.

Only attention has to know where a sequence begins, so it gets the bounds (`cu_seq_lens` in transformers); no
mask is built and no padding computed. On a GPU attention is PyTorch's varlen flash kernel, on a CPU sdpa
over groups of similar length. A model is read this way only if a check at load time gives equal states and
gradients.

Shapes: B rows, T columns, N tokens that are not padding, D hidden size; H heads of width W; S sequences.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.batches.length_groups import length_groups
from recovery.forward.equality import NOT_APPLICABLE, close_per_token, first_tokens
from recovery.forward.kv_cache import attention_span
from recovery.forward.packed import Packed, PackedReader, Read
from recovery.forward.passed_trials import tried

log = logging.getLogger(__name__)
VARLEN = "varlen"  # plain sdpa where a pass gives no bounds
GROUP_TOKENS = 2**14  # that attention reads at once on a CPU, padding included
DROPOUTS = ("attention_dropout", "attn_pdrop")
LENGTHS = (5, 1, 3)  # of the sequences in the check at load time


def use_varlen(model: Any) -> None:
    """Read the model without padding from here on, if the check passes."""
    if model.config._attn_implementation != "sdpa":
        return
    why = "its layers need more than the bounds of sequences"
    try:
        if _is_candidate(model):
            model.config._attn_implementation = VARLEN
            if tried("varlen", model, bool, lambda: _equals_padded(model)):
                return
            why = "its states differ"
    except (*NOT_APPLICABLE, AssertionError) as error:
        why = str(error)
    model.config._attn_implementation = "sdpa"
    log.info("varlen: %s is read with padding: %s", type(model).__name__, why)


def varlen_reader(model: Any, plain: Read) -> VarlenReader | None:
    """Return the reader of a model that `use_varlen` accepted; `plain` reads what it can't."""
    return VarlenReader(model, plain) if model.config._attn_implementation == VARLEN else None


class VarlenReader(PackedReader):
    """Reads all sequences in one row; `plain` reads those longer than a layer's attention window."""

    def __init__(self, model: Any, plain: Read) -> None:
        self.model = model
        self.plain = plain
        # Flash-attention packages apply windows themselves.
        self.span = attention_span(model) if model.config._attn_implementation == VARLEN else math.inf

    def plain_for(
        self, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Callable[..., Tensor] | None:
        within = self._in_window(tokens_BT, attention_BT, positions_BT)
        return None if within else partial(self.plain, self.model)

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        if not len(tokens.tokens_N):
            return self.model.get_input_embeddings()(tokens.tokens_N)
        states_ND = in_one_row(self.model, tokens)
        return states_ND if wanted_N is None else states_ND[wanted_N]

    def _in_window(self, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None) -> bool:
        """Return whether no sequence is longer than the smallest attention window."""
        if tokens_BT.shape[1] <= self.span:
            return True
        if positions_BT is not None:
            return int(positions_BT.max()) < self.span
        return attention_BT is not None and int(attention_BT.sum(1).max()) <= self.span


def in_one_row(model: Any, tokens: Packed, x_ND: Tensor | None = None) -> Tensor:
    """Return the states (N, D) of tokens, or of their embeddings, read in one row."""
    starts = tokens.bounds.int()
    # A decoder builds no mask where it gets one; flash-attention packages want none.
    mask = starts.view(1, 1, 1, -1) if model.config._attn_implementation == VARLEN else None
    return _decoded(
        model,
        tokens.tokens_N[None],
        None if x_ND is None else x_ND[None],
        attention_mask=mask,
        position_ids=tokens.positions_N[None],
        cu_seq_lens_q=starts,
        cu_seq_lens_k=starts,
        max_length_q=tokens.longest,
        max_length_k=tokens.longest,
    )[0]


def in_rows(model: Any, tokens: Packed, x_ND: Tensor | None = None) -> Tensor:
    """Return the same with a padded row for each sequence, as transformers reads them."""
    lengths = tokens.lengths.tolist()

    def rows(of_N: Tensor) -> Tensor:
        return pad_sequence(of_N.split(lengths), batch_first=True)

    real_BT = rows(torch.ones_like(tokens.tokens_N))
    states_BTD = _decoded(
        model,
        rows(tokens.tokens_N),
        None if x_ND is None else rows(x_ND),
        attention_mask=real_BT,
        position_ids=rows(tokens.positions_N),
    )
    return states_BTD[real_BT.bool()]


def _decoded(model: Any, tokens: Tensor, x: Tensor | None, **options: Any) -> Tensor:
    given = {"input_ids": tokens} if x is None else {"inputs_embeds": x}
    return model.get_decoder()(**given, use_cache=False, **options)[0]


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
    """Attention by sdpa; where the pass gives the sequences' bounds, each attends to itself alone."""
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **settings)
    kernel = by_groups if query.device.type == "cpu" else at_once
    return kernel(module, query, key, value, cu_seq_lens_q, max_length_q, **settings), None


@torch.compiler.disable  # the number of groups changes from batch to batch
def by_groups(
    module: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, **settings: Any
) -> Tensor:
    """Attention over groups of similar length. Right padding needs no mask, as attention is causal."""
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


@lru_cache(maxsize=4)  # every layer needs the same
@torch.inference_mode(False)  # a later training pass may reuse the tensors
def _groups(starts: tuple[int, ...]) -> tuple[list[Tensor], Tensor]:
    """Return the tokens in each group's rows (0 at padding), and each token's place among these."""
    begins = torch.tensor(starts[:-1])
    lengths = torch.tensor(starts).diff()
    order_S = lengths.argsort(stable=True)
    groups: list[Tensor] = []
    back_N = torch.empty(starts[-1], dtype=torch.long)
    before = 0
    for cut in length_groups(lengths[order_S].tolist(), GROUP_TOKENS):
        rows_S = order_S[cut]
        place_T = torch.arange(int(lengths[rows_S].max()))
        places_ST = begins[rows_S, None] + place_T
        real_ST = place_T < lengths[rows_S, None]
        back_N[places_ST[real_ST]] = before + real_ST.flatten().nonzero()[:, 0]
        groups.append(places_ST.where(real_ST, 0))
        before += places_ST.numel()
    return groups, back_N


def at_once(
    module: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, **settings: Any
) -> Tensor:
    """Attention of all sequences by PyTorch's varlen flash kernel."""
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
    return mixed_NHW[None]  # type: ignore[call-overload]  # other arguments give it other results


AttentionInterface.register(VARLEN, attend)
AttentionMaskInterface.register(VARLEN, sdpa_mask)


# The check at load time -------------------------------------------------------------------------------------


def _is_candidate(model: Any) -> bool:
    """Rule out recurrence and ALiBi, which need more than bounds, and dropout, which has no kernel."""
    accepts = inspect.signature(model.get_decoder().forward).parameters
    config = model.config.get_text_config()
    dropped = any(getattr(config, name, 0.0) for name in DROPOUTS)
    return (
        {"position_ids", "kwargs"} <= set(accepts) and not dropped and attention_span(model) >= max(LENGTHS)
    )


def _equals_padded(model: Any) -> bool:
    """Compare states of a few tokens, and gradients of their embeddings, with those of padded rows."""
    return any(_equal_from(model, start) for start in first_tokens(model, max(LENGTHS)))


def _equal_from(model: Any, start: int) -> bool:
    embed = model.get_input_embeddings()
    tokens = Packed.of([list(range(start, start + length)) for length in LENGTHS], embed.weight.device)
    found = []
    with torch.enable_grad():
        for read in (in_one_row, in_rows):
            x_ND = embed(tokens.tokens_N).detach().requires_grad_()
            states_ND = read(model, tokens, x_ND)
            uneven_D = torch.linspace(-1, 2, x_ND.shape[1], device=x_ND.device, dtype=x_ND.dtype)
            found.append([states_ND, *torch.autograd.grad((states_ND @ uneven_D).sum(), x_ND)])
    return all(close_per_token(one, other) for one, other in zip(*found, strict=True))
