"""Apply a method's KL budget to a step: one that changes over the run, or one for the step as a whole.

Of all teachers whose mean KL to the student over the step is within the budget, the nearest to the given one
(by the mean of KL(q||teacher)) has the same share a at every token, q proportional to teacher^a * p^(1 - a).
The share is found before the step's first update, by one more forward pass of the student over its sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from recovery import distributed
from recovery.forward.eval_mode import evaluating
from recovery.forward.hidden_states import logits_of, predicting_states
from recovery.objective.divergences import share_within
from recovery.objective.objective import Objective
from recovery.training.updater import Microbatch

if TYPE_CHECKING:
    from recovery.methods.method import Method
    from recovery.models.chat_model import ChatModel

SHARES = tuple(2 ** (exponent / 2) for exponent in range(-16, 1))  # at which the distance is measured


def within_budget(
    student: ChatModel, method: Method, batches: list[Microbatch], step: int, steps: int
) -> tuple[list[Microbatch], dict[str, float]]:
    """Return the microbatches with the step's budget or share as a signal, and what to report of it."""
    budget = method.budget_at(step, steps)
    of_tokens = method.kl_budget_of == "token"
    if budget is None or (of_tokens and method.kl_budget_final is None):  # the objective knows a constant one
        return batches, {}
    name = "budget_N" if of_tokens else "share_N"
    value = budget if of_tokens else step_share(student, method, batches, budget)
    return [_with(batch, name, value) for batch in batches], {"kl_budget": budget}


@torch.no_grad()
def step_share(student: ChatModel, method: Method, batches: Sequence[Microbatch], budget: float) -> float:
    """Return the teacher's largest share that keeps the step's mean KL(q||p) within the budget."""
    objective = Objective(method)
    total_S = torch.zeros(len(SHARES), dtype=torch.float64)
    tokens = 0.0
    with distributed.gathered(student.model), evaluating(student.model):
        for batch in batches:
            if batch.signals.scores is None:  # another process trains on it
                continue
            rollouts, signals = batch.rollouts.to(student.device), batch.signals.to(student.device)
            states_ND = predicting_states(student.model, rollouts)
            head = partial(logits_of, student.model)
            sums_S, count = objective.teacher_distances(states_ND, head, rollouts.tokens_N, signals, SHARES)
            total_S = total_S + sums_S.cpu()
            tokens = tokens + count
    everyone = distributed.gather((total_S, tokens))
    total_S = torch.stack([sums_S for sums_S, _ in everyone]).sum(0)
    tokens = max(sum(count for _, count in everyone), 1.0)
    return share_within(SHARES, (total_S / tokens).tolist(), budget)


def _with(batch: Microbatch, name: str, value: float) -> Microbatch:
    """Return the microbatch with one more signal, the same at every token."""
    if batch.signals.scores is None:
        return batch
    signal: dict[str, Any] = {name: torch.full((batch.rollouts.n_tokens,), value)}
    return batch._replace(signals=replace(batch.signals, **signal))
