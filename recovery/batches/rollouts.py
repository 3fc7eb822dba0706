"""Rollouts: sequences of token ids and a mask of the tokens that count.

Shape legend: B sequences, T tokens, N counted (masked-in) tokens in row-major order, D hidden size.
The token at position t is predicted from the hidden state at t - 1, so position 0 never counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from recovery.batches.length_groups import PASS, length_groups
from recovery.errors import InputError

Dialogue = tuple[Sequence[int], Sequence[bool]]


@dataclass(frozen=True)
class Rollouts:
    """Right-padded sequences. `mask_BT` marks the training targets: responses, or documents' tokens."""

    tokens_BT: Tensor  # long
    attention_BT: Tensor  # bool, False on padding
    mask_BT: Tensor  # bool, True where the token is a target
    logprobs_BT: Tensor  # float32, the sampler's log-probability of the token; 0 where nothing was sampled
    finished_B: Tensor  # bool, ended by a stop token (always True for data)
    prompt_lengths_B: Tensor  # long
    index_B: Tensor  # long, the row in the prompt list that was sampled from
    positions_BT: Tensor | None = None  # long, restarting at 0 with each sequence of a packed row
    rewards_B: Tensor | None = None

    def __len__(self) -> int:
        return self.tokens_BT.shape[0]

    @property
    def lengths_B(self) -> Tensor:
        return self.attention_BT.sum(1)

    @property
    def n_tokens(self) -> int:
        """Return N, the number of counted tokens."""
        return int(self.mask_BT.sum())

    @property
    def tokens_N(self) -> Tensor:
        return self.tokens_BT[self.mask_BT]

    @property
    def logprobs_N(self) -> Tensor:
        return self.logprobs_BT[self.mask_BT]

    @property
    def rows_N(self) -> Tensor:
        """Return the row of each counted token."""
        return self.mask_BT.nonzero()[:, 0]

    def places_N(self, rows: Tensor) -> Tensor:
        """Return which of the N counted tokens those of `select(rows)` are."""
        number_BT = (self.mask_BT.flatten().cumsum(0) - 1).view_as(self.mask_BT)
        return number_BT[rows][self.mask_BT[rows]]

    @property
    def model_inputs(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return (tokens, attention, positions) to read: without the last column, which predicts nothing.

        A packed row has no attention mask: transformers separates its sequences where positions restart, but
        only where there is no mask.
        """
        read = max(1, self.tokens_BT.shape[1] - 1)
        if self.positions_BT is not None:
            return self.tokens_BT[:, :read], None, self.positions_BT[:, :read]
        return self.tokens_BT[:, :read], self.attention_BT[:, :read], None

    @property
    def predictors_BT(self) -> Tensor:
        """Return a mask of the columns read whose states predict a counted token."""
        mask_BT = self.mask_BT[:, 1:]
        return mask_BT if mask_BT.shape[1] else torch.zeros_like(self.mask_BT)

    def per_token(self, values_B: Tensor) -> Tensor:
        """Expand one value a row (a reward, an advantage) to one value a counted token."""
        return values_B[self.rows_N.to(values_B.device)]

    def responses(self) -> list[list[int]]:
        """Return the counted tokens of each row."""
        return [tokens[mask].tolist() for tokens, mask in zip(self.tokens_BT, self.mask_BT, strict=True)]

    def prompts(self) -> list[list[int]]:
        lengths = self.prompt_lengths_B.tolist()
        return [tokens[:n].tolist() for tokens, n in zip(self.tokens_BT, lengths, strict=True)]

    def to(self, device: torch.device | str) -> Rollouts:
        moved = {k: v.to(device) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)

    def select(self, rows: Tensor | Sequence[int]) -> Rollouts:
        """Return these rows in this order, cut to the longest of them."""
        rows = torch.as_tensor(rows, dtype=torch.long, device=self.tokens_BT.device)
        longest = int(self.lengths_B[rows].max()) if len(rows) else 0
        picked: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                picked[name] = value[rows, :longest] if value.ndim == 2 else value[rows]
        return replace(self, **picked)

    def groups(self, max_tokens: int, boundary: float = math.inf) -> list[Tensor]:
        """Group rows of similar length, within `max_tokens` with padding, but at least a row.

        None holds rows on both sides of the boundary, a length.
        """
        order = torch.sort(self.lengths_B, stable=True)
        within = int((order.values <= boundary).sum())
        found: list[Tensor] = []
        for side in (slice(within), slice(within, None)):
            groups = length_groups(order.values[side].tolist(), max_tokens)
            found += [order.indices[side][group] for group in groups]
        return found

    def limit_over(self, processes: int, most: int) -> int:
        """Return the tokens of a microbatch, `most` at most, with which the busiest process reads least.

        Each has a microbatch at least; where there are fewer rows than processes, each row is one.
        """
        if processes == 1 or not len(self):
            return most
        lengths_B = self.lengths_B

        def busiest(limit: int) -> int:
            costs = [len(rows) * int(lengths_B[rows].max()) + PASS for rows in self.groups(limit)]
            return max(sum(costs[first::processes]) for first in range(processes))

        share = math.ceil(int(lengths_B.sum()) / processes)
        limits = dict.fromkeys([*(min(most, share * eighths // 8) for eighths in range(12, 1, -1)), 1])
        enough = min(processes, len(self))
        return min((limit for limit in limits if len(self.groups(limit)) >= enough), key=busiest)

    def split(self, max_tokens: int, boundary: float = math.inf) -> list[Rollouts]:
        """Split into microbatches of similar length, each on one side of the boundary."""
        return [self.select(rows) for rows in self.groups(max_tokens, boundary)]

    def with_prompts(self, prompts: Sequence[Sequence[int]], pad_id: int) -> Rollouts:
        """Put the same responses after other prompts; counted tokens keep their order."""
        if self.positions_BT is not None:
            raise InputError("rollouts: packed rows have no prompt to replace: give one sequence a row")
        if len(prompts) != len(self):
            raise InputError(f"rollouts: {len(prompts)} prompts for {len(self)} rows: give one each")
        columns = (self.tokens_BT, self.mask_BT, self.logprobs_BT)
        parts = zip(prompts, self.prompt_lengths_B.tolist(), self.lengths_B.tolist(), *columns, strict=True)
        tokens, masks, logprobs = [], [], []
        for prompt, start, end, token_T, mask_T, logprob_T in parts:
            tokens.append([*prompt, *token_T[start:end].tolist()])
            masks.append([False] * len(prompt) + mask_T[start:end].tolist())
            logprobs.append([0.0] * len(prompt) + logprob_T[start:end].tolist())
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        made = _padded(tokens, masks, logprobs, pad_id).to(self.tokens_BT.device)
        return replace(
            made,
            finished_B=self.finished_B,
            prompt_lengths_B=lengths.to(self.tokens_BT.device),
            index_B=self.index_B,
            rewards_B=self.rewards_B,
        )

    @classmethod
    def from_dialogues(cls, dialogues: Sequence[Dialogue], pad_id: int) -> Rollouts:
        """Make rollouts of data: one (ids, mask) a row, log-probabilities zero."""
        tokens = [list(ids) for ids, _ in dialogues]
        masks = [[False, *map(bool, list(mask)[1:])] if len(ids) else [] for ids, mask in dialogues]
        return _padded(tokens, masks, [[0.0] * len(ids) for ids in tokens], pad_id)

    @classmethod
    def from_samples(
        cls,
        prompts: Sequence[Sequence[int]],
        responses: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        finished: Sequence[bool],
        pad_id: int,
    ) -> Rollouts:
        """Make rollouts of a sampler's responses; every response token counts, its stop token too."""
        pairs = list(zip(prompts, responses, strict=True))
        tokens = [[*prompt, *response] for prompt, response in pairs]
        masks = [[False] * len(prompt) + [True] * len(response) for prompt, response in pairs]
        scores = [[0.0] * len(prompt) + list(row) for prompt, row in zip(prompts, logprobs, strict=True)]
        made = _padded(tokens, masks, scores, pad_id)
        return replace(
            made,
            finished_B=torch.tensor(list(finished), dtype=torch.bool),
            prompt_lengths_B=torch.tensor([len(prompt) for prompt in prompts], dtype=torch.long),
        )

    @classmethod
    def packed(cls, sequences: Sequence[Dialogue], pad_id: int, length: int) -> Rollouts:
        """Pack sequences into rows of at most `length` tokens; positions restart, none attends to another.

        Longer sequences are cut; the first token of a piece has nothing before it and never counts.
        """
        rows = _best_fit(_pieces(sequences, length), length)
        tokens = [[token for ids, _ in row for token in ids] for row in rows]
        masks = [[flag for _, mask in row for flag in mask] for row in rows]
        made = _padded(tokens, masks, [[0.0] * len(ids) for ids in tokens], pad_id)
        positions_BT = torch.zeros_like(made.tokens_BT)
        for number, row in enumerate(rows):
            positions = [position for ids, _ in row for position in range(len(ids))]
            positions_BT[number, : len(positions)] = torch.tensor(positions)
        return replace(made, positions_BT=positions_BT)


Piece = tuple[list[int], list[bool]]  # token ids and mask of a sequence, or of a part of it


def _pieces(sequences: Sequence[Dialogue], length: int) -> list[Piece]:
    """Cut sequences into pieces of at most `length` tokens; a piece's first token never counts."""
    pieces: list[Piece] = []
    for ids, mask in sequences:
        for start in range(0, len(ids), length):
            end = start + length
            pieces.append((list(ids[start:end]), [False, *map(bool, mask[start + 1 : end])]))
    return pieces


def _best_fit(pieces: Sequence[Piece], length: int) -> list[list[Piece]]:
    """Put each piece, the longest first, into the row with the least room that holds it."""
    rows: list[list[Piece]] = []
    spaces: list[tuple[int, int]] = []  # (room left, row), sorted to find the tightest fit by bisection
    for piece in sorted(pieces, key=lambda piece: -len(piece[0])):
        size = len(piece[0])
        at = bisect_left(spaces, (size, -1))
        if at < len(spaces):
            room, row = spaces.pop(at)
        else:
            room = length
            row = len(rows)
            rows.append([])
        rows[row].append(piece)
        insort(spaces, (room - size, row))
    return rows


def joined(parts: Sequence[Rollouts], pad_id: int) -> Rollouts:
    """Stack rollouts, padded to the longest."""
    width = max(part.tokens_BT.shape[1] for part in parts)

    def column(name: str) -> Tensor | None:
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            return None
        if values[0].ndim == 1:
            return torch.cat(values)
        filler = pad_id if name == "tokens_BT" else 0
        return torch.cat([pad(value, (0, width - value.shape[1]), value=filler) for value in values])

    columns: dict[str, Any] = {f.name: column(f.name) for f in fields(Rollouts)}
    return Rollouts(**columns)


def _padded(
    tokens: list[list[int]], masks: list[list[bool]], logprobs: list[list[float]], pad_id: int
) -> Rollouts:
    """Pad ragged rows on the right; a row's prompt is what comes before its first counted token."""
    if not tokens or not all(tokens):
        raise InputError("rollouts: an empty batch or an empty sequence: give at least one token a row")
    shape = len(tokens), max(map(len, tokens))
    lengths_B1 = torch.tensor([[len(ids)] for ids in tokens])
    attention_BT = torch.arange(shape[1]) < lengths_B1

    def laid_out(rows: Sequence[Sequence[Any]], empty: Tensor) -> Tensor:
        empty[attention_BT] = torch.tensor(list(chain(*rows)), dtype=empty.dtype)
        return empty

    tokens_BT = laid_out(tokens, torch.full(shape, pad_id))
    mask_BT = laid_out(masks, torch.zeros(shape, dtype=torch.bool))
    logprobs_BT = laid_out(logprobs, torch.zeros(shape))
    prompt_lengths = [mask.index(True) if True in mask else len(mask) for mask in masks]
    return Rollouts(
        tokens_BT,
        attention_BT,
        mask_BT,
        logprobs_BT,
        torch.ones(shape[0], dtype=torch.bool),
        torch.tensor(prompt_lengths),
        torch.arange(shape[0]),
    )
