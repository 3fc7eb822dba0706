"""Will it fit, how long will it take, what would it cost: worked out from a config.json alone. No torch here.

Memory is counted as this code holds it: bf16 weights; for what is trained an fp32 copy, its gradient and two
AdamW moments; activations of one microbatch; a chunk of the loss. Times assume the shares of a GPU's peak
that are named below; they are estimates, and every row says what it is made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipelines.config.fitted import (
    Machine,
    ModelSize,
    fit_distillation,
    fit_evaluation,
    fit_midtraining,
    fit_to_corpus,
)
from pipelines.config.settings import CONFIG_NAME, Config, LoraConfig, parse, preset_text, read
from recovery.errors import InputError

GIB, BILLION = 2**30, 1e9
USABLE = 0.92  # of a GPU's memory: the rest is the driver's, and fragments
LOSS_BYTES = 6 * 4 * 2**26  # six fp32 tensors of one chunk, the most that the objective holds
SAMPLED_ROWS = 256  # of the in-process sampler
TRAINING_SHARE, SCORING_SHARE, READING_SHARE = 0.35, 0.40, 0.50  # of peak FLOP/s, and of peak bytes/s


@dataclass(frozen=True)
class Shape:
    """A decoder as its config.json describes it."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    experts: int = 1
    active_experts: int = 1

    @property
    def linear(self) -> list[tuple[int, int]]:
        """(in, out) of the linear layers that a token meets in one block; of a mixture's experts, one's."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, wide), (self.hidden, narrow), (self.hidden, narrow), (wide, self.hidden)]
        return attention + [(self.hidden, self.intermediate)] * 2 + [(self.intermediate, self.hidden)]

    def _block(self, experts: int) -> int:
        sizes = [a * b for a, b in self.linear]
        router = self.hidden * self.experts if self.experts > 1 else 0
        return sum(sizes[:4]) + experts * sum(sizes[4:]) + router

    @property
    def embeddings(self) -> int:
        """The head included, where it is not the same."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return self.layers * (self._block(self.experts) + norms) + self.embeddings + self.hidden

    @property
    def active(self) -> int:
        """Weights that one token is multiplied with, the head included."""
        return self.layers * self._block(self.active_experts) + self.vocabulary * self.hidden

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA on every linear layer but the head."""
        sizes = [rank * (a + b) for a, b in self.linear]
        return self.layers * (sum(sizes[:4]) + self.experts * sum(sizes[4:]))

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token, bf16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def activation_bytes(self, checkpointing: bool) -> int:
        """What one token leaves for the backward pass, bf16: in every block, or at each block's door."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inside = 6 * self.hidden + 3 * wide + 4 * narrow + 4 * self.intermediate * self.active_experts
        return 2 * (self.layers * self.hidden + inside) if checkpointing else 2 * self.layers * inside


def _qwen3(layers: int, hidden: int, heads: int, intermediate: int, tied: bool) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
        "model_type": "qwen3",
    }


SIZES: dict[str, dict[str, Any]] = {  # Qwen3's own shapes; 70B is Llama 3's
    "0.6B": _qwen3(28, 1024, 16, 3072, True),
    "1.7B": _qwen3(28, 2048, 16, 6144, True),
    "4B": _qwen3(36, 2560, 32, 9728, True),
    "8B": _qwen3(36, 4096, 32, 12288, False),
    "14B": _qwen3(40, 5120, 40, 17408, False),
    "32B": _qwen3(64, 5120, 64, 25600, False),
    "70B": {**_qwen3(80, 8192, 64, 28672, False), "vocab_size": 128256, "model_type": "llama"},
}


@dataclass(frozen=True)
class Gpu:
    """One kind of GPU; dense bf16 FLOP/s and bytes/s as its vendor gives them. Prices differ: `--price`."""

    name: str
    gib: float
    flops: float | None = None
    bandwidth: float | None = None


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("L4", 22.5, 121e12, 0.30e12),
        Gpu("RTX4090", 24, 165e12, 1.0e12),
        Gpu("L40S", 45, 362e12, 0.86e12),
        Gpu("A100-40", 40, 312e12, 1.55e12),
        Gpu("A100", 80, 312e12, 2.0e12),
        Gpu("H100", 80, 989e12, 3.35e12),
        Gpu("H200", 139, 989e12, 4.8e12),
        Gpu("B200", 178, 2250e12, 8.0e12),
        Gpu("MI300X", 190, 1307e12, 5.3e12),
    )
}


