"""Compare the free disk with what trainings write: states to resume from, and checkpoints."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.config.fitted import ModelSize
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.training_weights import ADAPTER_BYTES, averaged_bytes, surely_trained
from pipelines.machine import fitting, model_sizes
from pipelines.machine.gpus import on_gpu
from pipelines.machine.stage_memory import LASTING_BYTES
from recovery.errors import InputError
from recovery.memory import gib

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from pipelines.config.settings import Config, TrainingSettings
    from pipelines.runs.workspace import Workspace
    from recovery.storage.checkpoints import Checkpoint

STAGES = ("midtrain", "distill")
AT_ONCE = 3  # states: the newest two, and one that is being written


@dataclass(frozen=True)
class Written:
    """The bytes that a training writes."""

    stage: str
    state: int  # each
    states: int  # that lie there at once, at most
    checkpoint: int
    mixture: int = 0  # of the student's weights and the teacher's, where an adapter is trained on one

    @property
    def stays(self) -> int:
        return self.checkpoint + self.mixture

    @property
    def least(self) -> int:
        """Return the bytes without which the training cannot end."""
        return self.state + self.stays


def require_space(
    ws: Workspace,
    student: Checkpoint,
    settings: Config,
    stages: Sequence[str] = STAGES,
    *,
    further: int = 0,
    mixtures: int = 0,
) -> None:
    """Refuse trainings of which not even one saved state and its checkpoint fit on the home's disk.

    Say where all that they write does not, with so many `further` trainings' checkpoints and `mixtures` of
    weights, each a whole model.
    """
    size = fitting.checkpoint_size(ws, student)
    found = written(settings, size, stages)
    free, prune = _free(ws.home), ws.command("prune")
    for one in found:
        if max(free) < one.least:
            raise InputError(
                f"{ws.home}: {gib(max(free))} are free there, and {one.stage} needs {gib(one.least)} for a "
                f"saved state and its checkpoint: remove what is no longer needed (`{prune}` lists it), "
                "or take a --home on another disk"
            )
    if min(free) < (most := most_at_once(found, further) + mixtures * _whole(size, settings.model)):
        ws.progress.say(
            f"  disk         {gib(min(free))} are free, states and checkpoints take {gib(most)} at most: "
            f"`{prune}` lists what is no longer needed"
        )


def _free(home: Path) -> list[int]:
    """Return the free bytes where a home keeps states and where it keeps checkpoints."""
    places = [home / name for name in ("runs", "checkpoints")]
    return [shutil.disk_usage(place if place.exists() else home).free for place in places]


def cycle_bytes(config: Config) -> tuple[int, int]:
    """Return the bytes without which no cycle of the clean model can end, and those that it takes at most.

    Both are 0 where the model's config.json is not at hand.
    """
    size = model_sizes.size_at_hand(config.model)
    if size is None:
        return 0, 0
    found = written(config, model_sizes.model_size(size, config.model, on_gpu()), STAGES)
    return max(one.least for one in found), most_at_once(found)


def written(settings: Config, size: ModelSize, stages: Sequence[str]) -> list[Written]:
    """Return what each of the stages writes, one after the other, from a student of that size."""
    found, machine = [], fitting.this_machine(settings.model)
    for stage in stages:
        training = fitting.fitted_training(settings.training(stage), size, machine)
        mixture = 0
        if training.adapter and not size.rank:  # else the student's adapter is trained on
            size = replace(size, rank=training.adapter.rank)
            mixture = _whole(size, settings.model) if stage == "distill" and settings.distill.merge else 0
        found.append(replace(_written(stage, training, size, settings.model), mixture=mixture))
    return found


def most_at_once(found: Sequence[Written], further: int = 0) -> int:
    """Return what lies there at once, at most: a stage's states go when it ends, its checkpoint stays."""
    states = max((one.state * one.states for one in found), default=0)
    largest = max((one.checkpoint for one in found), default=0)
    return states + sum(one.stays for one in found) + further * largest


def _whole(size: ModelSize, model: ModelConfig) -> int:
    """Return the bytes of a checkpoint of all weights."""
    return size.parameters * model.number_bytes(on_gpu())


def _written(stage: str, training: TrainingSettings, size: ModelSize, model: ModelConfig) -> Written:
    trained = surely_trained(size, training.adapter, training.freeze_embeddings)
    if training.adapter:
        checkpoint = ADAPTER_BYTES * trained
    else:
        checkpoint = _whole(size, model)
    state = (LASTING_BYTES + averaged_bytes(training)) * trained
    steps = training.most_steps if isinstance(training, DistillConfig) else training.steps
    return Written(stage, state, _states(training.save_every, steps), checkpoint)


def _states(save_every: int, steps: int | None) -> int:
    """Return how many states lie there at once: of few steps there are fewer than usual."""
    if not save_every:
        return 1
    return min(AT_ONCE, math.ceil(steps / save_every)) if steps else AT_ONCE
