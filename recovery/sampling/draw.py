"""Draw the next token of every row from its logits and one uniform number.

Shapes: B rows, V vocabulary; P pieces of a vocabulary with E entries each.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from recovery.forward.fast_path import fast_path

PIECE = 128  # entries
BELOW_ONE = 1 - 1e-12  # keeps a number below the whole sum after rounding


def draw_tokens(logits_BV: Tensor, numbers_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Draw each row's token by inverse transform sampling of its number; return it with its fp32 log-prob.

    At temperature 0 that is the most likely token, with the log-probability of temperature 1.
    """
    logits_BV = logits_BV.float()
    drawn = fast_path().draw(logits_BV, numbers_B, temperature) if temperature else None
    if drawn is not None:
        return drawn
    if temperature not in (0.0, 1.0):
        logits_BV = logits_BV / temperature
    p_BV = logits_BV.softmax(-1)
    token_B = _passed(p_BV, numbers_B) if temperature else logits_BV.argmax(-1)
    return token_B, p_BV.gather(-1, token_B[:, None])[:, 0].log()


def _passed(p_BV: Tensor, numbers_B: Tensor) -> Tensor:
    """Return where each row's running sum passes its number's share of the total.

    Running sums are in float64, as float32 rounds rare tokens of a large vocabulary away. They are slow, so
    they run over the sums of pieces first, and then within one piece.
    """
    rows, vocabulary = p_BV.shape
    if missing := -vocabulary % PIECE:
        p_BV = pad(p_BV, (0, missing))
    p_BPE = p_BV.view(rows, -1, PIECE)
    ends_BP = pad(p_BPE.sum(-1).cumsum(-1, dtype=torch.float64), (1, 0))
    target_B1 = numbers_B[:, None].clamp(max=BELOW_ONE) * ends_BP[:, -1:]
    piece_B1 = (torch.searchsorted(ends_BP, target_B1, right=True) - 1).clamp_(max=p_BPE.shape[1] - 1)
    p_BE = p_BPE[torch.arange(rows, device=p_BV.device), piece_B1[:, 0]]
    within_BE = p_BE.cumsum(-1, dtype=torch.float64)
    left_B1 = torch.minimum(target_B1 - ends_BP.gather(1, piece_B1), within_BE[:, -1:] * BELOW_ONE)
    entry_B1 = torch.searchsorted(within_BE, left_B1, right=True)
    return (piece_B1 * PIECE + entry_B1)[:, 0].clamp_(max=vocabulary - 1)
