"""Estimate memory and time of each stage of a cycle on GPUs.

Times assume the shares of a GPU's peak defined below; memory is listed by its purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.machine.gpus import GIB, Gpu
from pipelines.machine.stage_memory import (
    LASTING_BYTES,
    PlannedWork,
    Sampled,
    method_of,
    reading_bytes,
    rows_at_once,
    sampling_memory,
    trained_weights,
    training_memory,
)
from pipelines.runs.cost import Flops

if TYPE_CHECKING:
    from recovery.models.size import Size

# Shares of a GPU's peak that are reached: of its FLOP/s (training, scoring) and of its bytes/s (reading).
TRAINING_SHARE = 0.35
SCORING_SHARE = 0.40
READING_SHARE = 0.50


@dataclass(frozen=True)
class Estimate:
    """One stage: bytes by purpose, and seconds (None if the GPU's speed is unknown)."""

    stage: str
    memory: dict[str, float]
    seconds: float | None

    @property
    def gib(self) -> float:
        return sum(self.memory.values()) / GIB


def estimates(size: Size, gpu: Gpu, job: PlannedWork) -> list[Estimate]:
    """Estimate every stage of a cycle on each of `job.processes` GPUs."""
    return [_midtrain(size, gpu, job), _distill(size, gpu, job), _evaluate(size, gpu, job)]


# Stages ----------------------------------------------------------------------------------------------------


def _midtrain(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.midtrain
    memory = training_memory(size, job, "midtrain")
    if settings.method == "passage" and not job.lora("midtrain"):
        memory["teacher"] = job.weights(size)
    if settings.mix.chat and settings.method == "text":
        later = sum(memory.values()) - memory["weights"]
        written = _chat_replay_bytes(size, gpu, job, memory["weights"])
        memory["chat replay, beyond training"] = max(0.0, written - later)
    passes = (settings.epochs or 1) / settings.mix.at_first.new
    tokens = (settings.steps or 0) * settings.tokens_per_step or passes * job.document_tokens
    flops = _training_flops(size, job, "midtrain", tokens, settings.row_tokens / 2)
    return Estimate("midtrain", memory, _compute_seconds(flops, gpu, TRAINING_SHARE, job.processes))


def _chat_replay_bytes(size: Size, gpu: Gpu, job: PlannedWork, student: float) -> float:
    """Return what the clean model takes to answer the chat share's prompts, before the optimizer exists."""
    clean = job.weights(size)
    room = gpu.usable_bytes - student - clean
    prompts = job.config.midtrain.chat_prompts
    batch = Sampled(prompts, prompts, job.config.distill.max_new_tokens)
    return clean + sum(sampling_memory(size, batch, room, job).values())


def _distill(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.distill
    samples = method_of(job, "distill").samples(settings.samples_per_prompt)
    prompts = settings.prompts_per_step / job.processes
    answers = prompts * samples
    batch = Sampled(answers, prompts, settings.max_new_tokens)
    states = 2.0 * size.hidden * answers * job.answer_tokens
    memory = training_memory(size, job, "distill")
    memory["teacher"] = _teacher_bytes(size, job)
    memory["teacher's states"] = states

    # Neither gradients nor activations are there while the student samples and the teacher scores.
    lasting = _lasting_bytes(size, job)
    updating = sum(memory.values()) - memory["weights"] - memory["teacher"] - lasting
    scoring = reading_bytes(size, answers * (job.prompt_tokens + job.answer_tokens)) + states
    memory["scoring, beyond training"] = max(0.0, scoring - updating)

    gathered = job.weights(size) - memory["weights"]  # sampling gathers the shards
    room = gpu.usable_bytes - gathered - memory["weights"] - memory["teacher"] - lasting
    sampling = gathered + sum(sampling_memory(size, batch, room, job).values())
    before = updating + memory["scoring, beyond training"]
    memory["sampling, beyond training"] = max(0.0, sampling - before)
    at_once = rows_at_once(size, batch, room, job)
    return Estimate("distill", memory, _distilling_seconds(size, gpu, job, answers, at_once))


def _teacher_bytes(size: Size, job: PlannedWork) -> float:
    """Return the teacher's weights: none if it is the student without its adapter, one layer if offloaded."""
    if job.lora("midtrain") and job.lora("distill"):
        return 0.0
    layers = job.weights(size) - 2.0 * size.embeddings
    resting = layers - layers / size.layers if job.config.distill.offload_teacher else 0.0
    return job.weights(size) - resting


def _lasting_bytes(size: Size, job: PlannedWork) -> float:
    """Return what the distillation's optimizer holds between updates."""
    parts = job.processes if job.config.model.shard else 1
    return LASTING_BYTES * trained_weights(size, job, "distill") / parts


def _distilling_seconds(
    size: Size, gpu: Gpu, job: PlannedWork, answers: float, at_once: float
) -> float | None:
    """Return the time to sample a GPU's answers, to score and to train on all of them, in every step."""
    steps = job.config.distill.steps
    tokens = steps * answers * job.processes * (job.prompt_tokens + job.answer_tokens)
    context = (job.prompt_tokens + job.answer_tokens) / 2
    scoring = Flops.of_size(size).forward(tokens, context)
    training = _training_flops(size, job, "distill", tokens, context)
    return _sum(
        _times(steps, _decoding_seconds(size, gpu, answers, at_once, job)),
        _compute_seconds(scoring, gpu, SCORING_SHARE, job.processes),
        _compute_seconds(training, gpu, TRAINING_SHARE, job.processes),
    )


def _evaluate(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.eval
    weights = job.weights(size)
    rows = settings.batch_size
    batch = Sampled(rows, rows, settings.max_new_tokens)
    room = gpu.usable_bytes - weights
    memory = {"weights": weights, **sampling_memory(size, batch, room, job)}
    rounds = -(-job.eval_prompts // rows)
    at_once = rows_at_once(size, batch, room, job)
    return Estimate("evaluate", memory, _times(rounds, _decoding_seconds(size, gpu, rows, at_once, job)))


# Time ------------------------------------------------------------------------------------------------------


def _training_flops(size: Size, job: PlannedWork, stage: str, tokens: float, context: float) -> float:
    """Count a backward pass as two forward passes (one with an adapter), and recomputation as one more."""
    forward = 1
    backward = 1 if job.lora(stage) else 2
    recomputed = 1 if job.config.model.checkpoints_gradients(gpu=True) else 0
    return (forward + backward + recomputed) * Flops.of_size(size).forward(tokens, context)


def _decoding_seconds(size: Size, gpu: Gpu, rows: float, at_once: float, job: PlannedWork) -> float | None:
    """Return the decoding time: each token reads all weights and the cache, or is compute-bound."""
    if gpu.bandwidth is None or gpu.flops is None:
        return None
    seen = job.prompt_tokens + job.answer_tokens / 2
    batches = max(1.0, rows / at_once)
    reading = 2 * (batches * size.parameters + rows * seen * size.cache_numbers)
    arithmetic = Flops.of_size(size).forward(rows, seen) / (gpu.flops * SCORING_SHARE)
    return job.answer_tokens * max(reading / (gpu.bandwidth * READING_SHARE), arithmetic)


def _compute_seconds(flops: float, gpu: Gpu, share: float, processes: int) -> float | None:
    return None if gpu.flops is None else flops / (gpu.flops * share * processes)


def _times(count: float, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds


def _sum(*parts: float | None) -> float | None:
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)
