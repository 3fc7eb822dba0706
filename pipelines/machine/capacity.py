"""Estimate memory, time and price of each stage from a config.json alone.

Times assume the fractions of a GPU's peak defined below; every row lists its components.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config.fitted import (
    Machine,
    ModelSize,
    fit_distillation,
    fit_evaluation,
    fit_midtraining,
    fit_to_corpus,
)
from pipelines.config.sections.model import ModelConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import CONFIG_NAME, Config, parse, preset_text, read
from pipelines.machine.stage_memory import (
    LASTING_BYTES,
    PlannedWork,
    Sampled,
    reading_bytes,
    rows_at_once,
    sampling_memory,
    trained_weights,
    training_bytes,
    training_memory,
)
from pipelines.runs.cost import Flops
from recovery.errors import InputError

if TYPE_CHECKING:
    from recovery.models.size import Size

GIB = 2**30
CACHED = 1024  # tokens of a row whose cache is counted where none is planned
USABLE = 0.92  # share of a GPU's memory; the rest is driver and fragmentation
WORTH = 0.99  # ignore a setting that saves less than 1 %
TRAINING_SHARE, SCORING_SHARE, READING_SHARE = (
    0.35,
    0.40,
    0.50,
)  # of peak FLOP/s (training, scoring) and bytes/s


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


SIZES: dict[str, dict[str, Any]] = {  # Qwen3's shapes; 70B is Llama 3's
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
    """A GPU model; dense bf16 FLOP/s and bytes/s by its vendor. Set the price with `--price`."""

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
    """Parse `8xH100`, `H200`, `24GB` or `2x24GB` (speed unknown)."""
    found = re.fullmatch(r"(?:(\d+)\s*[xX×]\s*)?([\w.-]+)", text.strip())
    if found:
        count = int(found[1] or 1)
        name = found[2].upper()
        by_name = {known.upper(): gpu for known, gpu in GPUS.items()}
        memory = re.fullmatch(r"(\d+(?:\.\d+)?)\s*G(?:I?B)?", name)
        if count and name in by_name:
            return count, by_name[name]
        if count and memory:
            return count, Gpu(f"{memory[1]} GB", float(memory[1]))
    raise InputError(f"--gpus {text}: write 8xH100, 24GB or 2x24GB; known are {', '.join(GPUS)}")


def read_size(model: str) -> Size:
    """Read a size (8B), `microworld`, a directory, a config.json, or the config.json of a hub id."""
    from recovery.models.size import size_from_config

    if model.upper() in SIZES:
        return size_from_config(model.upper(), SIZES[model.upper()])
    path = Path(__file__).parents[1] / "microworld" / "checkpoint" if model == "microworld" else Path(model)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        path = _from_hub(model)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a model's config.json: {error}") from error
    return size_from_config(model, values)


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


def _training_flops(size: Size, job: PlannedWork, stage: str, tokens: float, context: float) -> float:
    """Count a backward pass as two forward passes (one with an adapter), and recomputation as one more."""
    passes = (
        1 + (1 if job.lora(stage) else 2) + (1 if job.config.model.checkpoints_gradients(gpu=True) else 0)
    )
    return passes * Flops.of_size(size).forward(tokens, context)


def _midtrain(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.midtrain
    steps = settings.steps or 0
    passes = (settings.epochs or 1) / settings.mix.new
    tokens = steps * settings.tokens_per_step or passes * job.document_tokens
    flops = _training_flops(size, job, "midtrain", tokens, settings.row_tokens / 2)
    seconds = _compute(flops, gpu.flops, TRAINING_SHARE, job.processes)
    memory = training_memory(size, job, "midtrain")
    if settings.method == "passage" and not job.lora("midtrain"):
        memory["teacher"] = job.weights(size)
    if settings.mix.chat and settings.method == "text":
        # The clean model answers the chat share's prompts before the optimizer exists.
        clean = job.weights(size)
        room = USABLE * gpu.gib * GIB - memory["weights"] - clean
        batch = Sampled(settings.chat_prompts, settings.chat_prompts, job.config.distill.max_new_tokens)
        later = sum(memory.values()) - memory["weights"]
        written = clean + sum(sampling_memory(size, batch, room, job).values())
        memory["chat replay, beyond training"] = max(0.0, written - later)
    return Estimate("midtrain", memory, seconds)


def _distill(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.distill
    answers = settings.prompts_per_step * settings.samples_per_prompt
    tokens = answers * (job.prompt_tokens + job.answer_tokens)
    memory = training_memory(size, job, "distill")
    below = job.lora("midtrain") and job.lora("distill")  # the teacher is the student with its adapter off
    layers = job.weights(size) - 2.0 * size.embeddings
    resting = layers - layers / size.layers if settings.offload_teacher else 0.0
    memory["teacher"] = 0.0 if below else job.weights(size) - resting
    states = 2.0 * size.hidden * answers * job.answer_tokens / job.processes
    memory["teacher's states"] = states
    # Neither gradients nor activations are there while the student samples and the teacher scores.
    lasting = (
        LASTING_BYTES
        * trained_weights(size, job, "distill")
        / (job.processes if job.config.model.shard else 1)
    )
    training = sum(memory.values()) - memory["weights"] - memory["teacher"] - lasting
    memory["scoring, beyond training"] = max(
        0.0, reading_bytes(size, tokens / job.processes) + states - training
    )
    whole = job.weights(size) - memory["weights"]  # sampling gathers the shards
    room = USABLE * gpu.gib * GIB - whole - memory["weights"] - memory["teacher"] - lasting
    own = answers / job.processes
    batch = Sampled(own, own / settings.samples_per_prompt, settings.max_new_tokens)
    sampling = sampling_memory(size, batch, room, job)
    beyond = whole + sum(sampling.values()) - training - memory["scoring, beyond training"]
    memory["sampling, beyond training"] = max(0.0, beyond)
    context = (job.prompt_tokens + job.answer_tokens) / 2
    scoring = Flops.of_size(size).forward(settings.steps * tokens, context)
    training = _training_flops(size, job, "distill", settings.steps * tokens, context)
    at_once = rows_at_once(size, batch, room, job)
    seconds = _add(
        _times(settings.steps, _write_seconds(size, gpu, answers / job.processes, at_once, job)),
        _compute(scoring, gpu.flops, SCORING_SHARE, job.processes),
        _compute(training, gpu.flops, TRAINING_SHARE, job.processes),
    )
    return Estimate("distill", memory, seconds)


def _evaluate(size: Size, gpu: Gpu, job: PlannedWork) -> Estimate:
    settings = job.config.eval
    weights = job.weights(size)
    rows = settings.batch_size
    batch = Sampled(rows, rows, settings.max_new_tokens)
    room = USABLE * gpu.gib * GIB - weights
    sampling = sampling_memory(size, batch, room, job)
    rounds = -(-job.eval_prompts // rows)
    at_once = rows_at_once(size, batch, room, job)
    seconds = _times(rounds, _write_seconds(size, gpu, rows, at_once, job))
    return Estimate("evaluate", {"weights": weights, **sampling}, seconds)


def _write_seconds(size: Size, gpu: Gpu, rows: float, at_once: float, job: PlannedWork) -> float | None:
    """Return the decoding time: each token reads all weights and the cache, or is compute-bound."""
    if gpu.bandwidth is None or gpu.flops is None:
        return None
    seen = job.prompt_tokens + job.answer_tokens / 2
    batches = max(1.0, rows / at_once)
    reading = 2 * (batches * size.parameters + rows * seen * size.cache_numbers)
    arithmetic = Flops.of_size(size).forward(rows, seen) / (gpu.flops * SCORING_SHARE)
    return job.answer_tokens * max(reading / (gpu.bandwidth * READING_SHARE), arithmetic)


def _compute(flops: float, peak: float | None, share: float, gpus: int) -> float | None:
    return None if peak is None else flops / (peak * share * gpus)


def _times(count: float, seconds: float | None) -> float | None:
    return None if seconds is None else count * seconds


def _add(*parts: float | None) -> float | None:
    return None if any(part is None for part in parts) else sum(part or 0.0 for part in parts)


def plan_for(  # noqa: PLR0913 - the options of `recover plan`
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
    """Return the job of a home's settings, or of the preset for real models if the home has none."""
    path = home / CONFIG_NAME
    config = read(path) if path.exists() else parse(preset_text("real"), "preset")
    if shard is not None:
        config = config.model_copy(update={"model": config.model.model_copy(update={"shard": shard})})
    if lora is not None:
        config = _both(config, lora=LoraConfig(rank=lora) if lora else None)
    count, gpu = parse_gpus(gpus)
    size = read_size(model or config.model.path)
    config = _fitted(config, size, gpu, tokens)
    job = PlannedWork(config, count, document_tokens=tokens, answer_tokens=answer_tokens)
    return plan(size, count, gpu, job, price)


