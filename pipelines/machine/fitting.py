"""Fit a stage's settings to the model and to this machine's memory, once per run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipelines.config.fitted import (
    CPU_MICROBATCH,
    Machine,
    ModelSize,
    fit_distillation,
    fit_midtraining,
    fit_to_corpus,
)
from pipelines.config.home_settings import code_of, servers_elsewhere
from pipelines.config.sections.base import Section
from pipelines.config.sections.midtrain import MidtrainConfig, Mix
from pipelines.config.sections.training import LoraConfig
from pipelines.machine import model_sizes
from pipelines.machine.gpus import USABLE, on_gpu
from recovery.errors import InputError
from recovery.launch_env import launched, launched_here
from recovery.memory import main_memory

if TYPE_CHECKING:
    from pipelines.config.sections.model import ModelConfig
    from pipelines.config.settings import Config, TrainingSettings
    from pipelines.runs.stage_runner import Stage
    from pipelines.runs.workspace import Workspace
    from recovery.storage.checkpoints import Checkpoint

S = TypeVar("S", bound=Section)
FITTED = "fitted.json"
USABLE_CPU = 0.7  # share of main memory; the rest is for the system


def mix_of(ws: Workspace, student: str, mix: Mix) -> Mix:
    """Return the mix that a student is midtrained with: it has no earlier documents the first time."""
    return mix if ws.midtraining_runs(student) else mix.at_first


def fitted_once(stage: Stage, checkpoint: str, settings: S, fit: Callable[[S, ModelSize, Machine], S]) -> S:
    """Return the fitted settings; a run resumed on another machine keeps what was fitted at its first start.

    All others are taken as the job has them: files may have moved along with the home."""
    ws, given = stage.workspace, settings.model_dump(mode="json")

    def fitted() -> dict[str, Any]:
        found = fitted_here(ws, ws.checkpoint(checkpoint), settings, fit).model_dump(mode="json")
        return {name: value for name, value in found.items() if value != given[name]}

    kept = type(settings).model_validate(given | stage.once(FITTED, fitted))
    if code_of(kept) != code_of(settings):
        raise InputError(f"{stage.directory / FITTED} asks to run other code than its run does: remove it")
    if servers_elsewhere(kept) != servers_elsewhere(settings):
        raise InputError(f"{stage.directory / FITTED} names another server than its run does: remove it")
    return kept


def fitted_here(
    ws: Workspace, checkpoint: Checkpoint, settings: S, fit: Callable[[S, ModelSize, Machine], S]
) -> S:
    """Return the settings fitted to a checkpoint's size and to this machine's memory."""
    return fit(settings, checkpoint_size(ws, checkpoint), this_machine(ws.config.model))


def first_midtraining(config: Config, tokens: int) -> MidtrainConfig:
    """Return the settings of a first midtraining on so many tokens, without retold documents.

    They are fitted to this machine and to the model by its config.json alone, unless it is not to be had."""
    size, settings = model_sizes.size_at_hand(config.model), config.midtrain
    if size:
        measured = model_sizes.model_size(size, config.model, on_gpu())
        settings = fit_midtraining(settings, measured, this_machine(config.model), on_teacher=True)
    settings = settings.model_copy(update={"mix": settings.mix.without("augmented")})
    return fit_to_corpus(settings, tokens, settings.mix.at_first.new, size.context if size else None)


def fitted_training(settings: TrainingSettings, size: ModelSize, machine: Machine) -> TrainingSettings:
    """Return the settings of a training fitted to a model and a machine."""
    if isinstance(settings, MidtrainConfig):
        return fit_midtraining(settings, size, machine)
    return fit_distillation(settings, size, machine)


def adapter_of(ws: Workspace, student: Checkpoint, settings: TrainingSettings) -> LoraConfig | None:
    """Return the adapter that a training asks for, by this machine's memory where it leaves that open."""
    if settings.lora == "auto":
        settings = fitted_here(ws, student, settings, fitted_training)
    return settings.adapter


def checkpoint_size(ws: Workspace, found: Checkpoint) -> ModelSize:
    """Return the size of a checkpoint, or of an adapter's base model, from its config.json."""
    from recovery.models.adapters import adapter_rank

    path = ws.checkpoint(found.base).path if found.base else found.path
    rank = adapter_rank(found.path) or 0
    try:
        size = model_sizes.read_size(str(path))
    except InputError:
        return replace(_by_weights(path, ws.config.model), rank=rank)
    return replace(model_sizes.model_size(size, ws.config.model, on_gpu()), rank=rank)


def _by_weights(path: Path, model: ModelConfig) -> ModelSize:
    """Estimate the size of an unknown architecture from the bytes of its weights, as for similar decoders.

    Which of its layers 4 bits would hold is not known: all count as whole.
    """
    parameters = sum(file.stat().st_size for file in path.glob("*.safetensors")) // 2
    width = max(64, round((parameters / 200) ** 0.5))
    whole = float(parameters * model.number_bytes(on_gpu()))
    quantized_bytes = whole if model.quantize else 0.0
    return ModelSize(parameters, parameters // 20, 600 * width, 60 * width, quantized_bytes)


def this_machine(model: ModelConfig) -> Machine:
    """Return the memory available to one process, how it holds a weight, and which part of them."""
    import torch

    gpu = torch.cuda.is_available()
    weight_bytes = model.number_bytes(gpu)
    parts = launched() if model.shard else 1
    if gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        return Machine(USABLE * total, weight_bytes, parts, whole_bytes=total)
    whole = main_memory() / launched_here()
    return Machine(
        USABLE_CPU * whole,
        weight_bytes,
        parts,
        pass_tokens=CPU_MICROBATCH,
        whole_bytes=whole,
        has_host=False,
    )
