"""Estimate memory and time of each stage of a cycle on GPUs.

Times assume the shares of a GPU's peak defined below; memory is listed by its purpose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipelines.config.fitted import counted_by_documents
from pipelines.config.training_weights import (
    ADAPTER_BYTES,
    averaged_bytes,
    copied_bytes,
    second_model,
    staying_bytes,
)
from pipelines.machine.gpus import Gpu
from pipelines.machine.stage_memory import (
    PlannedWork,
    Sampled,
    reading_bytes,
    rows_at_once,
    sampling_memory,
    training_memory,
)
from pipelines.machine.stage_tokens import (
    EVALUATIONS,
    StageTokens,
    UsualLengths,
    evaluation_tokens,
    midtraining_tokens,
    recovery_tokens,
    sharing_processes,
)
from pipelines.runs.cost import Flops
from recovery.memory import GIB

# Shares of a GPU's peak that are reached: of its FLOP/s (training, scoring) and of its bytes/s (reading).
# Those of 8B on an H100 (`python -m benchmarks.speed.gpu`; trained: an adapter); that of scoring is a guess.
TRAINING_SHARE = 0.26
SCORING_SHARE = 0.40
READING_SHARE = 0.32
IFEVAL_PROMPTS = 541


@dataclass(frozen=True)
class Estimate:
    """One stage: bytes by purpose, and seconds (None if the GPU's speed or the stage's length is unknown)."""

    stage: str
    memory: dict[str, float]
    seconds: float | None

    @property
    def gib(self) -> float:
        return sum(self.memory.values()) / GIB


def estimates(gpu: Gpu, job: PlannedWork) -> list[Estimate]:
    """Estimate every stage of a cycle on each of `job.processes` GPUs."""
    return [_midtrain(gpu, job), _distill(gpu, job), _evaluate(gpu, job)]


# Stages ----------------------------------------------------------------------------------------------------


def _midtrain(gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.midtrain
    memory = training_memory(job, "midtrain")
    if second_model(settings, on_teacher=True):
        memory["teacher"] = job.weights
    longest = job.config.distill.max_new_tokens
    tokens = midtraining_tokens(settings, settings.mix.at_first, job.document_tokens, _usual(job), longest)
    chats = Sampled(settings.chat_prompts, settings.chat_prompts, longest)
    # The untrained student answers for the clean model, before there are shards and an optimizer.
    adapter = ADAPTER_BYTES * job.trained("midtrain") if job.lora("midtrain") else 0
    room = gpu.usable_bytes - job.weights - adapter
    if tokens.sampled:
        written = job.weights + adapter + sum(sampling_memory(chats, room, job).values())
        memory["chat replay, beyond training"] = max(0.0, written - sum(memory.values()))
    together = rows_at_once(chats, room, job) if tokens.sampled else 1.0
    known = counted_by_documents(settings)
    return Estimate("midtrain", memory, _midtraining_seconds(gpu, job, tokens, together) if known else None)


def _midtraining_seconds(gpu: Gpu, job: PlannedWork, tokens: StageTokens, together: float) -> float | None:
    """Return the time to train, and before it to answer the chat: by the first process alone."""
    context = job.config.midtrain.row_tokens / 2
    training = _training_flops(job, "midtrain", tokens.trained, context)
    batches = Batches(1, together, job.config.distill.max_new_tokens)
    answering, trains = (gpu.computing(job.number_bytes, tensor_cores=one) for one in (False, True))
    return _sum(
        _decoding_seconds(answering, tokens.sampled, batches, job),
        _scoring_seconds(answering, tokens.scored, job, processes=1),
        _compute_seconds(training, trains, TRAINING_SHARE, job.processes),
    )


def _usual(job: PlannedWork) -> UsualLengths:
    return UsualLengths(job.prompt_tokens, job.answer_tokens)


def _distill(gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.distill
    samples = settings.resolved_method().samples(settings.samples_per_prompt)
    prompts = settings.prompts_per_step / job.processes
    answers = prompts * samples
    batch = Sampled(answers, prompts, settings.max_new_tokens)
    states = job.number_bytes * job.size.hidden * answers * job.answer
    taught = _teacher_memory(job)
    memory = {**training_memory(job, "distill"), **taught, "teacher's states": states}

    # Neither gradients nor activations are there while the student samples and the teacher scores.
    optimizer = job.lasting_bytes("distill") * job.trained("distill") / job.parts
    lasting = optimizer + sum(taught.values())
    updating = sum(memory.values()) - memory["weights"] - lasting
    read = answers * (job.prompt_tokens + job.answer)
    scoring = reading_bytes(job.size, read, job.number_bytes) + states
    memory["scoring, beyond training"] = max(0.0, scoring - updating)

    gathered = job.weights - memory["weights"]  # sampling gathers the shards
    room = gpu.usable_bytes - gathered - memory["weights"] - lasting
    sampling = gathered + sum(sampling_memory(batch, room, job).values())
    before = updating + memory["scoring, beyond training"]
    memory["sampling, beyond training"] = max(0.0, sampling - before)
    at_once = rows_at_once(batch, room, job)
    return Estimate("distill", memory, _distilling_seconds(gpu, job, at_once))


def _teacher_memory(job: PlannedWork) -> dict[str, float]:
    """Return what is there of a teacher all the time: its weights, and a moving average in fp32."""
    settings, trained = job.config.distill, job.trained("distill")
    memory = {"teacher": _second_bytes(job) + copied_bytes(settings, job.number_bytes) * trained}
    if averaged := averaged_bytes(settings):
        memory["the teacher's average"] = float(averaged * trained)
    return memory


def _second_bytes(job: PlannedWork) -> float:
    """Return the weights of a second model: none if there is none, those of one layer if it is offloaded."""
    settings, on_clean = job.config.distill, job.lora("midtrain") is not None
    if not second_model(settings, on_teacher=on_clean, sharded=job.parts > 1):
        return 0.0
    weights = job.weights
    if not settings.offload_teacher:
        return weights
    return staying_bytes(weights, job.ends, job.size.layers)


def _distilling_seconds(gpu: Gpu, job: PlannedWork, at_once: float) -> float | None:
    """Return the time to sample, so many rows at once at most, to score and to train on the answers."""
    tokens = recovery_tokens(job.config.distill, _usual(job))
    sharing = sharing_processes(job.config.distill, _usual(job), job.processes)
    context = (job.prompt_tokens + job.answer) / 2
    training = _training_flops(job, "distill", tokens.trained, context)
    together = min(tokens.rows / job.processes, at_once)
    batches = Batches(job.config.distill.steps, together, job.config.distill.max_new_tokens)
    gpu = gpu.computing(job.number_bytes, tensor_cores=True)  # sampling and scoring too, within its steps
    return _sum(
        _decoding_seconds(gpu, tokens.sampled / job.processes, batches, job),
        _scoring_seconds(gpu, tokens.scored, job, sharing),
        _compute_seconds(training, gpu, TRAINING_SHARE, sharing),
    )


def _evaluate(gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.eval
    weights = job.weights
    rows = settings.batch_size
    batch = Sampled(rows, rows, settings.max_new_tokens)
    room = gpu.usable_bytes - weights
    memory = {"weights": weights, **sampling_memory(batch, room, job)}
    answer = min(job.answer_tokens, settings.max_new_tokens)
    tokens = evaluation_tokens(IFEVAL_PROMPTS, job.prompt_tokens, answer)
    batches = Batches(EVALUATIONS, rows_at_once(batch, room, job), settings.max_new_tokens)
    gpu = gpu.computing(job.number_bytes, tensor_cores=False)
    seconds = _sum(
        _decoding_seconds(gpu, tokens.sampled, batches, job),
        _scoring_seconds(gpu, tokens.scored, job, processes=1),
    )
    return Estimate("evaluate", memory, seconds)


# Time ------------------------------------------------------------------------------------------------------


def _training_flops(job: PlannedWork, stage: str, tokens: float, context: float) -> float:
    """Count a backward pass as two forward passes (one with an adapter), and recomputation as one more."""
    forward = 1
    backward = 1 if job.lora(stage) else 2
    recomputed = 1 if job.config.model.checkpoints_gradients(gpu=True) else 0
    return (forward + backward + recomputed) * Flops.of_size(job.size).forward(tokens, context)


@dataclass(frozen=True)
class Batches:
    """How answers are written: in so many calls of the sampler, of which each decodes its rows in batches."""

    calls: int
    together: float  # rows of a batch
    longest: int  # tokens of an answer at most

    def count(self, answers: float) -> float:
        """Return how many batches so many answers make."""
        return self.calls * math.ceil(round(answers / self.calls / self.together, 6))


def _decoding_seconds(gpu: Gpu, tokens: float, batches: Batches, job: PlannedWork) -> float | None:
    """Return the time to write tokens: rows that are decoded together share the reading of the weights.

    Each token reads them and its row's cache, or is compute-bound. A batch goes on until its longest answer
    ends, which is taken to be of full length."""
    if gpu.bandwidth is None or gpu.flops is None:
        return None
    size, answer = job.size, min(job.answer_tokens, batches.longest)
    seen = job.prompt_tokens + answer / 2
    reading = job.number_bytes * (size.parameters / batches.together + seen * size.cache_numbers)
    arithmetic = Flops.of_size(size).forward(1, seen) / (gpu.flops * SCORING_SHARE)
    bandwidth = gpu.bandwidth * READING_SHARE
    steps = batches.count(tokens / answer) * (batches.longest - answer)
    waiting = steps * job.number_bytes * size.parameters / bandwidth
    return tokens * max(reading / bandwidth, arithmetic) + waiting


def _scoring_seconds(gpu: Gpu, tokens: float, job: PlannedWork, processes: float) -> float | None:
    context = (job.prompt_tokens + job.answer) / 2
    return _compute_seconds(Flops.of_size(job.size).forward(tokens, context), gpu, SCORING_SHARE, processes)


def _compute_seconds(flops: float, gpu: Gpu, share: float, processes: float) -> float | None:
    return None if gpu.flops is None else flops / (gpu.flops * share * processes)


def _sum(*parts: float | None) -> float | None:
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)
