"""Plan a cycle on GPUs: whether each stage fits, how long it takes, what it costs, and what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config.fitted import (
    Machine,
    counted_by_documents,
    fit_distillation,
    fit_evaluation,
    fit_midtraining,
    fit_to_corpus,
)
from pipelines.config.home_settings import PRESET, of_home_or_preset
from pipelines.config.overrides import changed
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import Config
from pipelines.config.training_weights import second_model
from pipelines.engines.engine_checks import may_offload
from pipelines.machine.gpus import USABLE, Gpu, parse_gpus
from pipelines.machine.model_sizes import model_size, read_size
from pipelines.machine.stage_estimates import IFEVAL_PROMPTS, Estimate, estimates
from pipelines.machine.stage_memory import FP32_BYTES, PlannedWork
from pipelines.machine.stage_tokens import EVALUATIONS
from recovery.errors import InputError
from recovery.memory import GIB

if TYPE_CHECKING:
    from recovery.models.size import Size

WORTH = 0.99  # ignore a setting that saves less than 1 %
SHORT_ANSWER = 512  # tokens, where answers have to be shorter to fit
SMALL_MICROBATCH = 2048  # tokens
HALVED = "model.dtype: bfloat16"

Settings = dict[str, Any]  # of a section, by name


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
    """Plan a home's settings, or those of the preset for real models if the home has none."""
    whose, config = of_home_or_preset(home)
    if model is None and whose == PRESET:
        raise InputError(f"there is no home at {home}: give --model, as in --model 8B, or --home")
    if shard and config.model.quantize:
        raise InputError(
            f"--shard: model.quantize is {config.model.quantize}, and each GPU holds the 4-bit model whole: "
            "leave it out, or unset model.quantize"
        )
    if shard is not None:
        config = changed(config, {"model.shard": shard})
    if lora is not None:
        config = both_trainings(config, lora=LoraConfig(rank=lora) if lora else None)
    if config.model.quantize and config.midtrain.lora is None:
        raise InputError(
            "midtrain.lora: weights in 4 bits (model.quantize) can't be trained: set it as to {rank: 32}, or "
            "give --lora 32"
        )
    count, gpu = parse_gpus(gpus)
    size = read_size(model or config.model.path)
    config = _fitted(config, size, count, gpu, tokens)
    job = PlannedWork(size, config, count, document_tokens=tokens, answer_tokens=answer_tokens)
    return {"settings": whose, **plan(gpu, job, price)}


def _fitted(config: Config, size: Size, count: int, gpu: Gpu, tokens: int) -> Config:
    """Fill in the settings that recover.yaml derives from documents, model and memory.

    A length that follows from questions about the documents stays open."""
    model = model_size(size, config.model)
    parts = count if config.model.shard else 1
    machine = Machine(gpu.usable_bytes, config.model.number_bytes(gpu=True), parts)
    midtrain = fit_midtraining(config.midtrain, model, machine, on_teacher=True)
    if counted_by_documents(midtrain):
        midtrain = fit_to_corpus(midtrain, tokens, midtrain.mix.at_first.new, size.context)
    distill = config.distill
    if distill.lora is None:  # midtraining's adapter, if it trains one, is the student that goes on
        distill = distill.model_copy(update={"lora": midtrain.lora})
    fitted = {
        "midtrain": midtrain,
        "distill": fit_distillation(distill, model, machine, on_teacher=midtrain.lora is not None),
        "eval": fit_evaluation(config.eval, model, machine),
    }
    return config.model_copy(update=fitted)


def both_trainings(config: Config, **values: Any) -> Config:
    """Return the configuration with settings of midtraining and distillation replaced."""
    return changed(config, _both(**values))


def plan(gpu: Gpu, job: PlannedWork, price: float | None = None) -> dict[str, Any]:
    """Return the complete output of `recover plan` as one document."""
    size, count = job.size, job.processes
    rows = [_row(found, gpu, count, price) for found in estimates(gpu, job)]
    hours = None if any(row["hours"] is None for row in rows) else sum(row["hours"] for row in rows)
    fits = all(row["fits"] for row in rows)
    return {
        "model": size.name,
        "parameters": size.parameters,
        "gpus": count,
        "gpu": gpu.name,
        "gpu_gib": gpu.gib,
        "usable_gib": round(gpu.usable_gib, 1),
        "assumed": {
            "document_tokens": job.document_tokens,
            "answer_tokens": job.answer_tokens,
            "evaluations": EVALUATIONS,
            "evaluation_prompts": IFEVAL_PROMPTS,
        },
        "fits": fits,
        "stages": rows,
        "hours": hours,
        "gpu_hours": None if hours is None else hours * count,
        "cost": _cost(hours, count, price),
        "change": [] if fits else changes(gpu, job),
    }