def _fitted(config: Config, size: Size, gpu: Gpu, tokens: int) -> Config:
    """Fill in the settings that recover.yaml derives from documents, model and memory."""
    model = model_size(size, config.model)
    machine = Machine(USABLE * gpu.gib * GIB)
    midtrain = fit_midtraining(config.midtrain, model, machine)
    fitted = {
        "midtrain": fit_to_corpus(midtrain, tokens, config.midtrain.mix.new),
        "distill": fit_distillation(config.distill, model, machine),
        "eval": fit_evaluation(config.eval, model, machine),
    }
    return config.model_copy(update=fitted)


def model_size(size: Size, settings: ModelConfig, gpu: bool = True) -> ModelSize:
    """Return the sizes of a model that determine whether it fits."""
    number_bytes = settings.number_bytes(gpu)
    activations = training_bytes(size, settings.checkpoints_gradients(gpu)).peak / 2
    cache = size.decoding(CACHED).cache / CACHED / 2
    return ModelSize(
        parameters=size.parameters,
        adapter=size.adapter(LoraConfig().rank),
        activation_bytes=round(number_bytes * activations),
        cache_bytes=max(1, round(number_bytes * cache)),
        quantized=settings.quantize is not None,
    )


def _both(config: Config, **values: Any) -> Config:
    """Return the configuration with settings of both trainings replaced."""
    changed = {stage: getattr(config, stage).model_copy(update=values) for stage in ("midtrain", "distill")}
    return config.model_copy(update=changed)