def parse_gpus(text: str) -> tuple[int, Gpu]:
    """`8xH100`, `H200`, `24GB` or `2x24GB` (whose speed is not known)."""
    found = re.fullmatch(r"(?:(\d+)\s*[xX×]\s*)?([\w.-]+)", text.strip())
    if found:
        count, name = int(found[1] or 1), found[2].upper()
        by_name = {known.upper(): gpu for known, gpu in GPUS.items()}
        memory = re.fullmatch(r"(\d+(?:\.\d+)?)\s*G(?:I?B)?", name)
        if count and name in by_name:
            return count, by_name[name]
        if count and memory:
            return count, Gpu(f"{memory[1]} GB", float(memory[1]))
    raise InputError(f"--gpus {text}: write 8xH100, 24GB or 2x24GB; known are {', '.join(GPUS)}")


def shape_of(name: str, config: dict[str, Any]) -> Shape:
    """From a config.json, of Llama's family as most open models are."""
    config = {**config, **config.get("text_config", {})}
    try:
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        experts = config.get("num_experts") or config.get("num_local_experts") or 1
        expert_width = config.get("moe_intermediate_size") if experts > 1 else None
        return Shape(
            name=name,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(expert_width or config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=str(config.get("model_type", "")).startswith("qwen3"),
            experts=int(experts),
            active_experts=int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1,
        )
    except (KeyError, TypeError) as error:
        raise InputError(f"{name}: its config.json lacks {error}: give a size instead, as in 8B") from error


def read_shape(model: str) -> Shape:
    """A size (8B), `microworld`, a directory or config.json, or a hub id: only its config.json is read."""
    if model.upper() in SIZES:
        return shape_of(model.upper(), SIZES[model.upper()])
    path = Path(__file__).parents[1] / "microworld" / "checkpoint" if model == "microworld" else Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        path = _from_hub(model)
    try:
        return shape_of(model, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a model's config.json: {error}") from error


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:
        sizes = ", ".join(SIZES)
        raise InputError(
            f"--model {model}: no directory, and not to be had from the hub ({type(error).__name__}): "
            f"give a directory, a hub id or a size: {sizes}"
        ) from error


@dataclass(frozen=True)
class Job:
    """What is planned: sizes of a step and of the whole, as recover.yaml has them."""

    config: Config
    processes: int = 1
    document_tokens: int = 2_000_000
    prompt_tokens: int = 200
    answer_tokens: int = 400
    eval_prompts: int = 541

    def lora(self, stage: str) -> LoraConfig | None:
        found: LoraConfig | None = getattr(self.config, stage).lora
        return found


@dataclass(frozen=True)
class Estimate:
    """One stage: bytes by what they are for, and seconds (None where the GPU's speed is not known)."""

    stage: str
    memory: dict[str, float]
    seconds: float | None

    @property
    def gib(self) -> float:
        return sum(self.memory.values()) / GIB


def estimates(shape: Shape, gpu: Gpu, job: Job) -> list[Estimate]:
    """Every stage of a cycle on each of `job.processes` GPUs."""
    return [_midtrain(shape, gpu, job), _distill(shape, gpu, job), _evaluate(shape, gpu, job)]


def _training(shape: Shape, job: Job, stage: str) -> dict[str, float]:
    """What a training holds, whatever it trains on."""
    lora = job.lora(stage)
    settings = getattr(job.config, stage)
    whole = shape.parameters - (shape.embeddings if settings.freeze_embeddings else 0)
    trained = shape.adapter(lora.rank) if lora else whole
    parts = job.processes if job.config.model.shard else 1
    # Full: bf16 gradients on their way to the fp32 copies. Adapters are fp32 and have no copies.
    optimizer = trained * (4 + 8 + (4 if lora else 4 + 2))
    tokens = settings.microbatch_tokens
    return {
        "weights": 2.0 * shape.parameters / parts,
        "gradients and optimizer": optimizer / parts,
        "activations": float(tokens * shape.activation_bytes(job.config.model.gradient_checkpointing)),
        "loss": float(LOSS_BYTES),
    }


def _training_flops(shape: Shape, job: Job, stage: str, tokens: float) -> float:
    """Forward 2, backward 4 a weight and token, with an adapter 2; forward again where it is recomputed."""
    passes = 2 + (2 if job.lora(stage) else 4) + (2 if job.config.model.gradient_checkpointing else 0)
    return passes * shape.active * tokens


def _midtrain(shape: Shape, gpu: Gpu, job: Job) -> Estimate:
    settings = job.config.midtrain
    steps = settings.steps or 0
    passes = (settings.epochs or 1) / settings.mix.new
    tokens = steps * settings.tokens_per_step or passes * job.document_tokens
    flops = _training_flops(shape, job, "midtrain", tokens)
    seconds = _compute(flops, gpu.flops, TRAINING_SHARE, job.processes)
    return Estimate("midtrain", _training(shape, job, "midtrain"), seconds)


def _distill(shape: Shape, gpu: Gpu, job: Job) -> Estimate:
    settings = job.config.distill
    answers = settings.prompts_per_step * settings.samples_per_prompt
    tokens = answers * (job.prompt_tokens + job.answer_tokens)
    memory = _training(shape, job, "distill")
    below = job.lora("midtrain") and job.lora("distill")  # the teacher is the student with its adapter off
    layers = shape.parameters - shape.embeddings
    resting = layers - layers / shape.layers if settings.offload_teacher else 0.0
    memory["teacher"] = 0.0 if below else 2.0 * (shape.parameters - resting)
    memory["teacher's states"] = 2.0 * shape.hidden * answers * job.answer_tokens / job.processes
    rows = min(SAMPLED_ROWS, answers / job.processes)
    cache = rows * (job.prompt_tokens + settings.max_new_tokens) * shape.cache_bytes
    whole = 2.0 * shape.parameters - memory["weights"]  # shards are put together while it writes
    busy = memory["activations"] + memory["loss"]  # neither is there while it writes
    memory["sampling, beyond training"] = max(0.0, cache + whole - busy)
    scoring = settings.steps * 2 * shape.active * tokens
    training = _training_flops(shape, job, "distill", settings.steps * tokens)
    seconds = _add(
        _times(settings.steps, _write_seconds(shape, gpu, answers / job.processes, job)),
        _compute(scoring, gpu.flops, SCORING_SHARE, job.processes),
        _compute(training, gpu.flops, TRAINING_SHARE, job.processes),
    )
    return Estimate("distill", memory, seconds)


def _evaluate(shape: Shape, gpu: Gpu, job: Job) -> Estimate:
    settings = job.config.eval
    cache = settings.batch_size * (job.prompt_tokens + settings.max_new_tokens) * shape.cache_bytes
    rounds = -(-job.eval_prompts // settings.batch_size)
    seconds = _times(rounds, _write_seconds(shape, gpu, settings.batch_size, job))
    return Estimate("evaluate", {"weights": 2.0 * shape.parameters, "keys and values": float(cache)}, seconds)


def _write_seconds(shape: Shape, gpu: Gpu, rows: float, job: Job) -> float | None:
    """A batch of answers: each token reads all weights and the cache, or is bound by arithmetic."""
    if gpu.bandwidth is None or gpu.flops is None:
        return None
    seen = job.prompt_tokens + job.answer_tokens / 2
    batches = max(1.0, rows / SAMPLED_ROWS)
    reading = batches * (2 * shape.parameters + min(rows, SAMPLED_ROWS) * seen * shape.cache_bytes)
    arithmetic = rows * 2 * shape.active / (gpu.flops * SCORING_SHARE)
    return job.answer_tokens * max(reading / (gpu.bandwidth * READING_SHARE), arithmetic)


def _compute(flops: float, peak: float | None, share: float, gpus: int) -> float | None:
    return None if peak is None else flops / (peak * share * gpus)


def _times(count: float, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds


def _add(*parts: float | None) -> float | None:
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)


def plan_for(
    home: Path,
    *,
    model: str | None = None,
    gpus: str = "1xH100",
    lora: int | None = None,
    shard: bool | None = None,
    tokens: int = 2_000_000,
    answer_tokens: int = 400,
    price: float | None = None,
) -> dict[str, Any]:
    """By the settings of `home`, or where there are none by the preset for real models."""
    path = home / CONFIG_NAME
    config = read(path) if path.exists() else parse(preset_text("real"), "preset")
    if shard is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"shard": shard})})
    if lora is not None:
        config = _both(config, lora=LoraConfig(rank=lora) if lora else None)
    count, gpu = parse_gpus(gpus)
    shape = read_shape(model or config.model.path)
    config = _fitted(config, shape, gpu, tokens)
    job = Job(config, count, document_tokens=tokens, answer_tokens=answer_tokens)
    return plan(shape, count, gpu, job, price)


