"""Compute the loss of a microbatch: what the training loop calls for each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.objective.objective import Loss
from recovery.objective.signal_survey import SignalSurvey
from recovery.training.updater import Microbatch


class TokenLoss:
    """Compute an objective's loss from the hidden states that predict the counted tokens.

    A microbatch may override the objective. A survey, if given, records the signal of each microbatch.
    """

    def __init__(self, objective: Callable[..., Loss], survey: SignalSurvey | None = None) -> None:
        self.objective = objective
        self.survey = survey

    def __call__(self, model: Any, microbatch: Microbatch) -> Loss:
        device = next(model.parameters()).device
        rollouts = microbatch.rollouts.to(device)
        signals = microbatch.signals.to(device)
        states_ND = predicting_states(model, rollouts)
        objective = microbatch.objective or self.objective
        loss = objective(states_ND, partial(logits_of, model), rollouts.tokens_N, signals)
        if self.survey:
            self.survey.see(microbatch.rollouts, states_ND, loss)
        return loss
