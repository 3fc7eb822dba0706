"""Decide which sequences may share a forward pass, by trial: no row may change another's numbers.

Reachability decides, as in `packing_check`: a row's output must have a gradient of exactly zero with respect
to every embedding that is not its own, padding included, and be close to that of the row read alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recovery.batches.length_groups import length_groups
from recovery.forward.context_length import context_length
from recovery.forward.equality import NOT_APPLICABLE, close_per_token, first_tokens
from recovery.forward.eval_mode import evaluating
from recovery.forward.packed import Packed, PackedReader, Read, packed
from recovery.forward.packing_check import embeddings_as_leaves, reach_others
from recovery.forward.passed_trials import tried

LENGTHS = (5, 9, 9)  # of the rows in a trial: one is padded, two are not
PADDING = 0  # the id of padding in a trial
SMALL = 2**16  # entries of a buffer that may hold rotary frequencies


@dataclass(frozen=True)
class Sharing:
    """Which sequences may be read together: any, those of one length, those on one side of a boundary."""

    equal_lengths: bool = False  # padding changes a row
    boundary: float = math.inf  # tokens; a longer row changes the shorter ones beside it (LongRoPE)

    @property
    def has_boundary(self) -> bool:
        """Return whether a row beyond a length changes the shorter ones beside it."""
        return self.boundary < math.inf

    @property
    def is_limited(self) -> bool:
        """Return whether there are sequences that must not be read together."""
        return self.equal_lengths or self.has_boundary

    def groups(self, lengths: Iterable[int]) -> list[list[int]]:
        """Divide sequences of these lengths, by their places, into groups that may share a pass."""
        found: dict[tuple[int, bool], list[int]] = {}
        for place, length in enumerate(lengths):
            group = length if self.equal_lengths else 0, length > self.boundary
            found.setdefault(group, []).append(place)
        return list(found.values())


_known: WeakKeyDictionary[Any, Sharing] = WeakKeyDictionary()


def sharing_of(model: Any, read: Read) -> Sharing:
    """Return which sequences `read` may read together; tried once for each unwrapped model."""
    if model not in _known:
        _known[model] = tried(
            "sharing", model, lambda sharing: not sharing.is_limited, lambda: _sharing(model, read)
        )
    return _known[model]


def _sharing(model: Any, read: Read) -> Sharing:
    padding_is_harmless = all(_reads_padded(model, read, side) for side in ("right", "left"))
    return Sharing(not padding_is_harmless, _boundary(model))


class GroupedReader(PackedReader):
    """Reads together only sequences that may share a pass; `read` takes rows, padded or packed."""

    def __init__(self, read: Callable[..., Tensor], sharing: Sharing) -> None:
        self.read = read
        self.sharing = sharing

    def states(self, tokens: Packed, wanted_N: Tensor | None) -> Tensor:
        parts, places = [], []
        for members in self._passes(tokens.lengths.tolist()):
            parts.append(self._group(tokens, members))
            places.append(torch.isin(tokens.rows_N, tokens.rows_N.new_tensor(members)).nonzero()[:, 0])
        states_ND = torch.cat(parts)[torch.cat(places).argsort()]
        return states_ND if wanted_N is None else states_ND[wanted_N]

    def plain_for(
        self, tokens_BT: Tensor, attention_BT: Tensor | None, positions_BT: Tensor | None
    ) -> Callable[..., Tensor] | None:
        """Read rows of one group as they are, in the one pass that shards may make."""
        if self.sharing.equal_lengths:  # padding would change them
            return None
        lengths = packed(tokens_BT, attention_BT, positions_BT)[0].lengths.tolist()
        return self.read if len(self.sharing.groups(lengths)) <= 1 else None

    def _passes(self, lengths: list[int]) -> Iterator[list[int]]:
        """Yield the sequences of each pass, in their order."""
        for members in self.sharing.groups(lengths):
            if isinstance(self.read, PackedReader):  # it computes no padding
                yield members
            else:
                yield from _cut_by_length(members, lengths)

    def _group(self, tokens: Packed, members: Sequence[int]) -> Tensor:
        sequences = tokens.tokens_N.split(tokens.lengths.tolist())
        rows = [sequences[member] for member in members]
        real_BT = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in rows], batch_first=True)
        return self.read(pad_sequence(rows, batch_first=True), real_BT)[real_BT]


def _cut_by_length(members: list[int], lengths: list[int]) -> Iterator[list[int]]:
    """Cut a group where padding its rows to the longest costs more than another pass."""
    by_length = sorted(members, key=lambda member: lengths[member])
    for cut in length_groups([lengths[member] for member in by_length], sum(lengths)):
        yield sorted(by_length[cut])


# Trials -----------------------------------------------------------------------------------------------------

Rows = list[list[int]]


def rows_stay_apart(
    model: Any,
    together: Callable[[Rows], Iterable[Tensor]],
    alone: Callable[[list[int]], Tensor],
    trace: bool = True,
) -> bool:
    """Return whether rows read together equal those read alone, and none depends on another's tokens.

    `together` yields outputs of all rows (rows, features): the last for whole rows, the one before for rows
    without their last token, and so on. `alone` returns the output of one row. Without `trace` the numbers
    alone are compared: a model's own cache may overwrite what gradients would need.
    """
    starts = first_tokens(model, PADDING + 1 + sum(LENGTHS))
    return any(_stay_apart(model, together, alone, trace, _rows(start)) for start in starts)


def _stay_apart(
    model: Any,
    together: Callable[[Rows], Iterable[Tensor]],
    alone: Callable[[list[int]], Tensor],
    trace: bool,
    rows: Rows,
) -> bool:
    try:
        with evaluating(model), torch.inference_mode(False), torch.enable_grad():
            outputs = _traced(model, together, rows) if trace else _untraced(together, rows)
            with torch.no_grad():
                return outputs is not None and all(
                    close_per_token(output_RD, torch.stack([alone(row[: len(row) - rest]) for row in rows]))
                    for rest, output_RD in enumerate(reversed(outputs))
                )
    except torch.OutOfMemoryError:
        raise
    except NOT_APPLICABLE:
        return False


def _traced(model: Any, together: Callable[[Rows], Iterable[Tensor]], rows: Rows) -> list[Tensor] | None:
    """Return all outputs; None where a row depends on an embedding of other tokens than its own.

    Only the first output's gradient is traced: caches overwrite what those of later ones would need.
    """
    with embeddings_as_leaves(model) as embeddings:
        outputs = iter(together(rows))
        first_RD = next(outputs)
        if reach_others(first_RD, rows, embeddings):
            return None
    with torch.no_grad():
        return [first_RD.detach(), *outputs]


@torch.no_grad()
def _untraced(together: Callable[[Rows], Iterable[Tensor]], rows: Rows) -> list[Tensor]:
    return list(together(rows))


def _rows(start: int) -> Rows:
    """Return rows of token ids from `start` on: none is in two rows, or the padding's."""
    ids = count(start + PADDING + 1)
    return [[next(ids) for _ in range(length)] for length in LENGTHS]


