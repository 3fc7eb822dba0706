"""Pilot: two narrow midtrainings on a share of the documents, and a proposal for the whole of them.

Both run through the code of `recover midtrain`, at two rates, for as many steps as the whole one, each of a
share of the tokens. Along each, the KL to the clean model and the answers to questions are measured;
curves of rate and length are fitted to both (pipelines/piloting/rate_curves.py). What a nat costs in
behaviour comes from earlier cycles of the home, else from a sample of prompts asked of the pilot's
checkpoints. `current` stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.config.jobs import PilotJob
from pipelines.config.narrow_midtraining import first_counted
from pipelines.piloting import narrow_runs, plan, rate_curves
from pipelines.piloting.narrow_runs import Trained
from pipelines.piloting.proposal import Forecasts
from pipelines.piloting.proposed_cycle import lengths, proposed
from pipelines.piloting.rate_curves import Curve, Kind, Point
from pipelines.runs.kept_texts import kept_before
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.stage_runner import Result, Stage, run_job
from pipelines.runs.workspace import Workspace


def pilot(ws: Workspace, job: PilotJob, *, key: str | None = None) -> Result:
    """Return {"pilots": one row each, "planned", "proposal", "command", "words", ...}."""
    job = pinned(ws, job, texts_kept=kept_before(ws, None, key, plan.PLAN))
    return run_job(ws, "pilot", _work, job, key=key)


def _work(ws: Workspace, job: PilotJob, stage: Stage) -> Result:
    made = plan.planned(ws, job, stage)
    stage.say(plan.announced(ws, made))
    trained = []
    for number, rate in enumerate(job.rates, 1):
        trained.append(narrow_runs.trained(ws, job, stage, made, rate))
        stage.live.progress(number, len(job.rates))
    first = first_counted(made.narrow)
    kl = _curve(trained, "kl", first)
    learned = _curve(trained, "learned", first)
    law, losses = narrow_runs.behaviour_law(ws, job, stage, trained)
    measured: Result = {
        "docs": job.docs,
        "student": job.student,
        "budget": job.budget,
        "sample": made.model_dump(exclude={"planned", "narrow"}),
        "pilots": [one.row(made, lost) for one, lost in zip(trained, losses, strict=True)],
        "curves": {"kl": kl.row() if kl else None, "learned": learned.row() if learned else None},
        "law": law.row() if law else None,
        "planned": None,
        "proposal": None,
        "command": None,
    }
    passes = lengths(made)[-1].passes
    poor = _too_poor("KL", kl, job.rates, passes) or _too_poor("knowledge", learned, job.rates, passes)
    if poor:
        return measured | {"words": f"nothing is proposed: {poor}"}
    if kl is None or learned is None or law is None:
        return measured | {"words": "nothing is proposed: neither midtraining moved the model"}
    error = max(one.error for one in trained)
    return measured | proposed(ws.command, job, made, Forecasts(kl, learned, law, error))


def _curve(trained: Sequence[Trained], name: Kind, first: int) -> Curve | None:
    """Fit a curve of rate and passes to what was measured along all midtrainings, from a step on."""
    points = [
        Point(one.rate, row["passes"], row[name])
        for one in trained
        for row in one.points
        if row["step"] >= first
    ]
    return rate_curves.fit(points, name)


def _too_poor(name: str, curve: Curve | None, rates: Sequence[float], passes: float) -> str | None:
    """Return why a curve says too little about the whole length at one of the rates, if it does."""
    for rate in rates:
        reason = rate_curves.too_poor(curve, rate, passes)
        if reason:
            return f"the curve of {name} is too poor: {reason}"
    return None