def _fitted(config: Config, shape: Shape, gpu: Gpu, tokens: int) -> Config:
    """The settings that recover.yaml leaves to documents, model and memory."""
    size, machine = size_of(shape, config.model.gradient_checkpointing), Machine(USABLE * gpu.gib * GIB)
    midtrain = fit_midtraining(config.midtrain, size, machine)
    fitted = {
        "midtrain": fit_to_corpus(midtrain, tokens, config.midtrain.mix.new),
        "distill": fit_distillation(config.distill, size, machine),
        "eval": fit_evaluation(config.eval, size, machine),
    }
    return config.model_copy(update=fitted)


def size_of(shape: Shape, checkpointing: bool) -> ModelSize:
    """What decides whether a model of this shape fits."""
    return ModelSize(
        parameters=shape.parameters,
        adapter=shape.adapter(LoraConfig().rank),
        activation_bytes=shape.activation_bytes(checkpointing),
        cache_bytes=shape.cache_bytes,
    )


def _both(config: Config, **values: Any) -> Config:
    """Settings of both trainings replaced."""
    changed = {stage: getattr(config, stage).model_copy(update=values) for stage in ("midtrain", "distill")}
    return config.model_copy(update=changed)


Change = tuple[str, Callable[[Config], Config]]


def _remedies(config: Config, processes: int) -> Iterator[Change]:
    """Settings that make it smaller, the cheapest first; each is tried with all before it."""

    def model(**values: Any) -> Callable[[Config], Config]:
        return lambda c: c.model_copy(update={"model": c.model.model_copy(update=values)})

    def both(**values: Any) -> Callable[[Config], Config]:
        return lambda c: _both(c, **values)

    if not config.model.gradient_checkpointing:
        yield "model.gradient_checkpointing: true", model(gradient_checkpointing=True)
    if processes > 1 and not config.model.shard:
        yield f"model.shard: true (FSDP2 over {processes} GPUs)", model(shard=True)
    short, smallest = 512, 2048
    if config.distill.max_new_tokens > short:
        yield (
            f"distill.max_new_tokens: {short}",
            lambda c: c.model_copy(
                update={"distill": c.distill.model_copy(update={"max_new_tokens": short})}
            ),
        )
    if max(config.midtrain.microbatch_tokens, config.distill.microbatch_tokens) > smallest:
        yield f"microbatch_tokens: {smallest}", both(microbatch_tokens=smallest)
    if not (config.distill.offload_teacher or (config.midtrain.lora and config.distill.lora)):
        rests = {"offload_teacher": True}
        yield (
            "distill.offload_teacher: true",
            lambda c: c.model_copy(update={"distill": c.distill.model_copy(update=rests)}),
        )
    if config.midtrain.lora is None or config.distill.lora is None:
        yield "lora: {rank: 128} in midtrain and distill", both(lora=LoraConfig(rank=128))
    yield "lora: {rank: 32} in midtrain and distill", both(lora=LoraConfig(rank=32))


