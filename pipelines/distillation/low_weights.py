"""Say where importance weights have become small: what is sampled then hardly counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

METRIC = "importance_weight"
LEAST = 0.5  # mean of a step's weights, below which that is said


class LowWeights:
    """A check after each step that says so once, and never stops the training."""

    def __init__(self, say: Callable[[str], None], *, ahead: bool) -> None:
        self.say = say
        self.way = "--ahead 0" if ahead else "`model.dtype: float32`, for trainer and engine"
        self.said = False

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        mean = metrics.get(METRIC, 1.0)
        if self.said or mean >= LEAST:
            return
        self.said = True
        self.say(
            f"  weights      in step {step} the importance weights average {mean:.2f}, so that most tokens "
            f"hardly count: begin again with {self.way}"
        )
