"""Build a pilot's job from settings and options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from evals.ifeval import IFEVAL
from pipelines.config.jobs import EvalJob, PilotJob
from pipelines.config.settings import Config
from pipelines.engines.engine_places import require_place
from pipelines.evaluation.question_checks import require_answerable
from pipelines.evaluation.suites import suites_of
from pipelines.job_from_options.ifeval_prompts import with_ifeval
from pipelines.job_from_options.inputs import (
    NONE,
    Changes,
    midtraining_prompts,
    resolved,
    training_folder,
    with_augmented,
)
from pipelines.job_from_options.train import require_stage
from pipelines.job_from_options.trained_weights import require_sampled
from pipelines.piloting.narrow_runs import known_law
from pipelines.prompts.prompt_sources import HUB, read_prompts
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace
from pipelines.writing.self_prompts import SELF
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.storage.checkpoints import Checkpoint

PILOT_SHARE = 0.125  # of the documents


def pilot_job(
    ws: Workspace,
    docs: Path,
    budget: float,
    *,
    student: str = "current",
    rates: str | None = None,
    share: float = PILOT_SHARE,
    changes: Changes = NONE,
) -> PilotJob:
    """Build a pilot; without rates, of the configured learning rate and a quarter of it."""
    _require_shares(budget, share)
    settings = resolved(ws, docs, changes)
    rate = settings.midtrain.optimizer.learning_rate
    tried = parse_rates(rates) if rates else (rate / 4, rate)
    if settings.midtrain.method != "text":
        raise InputError("a pilot predicts training on text: set midtrain.method to text, or run the cycle")
    settings = _without_retold(settings, changes)
    chosen = ws.checkpoint(student)
    require_stage(ws, chosen, settings, "midtrain", changes, further=len(tried) - 1)
    folder = training_folder(ws, docs, settings)
    settings = with_ifeval(ws, settings, changes)
    if known_law(ws) is None:
        _require_behaviour(ws, chosen, settings)
    earlier = earlier_probes(ws, chosen.id)
    if "distill.prompts" in changes and not settings.midtrain.mix.chat:
        _require_prompts(settings.distill.prompts)
    return PilotJob(
        docs=folder,
        student=chosen.id,
        student_name=student,
        clean=ws.clean().id,
        settings=settings,
        prompts=midtraining_prompts(ws, docs, chosen.id, settings, changes, earlier),
        earlier=earlier,
        rates=tried,
        share=share,
        budget=budget,
        changes=dict(changes),
        seed=settings.seed,
    )


def _require_shares(budget: float, share: float) -> None:
    """Refuse a budget or a share of the documents that means nothing."""
    if not 0 < budget <= 100:
        raise InputError(f"--budget {budget:g}: give points of behaviour, above 0 and up to 100")
    if not 0 < share <= 1:
        raise InputError(f"--share {share:g}: give a share of the documents, above 0 and up to 1")


def _require_prompts(source: str) -> None:
    """Refuse a file of prompts that the proposed cycle could not read, for which alone it was typed."""
    if source != SELF and not source.startswith(HUB):
        read_prompts(source)


def _without_retold(settings: Config, changes: Changes) -> Config:
    """Return the settings with a mix that has no retold documents: a pilot reads none and proposes none."""
    midtrain = with_augmented(settings.midtrain, None, changes)
    midtrain = midtrain.model_copy(update={"mix": midtrain.mix.without("augmented")})
    return settings.model_copy(update={"midtrain": midtrain})


def _require_behaviour(ws: Workspace, student: Checkpoint, settings: Config) -> None:
    """Refuse what stands in the way of asking IFEval's prompts."""
    require_place("sampler", settings.eval.sampler, ws.config)
    require_sampled(ws, student, settings, ["midtrain"], ["eval"])
    asked = EvalJob(checkpoint=ws.clean().id, suites=(IFEVAL,), settings=settings.eval)
    require_answerable(ws, ws.clean(), suites_of(asked), asked.settings.sampler)


def parse_rates(text: str) -> tuple[float, float]:
    """Parse two different learning rates with a comma between; return the lower one first."""
    try:
        low, high = sorted(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"--rates {text}: write two learning rates, as in 5e-5,2e-4") from error
    if not 0 < low < high < float("inf"):
        raise InputError(f"--rates {text}: give two different learning rates above 0")
    return low, high
