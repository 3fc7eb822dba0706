"""The geometry of a training's token signal while it trains: stored metrics, so that methods can be compared.

signal_*    of the advantages (or, where the loss is differentiated as it stands, each token's loss)
gradient_*  of each token's gradient with respect to the hidden state that predicts it, on a random
            projection: the backward pass makes it anyway, so it costs one small matrix product

A draw is a sequence: `bias` tells whether sequences agree on a direction or are noise that cancels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recovery.objective import signal_geometry

if TYPE_CHECKING:
    from recovery.batches.rollouts import Rollouts
    from recovery.objective.objective import Loss

EVERY = 5  # steps
NAMES = ("density", "bias", "concentration")


class Survey:
    """Looks at every fifth step, the first included; each sequence once, however many epochs go over it.

    Of several processes each sees its own share, and the first one's is reported.
    """

    def __init__(self, every: int = EVERY) -> None:
        self.every, self.looking = every, False
        self._forget()

    def begin(self, step: int) -> None:
        """A step begins; whether it is looked at depends on its number alone, so also after a kill."""
        self.looking = (step - 1) % self.every == 0
        self._forget()

    def see(self, rollouts: Rollouts, states_ND: Tensor, loss: Loss) -> None:
        """One microbatch between its forward and its backward pass."""
        if not self.looking or id(rollouts) in self._seen or loss.signal_N is None:
            return
        if len(loss.signal_N) != len(states_ND) or not len(states_ND):
            return  # some tokens were masked: whose signal is whose is not known
        self._seen[id(rollouts)] = rollouts
        self._signals.append(loss.signal_N.detach().float().cpu())
        self._draws.append(rollouts.rows_N.cpu() + self._rows)
        self._rows += len(rollouts)
        if states_ND.requires_grad:
            states_ND.register_hook(self._keep)

    def _keep(self, gradient_ND: Tensor) -> None:
        """Projected at once: a few dozen numbers a token stay."""
        self._gradients.append(signal_geometry.project(gradient_ND).cpu())

    def metrics(self) -> dict[str, float]:
        """What the step's tokens looked like; nothing where it was not looked at."""
        if not self._signals:
            return {}
        draws_N = torch.cat(self._draws)
        found = _named("signal_", signal_geometry.measure(torch.cat(self._signals), draws_N))
        if len(self._gradients) == len(self._signals):
            found |= _named(
                "gradient_", signal_geometry.measure_gradients(torch.cat(self._gradients), draws_N)
            )
        self._forget()
        return found

    def _forget(self) -> None:
        self._seen: dict[int, Rollouts] = {}  # held, so that no other gets its id
        self._signals: list[Tensor] = []
        self._draws: list[Tensor] = []
        self._gradients: list[Tensor] = []
        self._rows = 0


def _named(prefix: str, shape: signal_geometry.Geometry) -> dict[str, float]:
    return {prefix + name: getattr(shape, name) for name in NAMES}