def _reads_padded(model: Any, read: Read, side: str) -> bool:
    """Return whether padding on this side leaves the rows unchanged."""

    def together(rows: Rows) -> Iterable[Tensor]:
        width = max(map(len, rows))
        before = [width - len(row) if side == "left" else 0 for row in rows]
        tokens_BT = torch.zeros(len(rows), width, dtype=torch.long, device=device)
        real_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
        for place, (row, start) in enumerate(zip(rows, before, strict=True)):
            tokens_BT[place, start : start + len(row)] = torch.tensor(row, device=device)
            real_BT[place, start : start + len(row)] = True
        last_B = torch.tensor([start + len(row) - 1 for row, start in zip(rows, before, strict=True)])
        yield read(model, tokens_BT, real_BT, None)[torch.arange(len(rows)), last_B]

    def alone(row: list[int]) -> Tensor:
        return read(model, torch.tensor([row], device=device), None, None)[0, -1]

    device = model.get_input_embeddings().weight.device
    return rows_stay_apart(model, together, alone)


def _boundary(model: Any) -> float:
    """Return the longest sequence that leaves the rotary frequencies as they are for short ones.

    Some models compute them anew where a position of the pass lies beyond a boundary: the buffers tell.
    """
    decoder = model.get_decoder()
    longest = context_length(model.config)
    if longest is None or "position_ids" not in inspect.signature(decoder.forward).parameters:
        return math.inf
    device = model.get_input_embeddings().weight.device
    token_BT = torch.zeros(1, 1, dtype=torch.long, device=device)

    def buffers(length: int) -> dict[str, Tensor]:
        """Return the small buffers after a pass that ends at the last position of this length."""
        positions_BT = torch.full_like(token_BT, length - 1)
        decoder(
            token_BT, attention_mask=torch.ones_like(token_BT), position_ids=positions_BT, use_cache=False
        )
        return {name: one.clone() for name, one in decoder.named_buffers() if one.numel() <= SMALL}

    def is_short(length: int) -> bool:
        now = buffers(length)
        return now.keys() == short.keys() and all(torch.equal(now[name], short[name]) for name in short)

    try:
        with evaluating(model), torch.inference_mode(False), torch.no_grad():
            short = buffers(1)
            if is_short(longest):
                return math.inf
            boundary = _last_that(is_short, 1, longest)
            buffers(1)  # the model keeps what its last pass computed
            return boundary
    except torch.OutOfMemoryError:
        raise
    except NOT_APPLICABLE:
        return math.inf


def _last_that(holds: Callable[[int], bool], within: int, beyond: int) -> int:
    """Return the last number, from one for which it holds to one for which it does not, by bisection."""
    while beyond - within > 1:
        middle = (within + beyond) // 2
        within, beyond = (middle, beyond) if holds(middle) else (within, middle)
    return within