Change = tuple[str, Callable[[Config], Config]]


def _remedies(config: Config, processes: int) -> Iterator[Change]:
    """Yield settings that reduce memory, the cheapest first."""

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


def plan(size: Size, count: int, gpu: Gpu, job: PlannedWork, price: float | None = None) -> dict[str, Any]:
    """Return the complete output of `recover plan` as one document."""
    rows = [_row(found, gpu, count, price) for found in estimates(size, gpu, job)]
    seconds = None if any(row["hours"] is None for row in rows) else sum(row["hours"] for row in rows)
    fits = all(row["fits"] for row in rows)
    return {
        "model": size.name,
        "parameters": size.parameters,
        "gpus": count,
        "gpu": gpu.name,
        "gpu_gib": gpu.gib,
        "usable_gib": round(USABLE * gpu.gib, 1),
        "fits": fits,
        "stages": rows,
        "hours": seconds,
        "gpu_hours": None if seconds is None else seconds * count,
        "cost": None if seconds is None or price is None else seconds * count * price,
        "change": [] if fits else changes(size, gpu, job),
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


def changes(size: Size, gpu: Gpu, job: PlannedWork) -> list[str]:
    """Return the settings that together make the job fit, or the number of such GPUs that would."""
    taken: list[str] = []
    config = job.config
    least = _largest(size, gpu, job)
    for name, change in _remedies(job.config, job.processes):
        smaller = change(config)
        need = _largest(size, gpu, replace(job, config=smaller))
        if need < WORTH * least:
            taken = [*taken, name]
            config = smaller
            least = need
        if least <= USABLE * gpu.gib:
            return taken
    for count in (2, 4, 8, 16, 32, 64):
        sharded = config.model_copy(update={"model": config.model.model_copy(update={"shard": True})})
        if (
            count > job.processes
            and _largest(size, gpu, replace(job, config=sharded, processes=count)) <= USABLE * gpu.gib
        ):
            return [*taken, f"{count} GPUs with model.shard: true"]
    need = 2 * size.parameters / GIB / USABLE
    return [f"a GPU of {need:.0f} GiB or more: sampling and evaluation hold the whole model on each"]


def _largest(size: Size, gpu: Gpu, job: PlannedWork) -> float:
    return max(found.gib for found in estimates(size, gpu, job))
