"""Count the memory of each stage: what training keeps, what a pass takes, what sampling takes.

It follows this implementation: weights in bf16, or in float32 where `model.dtype` says so; per trained
parameter an fp32 copy (of bf16 alone), its gradient and two AdamW moments; activations of one microbatch,
counted from the model's own code; a chunk of the loss; the sampler's KV cache.
`python -m benchmarks.speed.plan_memory` compares the sums with what is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.config import fitted
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import Config
from pipelines.config.training_weights import gathered_bytes, trained

if TYPE_CHECKING:
    from recovery.methods.method import Method
    from recovery.models.activations import Training
    from recovery.models.size import Size

FP32_BYTES = 4
LASTING_BYTES = 4 + 8  # of a trained weight, all the time: fp32 copy (or adapter) and two moments
GRADIENT_BYTES = 4  # of a trained weight, within an update
HEAD_GRADIENT_BYTES = 4  # of a weight of the head: its gradient over all chunks, beside that of one
BUSY = (  # what training holds only while it computes
    "activations",
    "the adapter's activations",
    "loss",
    "going back through the layers, beyond the loss",
)
SAMPLED_ROWS = 256  # rows of the in-process sampler


@dataclass(frozen=True)
class PlannedWork:
    """The planned work: a model, and sizes of a step and of each stage, as in recover.yaml."""

    size: Size
    config: Config
    processes: int = 1
    document_tokens: int = 2_000_000
    prompt_tokens: int = fitted.TRAINED_PROMPT
    answer_tokens: int = 400

    @property
    def parts(self) -> int:
        """The processes over which weights, gradients and optimizer are sharded."""
        return self.processes if self.config.model.shard else 1

    @property
    def number_bytes(self) -> int:
        """The bytes of a weight as it is loaded on a GPU."""
        return self.config.model.number_bytes(gpu=True)

    @property
    def answer(self) -> int:
        """The tokens of a typical answer of recovery, which its limit cuts."""
        return min(self.answer_tokens, self.config.distill.max_new_tokens)

    def lora(self, stage: str) -> LoraConfig | None:
        return self.config.training(stage).adapter

    def trained(self, stage: str) -> int:
        """Return how many weights a stage trains."""
        return trained(self.size, self.lora(stage), self.config.training(stage).freeze_embeddings)

    @property
    def weights(self) -> float:
        """The bytes of the loaded model's weights."""
        return self.size.weight_bytes(self.config.model.quantize is not None, self.number_bytes)

    @property
    def ends(self) -> float:
        """The bytes of the weights that lie in no layer."""
        return float(self.number_bytes * (self.size.embeddings + self.size.unused))

    def trains_copies(self, stage: str) -> bool:
        """Return whether the optimizer holds fp32 copies of weights that are loaded in fewer bits."""
        return self.lora(stage) is None and self.number_bytes < FP32_BYTES

    def lasting_bytes(self, stage: str) -> int:
        """Return what training keeps of a trained weight all the time, beside the loaded model."""
        is_loaded = self.lora(stage) is None and not self.trains_copies(stage)
        return LASTING_BYTES - (FP32_BYTES if is_loaded else 0)


def training_memory(job: PlannedWork, stage: str) -> dict[str, float]:
    """Return the memory of a training, independent of its data."""
    size, lora = job.size, job.lora(stage)
    checkpointing = job.config.model.checkpoints_gradients(gpu=True)
    count = job.trained(stage)
    tokens = tokens_of_a_pass(job, stage)
    plain = training_bytes(size, checkpointing, job.number_bytes)
    adapted = training_bytes(size, checkpointing, job.number_bytes, lora.rank if lora else None)
    # Beside what is kept: while the loss is computed its chunk, going back through the layers one of these.
    going_back = tokens * (adapted.peak - adapted.kept)
    head = _head(job, stage)
    loss = _loss_bytes(job, stage) + (HEAD_GRADIENT_BYTES + job.number_bytes) * head
    memory = {
        "weights": job.weights / job.parts,
        "gradients and optimizer": count * (job.lasting_bytes(stage) + GRADIENT_BYTES) / job.parts,
        # Frozen weights need no inputs for their gradients: an adapted model may keep less than a plain one.
        "activations": tokens * min(plain.kept, adapted.kept),
        "the adapter's activations": tokens * max(0.0, adapted.kept - plain.kept)
        + _expert_bytes(size, checkpointing, lora, job.number_bytes),
        "loss": loss,
        "shards of other GPUs, gathered to compute": gathered_bytes(
            job.weights, job.ends, size.layers, job.parts
        ),
        "going back through the layers, beyond the loss": max(
            0.0, going_back + job.number_bytes * head - loss
        ),
    }
    # bf16 gradients are complete only when a pass's activations are gone; fp32 ones are those counted above.
    gradients = job.number_bytes * count / job.parts + going_back if job.trains_copies(stage) else 0.0
    busy = sum(memory[name] for name in BUSY)
    memory["gradients of a pass, beyond activations"] = max(0.0, gradients - busy)
    return memory