def _row(found: Estimate, gpu: Gpu, count: int, price: float | None) -> dict[str, Any]:
    hours = None if found.seconds is None else found.seconds / 3600
    return {
        "stage": found.stage,
        "gib": round(found.gib, 2),
        "fits": found.gib <= gpu.usable_gib,
        "hours": hours,
        "cost": _cost(hours, count, price),
        "memory": {name: round(part / GIB, 2) for name, part in found.memory.items()},
    }


def _cost(hours: float | None, count: int, price: float | None) -> float | None:
    return None if hours is None or price is None else hours * count * price


# What to change --------------------------------------------------------------------------------------------


def changes(gpu: Gpu, job: PlannedWork) -> list[str]:
    """Return the settings that together make the job fit, or the number of such GPUs that would."""
    taken: list[str] = []
    config = job.config
    least = _largest(gpu, job)
    for name, sections in remedies(job.config, job.processes):
        if name in taken:
            continue
        smaller = changed(config, sections)
        need = _largest(gpu, replace(job, config=smaller))
        if need < WORTH * least:
            taken.append(name)
            config = smaller
            least = need
        if least <= gpu.usable_gib:
            return taken
    if not _may_shard(config):
        return [*taken, f"a GPU of {math.ceil(least / USABLE)} GiB or more: each holds the whole model"]
    sharded = changed(config, {"model.shard": True})
    for count in (2, 4, 8, 16, 32, 64):
        if count > job.processes:
            spread = replace(job, config=sharded, processes=count)
            if _largest(gpu, spread) <= gpu.usable_gib:
                return [*taken, f"{count} GPUs with model.shard: true"]
    need = replace(job, config=config).weights / GIB / USABLE
    halved = [HALVED] if HALVED in taken else []
    whole = "sampling and evaluation hold the whole model on each"
    return [*halved, f"a GPU of {math.ceil(need)} GiB or more: {whole}"]


def remedies(config: Config, processes: int) -> Iterator[tuple[str, dict[str, Settings]]]:
    """Yield settings that reduce memory, the cheapest first: as recover.yaml has them, and by section."""
    midtrain, distill = config.midtrain, config.distill
    halved = {"model": {"dtype": "bfloat16"}}
    in_fp32 = config.model.number_bytes(gpu=True) == FP32_BYTES
    if in_fp32:
        yield HALVED, halved
    if not config.model.gradient_checkpointing:
        yield "model.gradient_checkpointing: true", {"model": {"gradient_checkpointing": True}}
    if processes > 1 and not config.model.shard and _may_shard(config):
        yield f"model.shard: true (FSDP2 over {processes} GPUs)", {"model": {"shard": True}}
    if distill.max_new_tokens > SHORT_ANSWER:
        shorter = {"distill": {"max_new_tokens": SHORT_ANSWER}}
        yield f"distill.max_new_tokens: {SHORT_ANSWER}", shorter
    if max(midtrain.microbatch_tokens, distill.microbatch_tokens) > SMALL_MICROBATCH:
        yield f"microbatch_tokens: {SMALL_MICROBATCH}", _both(microbatch_tokens=SMALL_MICROBATCH)
    is_loaded = second_model(distill, on_teacher=midtrain.lora is not None)
    if is_loaded and not distill.offload_teacher and may_offload(distill):
        yield "distill.offload_teacher: true", {"distill": {"offload_teacher": True}}
    if midtrain.lora is None or distill.lora is None:
        yield "lora: {rank: 128} in midtrain and distill", _both(lora=LoraConfig(rank=128))
    yield "lora: {rank: 32} in midtrain and distill", _both(lora=LoraConfig(rank=32))
    if in_fp32:  # beside an adapter it halves the model, which all weights in training did not show
        yield HALVED, halved


def _may_shard(config: Config) -> bool:
    """Return whether a run would take model.shard."""
    return config.model.quantize is None and config.distill.resolved_method().teacher != "self-ema"


def _both(**values: Any) -> dict[str, Settings]:
    return {"midtrain": values, "distill": values}


def _largest(gpu: Gpu, job: PlannedWork) -> float:
    """Return the GiB of the stage that takes most."""
    return max(found.gib for found in estimates(gpu, job))
