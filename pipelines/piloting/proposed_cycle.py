"""Propose a cycle: what is expected of the midtraining as configured, and the best one within the budget."""

from __future__ import annotations

from typing import Any

from pipelines.config.jobs import PilotJob
from pipelines.config.narrow_midtraining import effective_passes, first_counted
from pipelines.piloting import proposal
from pipelines.piloting.cycle_command import cycle_command
from pipelines.piloting.plan import Plan
from pipelines.piloting.proposal import Candidate, Forecasts, Length
from pipelines.piloting.rate_curves import Estimate
from recovery.command_line import Command
from recovery.counted import counted

Row = dict[str, Any]


def proposed(command: Command, job: PilotJob, plan: Plan, forecasts: Forecasts) -> Row:
    """Return {"planned", "words"}, with "proposal" and "command" if a rate and length keep to the budget."""
    grid = lengths(plan)
    found = proposal.candidates(forecasts, job.rates, grid)
    chosen = proposal.best(found, job.budget / 100)
    planned = _as_configured(job, plan, forecasts, grid[-1])
    if chosen is None:
        nearest = proposal.gentlest(found)
        words = (
            f"nothing is proposed: no rate and length within what was measured keeps to {job.budget:g} "
            f"points; the gentlest, {_in_words(nearest)}: try lower --rates, or a --mix with chat"
        )
        return {"planned": planned, "words": words}
    shown = chosen.loss.high <= job.budget / 100
    row = chosen.row() | {
        "tokens_per_step": plan.planned.tokens_per_step,
        "mix": {name: part for name, part in job.settings.midtrain.mix.model_dump().items() if part},
        "recovery": _recovery(job, chosen),
        "within_budget": "shown" if shown else "expected",
    }
    doubt = "" if shown else "; the interval reaches beyond the budget"
    return {
        "planned": planned,
        "proposal": row,
        "command": cycle_command(command, job, row),
        "words": f"for {job.budget:g} points: {_in_words(chosen)}{doubt}",
    }


def _as_configured(job: PilotJob, plan: Plan, forecasts: Forecasts, whole: Length) -> Row | None:
    """Return what is expected at the configured rate; None if it lies outside the rates measured."""
    rate = plan.planned.optimizer.learning_rate
    low, high = job.rates
    return forecasts.at(rate, whole).row() if low <= rate <= high else None


def lengths(plan: Plan) -> list[Length]:
    """Return the lengths of the grid, none shorter than the curves' first point."""
    assert plan.planned.steps is not None
    shortest = effective_passes(plan.narrow, plan.sampled_tokens, plan.share)[first_counted(plan.narrow) - 1]
    found = {}
    for part in range(1, proposal.LENGTHS + 1):
        steps = max(1, round(plan.planned.steps * part / proposal.LENGTHS))
        settings = plan.planned.model_copy(update={"steps": steps})
        passes = effective_passes(settings, plan.tokens, plan.share)[-1]
        if passes >= shortest or part == proposal.LENGTHS:
            found[steps] = Length(steps, passes)
    return list(found.values())


def _recovery(job: PilotJob, chosen: Candidate) -> str:
    """Return "auto", which begins with nothing at all, where that may pass; else the configured method."""
    return "auto" if chosen.loss.low <= job.settings.eval.margin else job.settings.distill.method


def _in_words(one: Candidate) -> str:
    length = f"{counted(one.length.steps, 'step')} ({one.length.passes:.1f} passes at the full rate)"
    kl = f"KL {one.kl.value:.3g} [{one.kl.low:.3g}, {one.kl.high:.3g}]"
    return (
        f"rate {one.rate:.3g} for {length} is expected to cost {in_points(one.loss)} points of behaviour and "
        f"to teach {in_points(one.learned)} % of what was unknown ({kl})"
    )


def in_points(share: Estimate) -> str:
    """Format a share with its interval, in hundredths."""
    return f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
