"""Say what a step of a distillation takes: how many answers, and how often each prompt or pair comes up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.engines import engine_checks

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.distillation.inputs import PromptData
    from recovery.methods.method import Method

OFTEN = 4  # times that a prompt or a pair comes up, above which that is said


def plan(settings: DistillConfig, method: Method, data: PromptData) -> str:
    """Return the steps and their size."""
    return fitted.distillation_in_words(
        settings,
        _answers(settings, method, data),
        sampled=method.state_kind != "data",
        in_process=settings.sampler == engine_checks.INPROCESS,
    )


def often(settings: DistillConfig, method: Method, data: PromptData) -> str:
    """Say how often each prompt or pair comes up, where that is often: few are taken over and over."""
    answers, read = _answers(settings, method, data), _share_read(method)
    asked = (1 - read) * answers / method.samples(settings.samples_per_prompt)
    found = ""
    for name, taken, rows in (("prompt", asked, data.prompts), ("pair", read * answers, data.pairs)):
        times = settings.most_steps * taken / max(len(rows), 1)
        found += f"; each {name} comes up about {times:,.0f} times" if times > OFTEN else ""
    return found


def _answers(settings: DistillConfig, method: Method, data: PromptData) -> int:
    """Return the answers of a step, sampled or read: no row comes up twice in it but for its samples."""
    samples = method.samples(settings.samples_per_prompt)
    if method.state_kind == "data":
        return min(settings.prompts_per_step * samples, len(data.pairs))
    return min(settings.prompts_per_step, len(data.prompts)) * samples


def _share_read(method: Method) -> float:
    """Return the share of a step's answers that are read from pairs."""
    return {"data": 1.0, "mix": 1 - method.share}.get(method.state_kind, 0.0)
