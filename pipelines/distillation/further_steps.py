"""Take further steps while the student comes nearer to its teacher, and say where that goes on at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from db.reads import curves
from recovery.methods.choices import TEACHER_SIGNALS
from recovery.training.plateau import MEASURES, Plateau

if TYPE_CHECKING:
    from pipelines.config.sections.distill import DistillConfig
    from pipelines.runs.stage_runner import Stage

FEWEST = 10  # steps of a stretch, below which its mean is mostly chance


def checks(stage: Stage, settings: DistillConfig) -> list[FurtherSteps]:
    """Return the check of a method whose teacher's signal tells how near the student is; else none."""
    if settings.resolved_method().signal not in TEACHER_SIGNALS:
        return []

    def before(step: int) -> dict[int, dict[str, float]]:
        return curves.metrics_by_step(stage.workspace.tracker.db, stage.id, MEASURES, before=step)

    return [FurtherSteps(Plateau(settings.steps, before=before), settings.most_steps, stage.say)]


class FurtherSteps:
    """A check after each step that ends the training at a plateau before the last one."""

    def __init__(self, plateau: Plateau, most: int, say: Callable[[str], None]) -> None:
        self.plateau = plateau
        self.most = most
        self.say = say

    def __call__(self, step: int, metrics: Mapping[str, float]) -> str | None:
        reason = self.plateau(step, metrics)
        if step < self.most:
            return reason
        if self.plateau.stretch >= FEWEST and self.plateau.falls(step):
            means = self.plateau.in_words(step)
            self.say(
                f"  correction   still goes on after {step} steps ({means}): more may bring more back "
                "(distill.steps, distill.more_steps)"
            )
        return None