def plan(shape: Shape, count: int, gpu: Gpu, job: Job, price: float | None = None) -> dict[str, Any]:
    """Everything that `recover plan` says, as one document."""
    rows = [_row(found, gpu, count, price) for found in estimates(shape, gpu, job)]
    seconds = None if any(row["hours"] is None for row in rows) else sum(row["hours"] for row in rows)
    fits = all(row["fits"] for row in rows)
    return {
        "model": shape.name,
        "parameters": shape.parameters,
        "gpus": count,
        "gpu": gpu.name,
        "gpu_gib": gpu.gib,
        "usable_gib": round(USABLE * gpu.gib, 1),
        "fits": fits,
        "stages": rows,
        "hours": seconds,
        "gpu_hours": None if seconds is None else seconds * count,
        "cost": None if seconds is None or price is None else seconds * count * price,
        "change": [] if fits else changes(shape, gpu, job),
    }


def _row(found: Estimate, gpu: Gpu, count: int, price: float | None) -> dict[str, Any]:
    hours = None if found.seconds is None else found.seconds / 3600
    return {
        "stage": found.stage,
        "gib": round(found.gib, 2),
        "fits": found.gib <= USABLE * gpu.gib,
        "hours": hours,
        "cost": None if hours is None or price is None else hours * count * price,
        "memory": {name: round(part / GIB, 2) for name, part in found.memory.items()},
    }


def changes(shape: Shape, gpu: Gpu, job: Job) -> list[str]:
    """The settings that together make it fit; or how many GPUs of that kind would do."""
    taken: list[str] = []
    config = job.config
    for name, change in _remedies(job.config, job.processes):
        taken, config = [*taken, name], change(config)
        if _largest(shape, gpu, replace(job, config=config)) <= USABLE * gpu.gib:
            return taken
    for count in (2, 4, 8, 16, 32, 64):
        sharded = config.model_copy(update={"model": config.model.model_copy(update={"shard": True})})
        if (
            count > job.processes
            and _largest(shape, gpu, replace(job, config=sharded, processes=count)) <= USABLE * gpu.gib
        ):
            return [*taken, f"{count} GPUs with model.shard: true"]
    need = 2 * shape.parameters / GIB / USABLE
    return [f"a GPU of {need:.0f} GiB or more: sampling and evaluation hold the whole model on each"]


def _largest(shape: Shape, gpu: Gpu, job: Job) -> float:
    return max(found.gib for found in estimates(shape, gpu, job))
