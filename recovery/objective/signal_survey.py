"""Collect the geometry of the token signal during training, as metrics that compare methods.

signal_*    of the advantages (or of each token's loss, if the loss is differentiated directly)
gradient_*  of each token's gradient with respect to the hidden state that predicts it, on a random
            projection; the backward pass computes it anyway, so it costs one small matrix product

A draw is a sequence: `bias` shows whether sequences agree on a direction or are noise that cancels.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.objective import signal_geometry

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.objective.objective import Loss

EVERY = 5  # steps


class SignalSurvey:
    """Survey every fifth step from the first on; count each sequence once, even with several epochs.

    With several processes, only rank 0's share of the sequences is reported.
    """

    def __init__(self) -> None:
        self.looking = False
        self._forget()

    def begin(self, step: int) -> None:
        """Begin a step. Its number alone decides whether it is surveyed, so a resumed run does the same."""
        self.looking = (step - 1) % EVERY == 0
        self._forget()

    def see(self, rollouts: Rollouts, states_ND: Tensor, loss: Loss) -> None:
        """Record a microbatch; call it between the forward and the backward pass."""
        if not self.looking or id(rollouts) in self._seen or loss.signal_N is None:
            return
        if len(loss.signal_N) != len(states_ND) or not len(states_ND):
            return  # some tokens were masked: signals cannot be matched to tokens
        self._seen[id(rollouts)] = rollouts
        self._signals.append(loss.signal_N.detach().float().cpu())
        self._draws.append(rollouts.rows_N.cpu() + self._rows)
        self._rows += len(rollouts)
        if states_ND.requires_grad:
            states_ND.register_hook(self._keep)

    def _keep(self, gradient_ND: Tensor) -> None:
        """Store the projected gradient: a few dozen numbers per token."""
        self._gradients.append(signal_geometry.project(gradient_ND).cpu())

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics; empty if the step was not surveyed."""
        if not self._signals:
            return {}
        draws_N = torch.cat(self._draws)
        found = _named("signal", signal_geometry.measure(torch.cat(self._signals), draws_N))
        if len(self._gradients) == len(self._signals):
            geometry = signal_geometry.measure_gradients(torch.cat(self._gradients), draws_N)
            found |= _named("gradient", geometry)
        self._forget()
        return found

    def _forget(self) -> None:
        self._seen: dict[int, Rollouts] = {}  # keeps references, so that ids stay unique
        self._signals: list[Tensor] = []
        self._draws: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._rows = 0


def _named(kind: str, geometry: signal_geometry.SignalGeometry) -> dict[str, float]:
    return {f"{kind}_{name}": value for name, value in asdict(geometry).items()}
