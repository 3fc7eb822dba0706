"""Recognise responses that only repeat themselves."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 64  # tokens of the longest piece whose repetition is a loop
REPEATS = 4  # of a piece, one behind the other
SHORTEST = 64  # tokens of a loop, all repeats together: a row of a table may repeat a few tokens many times
WINDOW = PIECE * REPEATS  # tokens that decide whether a response has become a loop


def loop_ends(tokens_RT: Tensor) -> Tensor:
    """Return how many tokens each row has once it is a loop; more than T for a row that never is one.

    A row is a loop when it ends in one piece of at most PIECE tokens, REPEATS times or more, over at least
    SHORTEST tokens.
    """
    length = tokens_RT.shape[1]
    ends_R = torch.full((len(tokens_RT),), length + 1, device=tokens_RT.device)
    for period in range(1, PIECE + 1):
        equal = max(REPEATS * period, SHORTEST) - period  # tokens in a row that equal those a period before
        if period + equal > length:
            continue
        same_RT = tokens_RT[:, period:] == tokens_RT[:, :-period]
        counts_RT = torch.nn.functional.pad(same_RT.int().cumsum(1), (1, 0))
        is_loop_RT = counts_RT[:, equal:] - counts_RT[:, :-equal] == equal
        first_R = is_loop_RT.int().argmax(1) + period + equal
        ends_R = torch.where(is_loop_RT.any(1), torch.minimum(ends_R, first_R), ends_R)
    return ends_R


def loop_end(tokens: list[int], seen: int = 0) -> int | None:
    """Return where a response becomes a loop, if it does after the first `seen` tokens; else None."""
    start = max(0, seen - WINDOW)
    end = start + int(loop_ends(torch.tensor([tokens[start:]]))[0])
    return end if end <= len(tokens) else None
