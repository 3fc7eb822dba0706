"""Go on with a distillation while the student comes nearer to its teacher, and end where it no longer does.

The divergence is that of the training steps themselves. It is compared over stretches of many steps, as that
of one step depends on its prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean

# Of the divergence, from one stretch to the next. A tenth ended a recovery of which 60 further steps brought
# four points more (docs/real-recovery.md); by chance two stretches of 30 steps differ by some 4 %.
LEAST_FALL = 0.05
MEASURES = ("reverse_kl", "k1_reverse_kl")  # of a step that trained on any token, the first that it reports


class Plateau:
    """A `should_stop` of the trainer: from step `least` on, end once the divergence hardly falls.

    That is looked at every half of `least` steps. `before(step)` returns the metrics of earlier attempts, so
    that a resumed run ends where an uninterrupted one does.
    """

    def __init__(self, least: int, *, before: Callable[[int], Mapping[int, Mapping[str, float]]]) -> None:
        self.least = least
        self.stretch = max(1, least // 2)
        self.before = before
        self.divergences: dict[int, float] | None = None

    def __call__(self, step: int, metrics: Mapping[str, float]) -> str | None:
        if self.divergences is None:
            self.divergences = _divergences(self.before(step))
        self.divergences |= _divergences({step: metrics})
        if step < self.least or (step - self.least) % self.stretch or self.falls(step):
            return None
        return f"after {step} steps the divergence from the teacher hardly falls ({self.in_words(step)})"

    def falls(self, step: int) -> bool:
        """Return whether the stretch that ends with a step is clearly below the one before."""
        earlier, last = self._means(step)
        return last < (1 - LEAST_FALL) * earlier

    def in_words(self, step: int) -> str:
        earlier, last = self._means(step)
        return f"{earlier:.3g} nats a token in {self.stretch} steps, {last:.3g} in the {self.stretch} after"

    def _means(self, step: int) -> tuple[float, float]:
        """Return the mean divergence of the last stretch and of the one before it."""
        return self._mean(step - self.stretch), self._mean(step)

    def _mean(self, last: int) -> float:
        known = self.divergences or {}
        found = [known[step] for step in range(last - self.stretch + 1, last + 1) if step in known]
        return fmean(found) if found else math.inf


def _divergences(steps: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return the divergence of each step that has one: a step without a token to train on has none."""
    found = {at: [metrics[name] for name in MEASURES if name in metrics] for at, metrics in steps.items()}
    return {at: values[0] for at, values in found.items() if values}