def tokens_of_a_pass(job: PlannedWork, stage: str) -> int:
    """Return the most tokens in a forward pass of training."""
    settings = job.config.training(stage)
    if isinstance(settings, MidtrainConfig):
        return settings.microbatch_tokens
    return fitted.tokens_of_a_pass(settings.microbatch_tokens, settings.max_new_tokens, job.prompt_tokens)


def _head(job: PlannedWork, stage: str) -> int:
    """Return the trained weights of the head."""
    trains_head = not job.lora(stage) and not job.config.training(stage).freeze_embeddings
    return job.size.vocabulary * job.size.hidden if trains_head else 0


def _loss_bytes(job: PlannedWork, stage: str) -> float:
    """Return the memory of a chunk of the loss."""
    from recovery.objective.divergences import BISECTED_ENTRIES
    from recovery.objective.objective import CHUNK_ENTRIES

    method = job.config.training(stage).resolved_method()
    share = job.answer / (job.prompt_tokens + job.answer) if stage == "distill" else 1.0
    logits = share * tokens_of_a_pass(job, stage) * job.size.vocabulary
    moved = 12.0 * min(BISECTED_ENTRIES, logits) if method.kl_budget is not None else 0.0
    return logit_bytes(method) * min(CHUNK_ENTRIES["accelerator"][1], logits) + moved


def logit_bytes(method: Method) -> int:
    """Return the most bytes that the objective holds at once for each logit of a chunk."""
    from recovery.methods.choices import TEACHER_SIGNALS

    fp32 = 4
    tensors = 3
    if method.signal in TEACHER_SIGNALS or method.anchor_beta:
        tensors += 1
    if method.signal == "jsd":
        tensors += 3  # the mixture of both distributions
    if method.entry_clip is not None:
        tensors += 3 if method.signal == "jsd" else 4
    return fp32 * tensors


def training_bytes(
    size: Size, checkpointing: bool, number_bytes: int = 2, rank: int | None = None
) -> Training:
    """Return activation bytes per token, as the model's own code makes them; `rank` is that of an adapter.

    Where that can't be counted: all layers, or with checkpointing one and all inputs. An adapter adds each
    layer's fp32 input and low-rank projection."""
    from recovery.models.activations import Training

    counted = size.training(rank, checkpointing, number_bytes)
    if counted:
        return counted
    outputs = sum(matrix.used * matrix.outputs for matrix in size.matrices)
    inputs = float(number_bytes * size.layers * size.hidden)
    layers = number_bytes * (2.0 * outputs + size.attention_width) + 2 * inputs
    if rank is not None:
        layers += 4.0 * sum(m.inputs + rank for m in size.matrices if not m.is_routed)
    return Training(inputs, inputs + layers / size.layers) if checkpointing else Training(layers, layers)


def _expert_bytes(size: Size, checkpointing: bool, lora: LoraConfig | None, number_bytes: int) -> float:
    """Return the bytes of routed experts' weights that are stored with the adapter merged in."""
    experts = sum(m.copies * m.inputs * m.outputs for m in size.matrices if m.is_routed) if lora else 0
    return 2.0 * number_bytes * experts / (size.layers if checkpointing else 1)


@dataclass(frozen=True)
class Sampled:
    """What is sampled together: rows, the different prompts among them, and new tokens of each."""

    rows: float
    prompts: float
    new_tokens: int


def rows_at_once(batch: Sampled, room: float, job: PlannedWork) -> float:
    """Return how many rows are decoded together: all, or as many as fit into `room`, but at least one."""
    from recovery.sampling.budget import FREE_SHARE, LOGITS_BYTES

    held = job.size.decoding(job.prompt_tokens + batch.new_tokens, job.number_bytes)
    row = held.cache + held.step + LOGITS_BYTES * job.size.vocabulary
    return max(1.0, min(SAMPLED_ROWS, batch.rows, FREE_SHARE * room // row))


def sampling_memory(batch: Sampled, room: float, job: PlannedWork) -> dict[str, float]:
    """Return the memory of a batch: its KV cache, and what reading or drawing tokens takes beside it."""
    from recovery.sampling.budget import LOGITS_BYTES

    size, length = job.size, job.prompt_tokens + batch.new_tokens
    rows = rows_at_once(batch, room, job)
    held = size.decoding(length, job.number_bytes)
    cache = rows * held.cache
    logits = LOGITS_BYTES * rows * size.vocabulary
    stepping = max(rows * held.step, cache / size.layers)  # a layer's slots are copied to larger ones
    reading = reading_bytes(size, min(batch.prompts, rows) * job.prompt_tokens, job.number_bytes)
    unused = cache - rows * size.decoding(job.prompt_tokens, job.number_bytes).cache
    return {"keys and values": cache, "reading and drawing": max(logits, stepping, reading - unused)}


def reading_bytes(size: Size, tokens: float, number_bytes: int) -> float:
    """Return the activation bytes of a pass without gradients."""
    from recovery.forward.hidden_states import READ_TOKENS

    each = size.reading(number_bytes) or training_bytes(size, False, number_bytes).kept / size.layers
    return min(tokens, READ_TOKENS["accelerator"]) * each
