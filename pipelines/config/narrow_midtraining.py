"""Narrow a midtraining to a share of its documents, and count passes by the learning rate. No torch here.

A narrow midtraining takes as many steps as the whole one, each of a share of the tokens. So the rates of its
steps add up to the same, which bounds how far the weights move, and each of its documents is seen as often.
"""

from __future__ import annotations

from itertools import accumulate

from pipelines.config.fitted import SHORTEST_ROW
from pipelines.config.sections.midtrain import MidtrainConfig, ReadingConfig
from recovery.training.config import TrainConfig, learning_rate_at

POINTS = 10  # measured along the training
ANY_SIZE = 2**30  # MiB


def narrowed(planned: MidtrainConfig, share: float) -> MidtrainConfig:
    """Return a midtraining of as many steps on a share of the tokens."""
    assert planned.steps is not None
    tokens = max(SHORTEST_ROW, round(planned.tokens_per_step * share))
    return planned.model_copy(
        update={
            "tokens_per_step": tokens,
            "row_tokens": min(planned.row_tokens, tokens),
            "forecast_every": max(1, planned.steps // POINTS),
            "hold_out": 0.0,  # nothing is recovered from it
            # The sample was read as the settings say; it is one file, maybe larger than any of its documents.
            "reading": ReadingConfig(largest_text_mib=ANY_SIZE),
        }
    )


def effective_passes(settings: MidtrainConfig, tokens: int, share: float) -> list[float]:
    """Return the passes over the documents after each step, each step weighed by its rate's share of the full
    rate: a step of the warm-up or late in the schedule moves less."""
    config = _training(settings)
    each = settings.tokens_per_step * share / tokens
    weights = (learning_rate_at(step, config) / config.learning_rate for step in range(1, config.steps + 1))
    return list(accumulate(each * weight for weight in weights))


def first_counted(settings: MidtrainConfig) -> int:
    """Return the first step measured after the warm-up. Within it Adam's moments are still filling: the model
    moves far less than its rate says, which would bend a law of rate and length."""
    every = settings.forecast_every
    return every * (_training(settings).effective_warmup // every + 1)


def _training(settings: MidtrainConfig) -> TrainConfig:
    return TrainConfig(steps=settings.steps or 0, **settings.optimizer.model_dump())
