"""Settings that follow from the corpus, the model and the machine where recover.yaml leaves them to `auto`.

Pure arithmetic; no torch here. A number that is set stays as it is. Of the rest: a document is never seen
more often than `epochs` says (without `epochs`: three times, more often only to reach the least number of
updates), an update holds at most one pass over the documents, and what is in memory at once fits into half of
what the weights and the optimizer leave free.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pipelines.config.sections.base import AUTO
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import TrainingSettings
from pipelines.config.training_weights import (
    averaged_bytes,
    copied_bytes,
    gathered_bytes,
    second_model,
    staying_bytes,
    trained,
)
from recovery.counted import counted
from recovery.training.config import warmup_within

UPDATES = 200  # aimed at, and the least unless a document would be seen more than MOST_PASSES times
PASSES, MOST_PASSES = 3.0, 32.0
CLOSE = 1.001  # to the most passes over earlier documents, of which steps are a whole number
SMALLEST_STEP, LARGEST_STEP = 512, 262_144  # tokens of an update
SHORTEST_ROW, LONGEST_ROW = 8, 4096
SMALLEST_MICROBATCH, LARGEST_MICROBATCH = 256, 16_384
CPU_MICROBATCH = 1024  # longer rows made SmolLM2 slower there, of 4,096 tokens by a third
LARGEST_BATCH, PROMPT_TOKENS = 256, 512  # rows sampled at once, and the prompt of each
TRAINED_PROMPT = 200  # tokens of a usual prompt in distillation
MASTER_BYTES = 16  # fp32 weight, gradient and two moments of AdamW

Shares = Callable[[MidtrainConfig], Mapping[str, float]]  # of what is there of the mix


@dataclass(frozen=True)
class ModelSize:
    """What of a model decides whether it fits."""

    parameters: int
    adapter: int  # weights of a LoRA adapter of the default rank
    activation_bytes: int  # of one trained token
    cache_bytes: int  # keys and values of one sampled token
    quantized_bytes: float = 0.0  # of weights in 4 bits, beside which only an adapter can be trained; else 0
    rank: int = 0  # of the adapter that the student is
    embeddings: int = 0  # among the parameters, the head included; 0 where that is not known
    unused: int = 0  # among the parameters: never trained, as of a vision tower
    four_bits: float = 0.0  # bytes of the weights if they were quantised; 0 where that is not known
    layers: int = 0  # of the decoder; 0 where that is not known

    def adapter_weights(self, rank: int) -> int:
        """Return the weights of a LoRA adapter of that rank on all layers."""
        return self.adapter * rank // LoraConfig().rank


@dataclass(frozen=True)
class Machine:
    """Memory of one process, and how it holds a weight."""

    usable_bytes: float
    weight_bytes: int = 2  # bfloat16; 4: float32, where master weights need no copy
    parts: int = 1  # processes over which weights, gradients and optimizer are sharded
    pass_tokens: int = LARGEST_MICROBATCH  # of a training pass at most; more would not make it faster
    whole_bytes: float = math.inf  # of the memory, of which only a part is usable
    has_host: bool = True  # memory beside it, in which an offloaded teacher rests


def fit_midtraining(
    settings: MidtrainConfig, model: ModelSize, machine: Machine, *, on_teacher: bool = False
) -> MidtrainConfig:
    """Set adapter and microbatch by model and memory, beside a second model if there is one.

    None is loaded for an adapter trained `on_teacher` itself, as in distillation. `fit_to_corpus` sets the
    rest.
    """
    settings = settings.model_copy(update={"lora": _lora(settings.lora, model, machine)})
    free = _free(settings, model, machine, on_teacher)
    microbatch = settings.microbatch_tokens or _microbatch(free, model, machine)
    return settings.model_copy(update={"microbatch_tokens": microbatch})


def fit_distillation(
    settings: DistillConfig, model: ModelSize, machine: Machine, *, on_teacher: bool = False
) -> DistillConfig:
    """Set adapter, microbatch and longest row by model and memory, beside a second model if there is one.

    None is loaded where an adapter is trained `on_teacher` itself: that is the student without it.
    A microbatch holds the longest answer at least: one pass takes that much memory whatever the others hold.
    A longer row is a pass of its own, which may take all that is free.
    """
    settings = settings.model_copy(update={"lora": _lora(settings.lora, model, machine)})
    free = _free(settings, model, machine, on_teacher)
    fitting = tokens_of_a_pass(_microbatch(free, model, machine), settings.max_new_tokens)
    microbatch = settings.microbatch_tokens or fitting
    longest = settings.longest_row or max(2 * fitting, int(free / model.activation_bytes))
    return settings.model_copy(update={"microbatch_tokens": microbatch, "longest_row": longest})


def tokens_of_a_pass(microbatch: int, new_tokens: int, prompt_tokens: int = TRAINED_PROMPT) -> int:
    """Return the most tokens in a pass of distillation: a microbatch, or one answer that is longer."""
    return max(microbatch, prompt_tokens + new_tokens)


def fit_evaluation(settings: EvalConfig, model: ModelSize, machine: Machine) -> EvalConfig:
    """Set how many prompts are answered at once."""
    free = machine.usable_bytes - whole_weights(model, machine)
    row = model.cache_bytes * (PROMPT_TOKENS + settings.max_new_tokens)
    batch = settings.batch_size or _rows(min(free / 2 / row, LARGEST_BATCH))
    return settings.model_copy(update={"batch_size": batch})


def fit_to_corpus(
    settings: MidtrainConfig, tokens: int, share: float, context: int | None = None
) -> MidtrainConfig:
    """Set tokens of an update, length of a row and number of steps; documents are `share` of the tokens.

    No row is longer than the model's context, where that is known."""
    one_pass = tokens / share  # with what the other sources add
    passes = settings.epochs or PASSES
    step = settings.tokens_per_step
    if step == AUTO:
        updates = settings.steps or UPDATES
        step = int(min(max(passes * one_pass / updates, SMALLEST_STEP), LARGEST_STEP))
        step = max(1, min(step, int(one_pass * min(passes, 1.0))))
    if settings.epochs is None:
        passes = min(max(UPDATES * step / one_pass, PASSES), MOST_PASSES)
    steps = settings.steps or steps_within(passes, one_pass, step)
    row = settings.row_tokens or _row(min(step * share, settings.microbatch_tokens or LONGEST_ROW))
    row = min(row, context or row)
    fitted = {"steps": steps, "epochs": None, "tokens_per_step": step, "row_tokens": row}
    return settings.model_copy(update=fitted)


def counted_by_documents(settings: MidtrainConfig) -> bool:
    """Return whether the documents' tokens decide how long a midtraining is.

    By the method `passage` the cost of all questions about them does, many times as much, unless steps and
    their cost are set.
    """
    return settings.method == "text" or bool(settings.steps and settings.tokens_per_step)


def fit_beside_earlier(
    settings: MidtrainConfig, new: int, earlier: float, shares_of: Shares, context: int | None = None
) -> MidtrainConfig:
    """Return the settings with every number set, and a mix that reads nothing of earlier cycles too often.

    Of a small earlier folder beside a large new one, a share of all tokens is a hundred passes and more. What
    of it is more than MOST_PASSES, or than those over the new documents if they are more, goes to the others.
    """
    while True:
        shares = shares_of(settings)
        made = fit_to_corpus(settings, new, shares["new"], context)
        read = (made.steps or 0) * made.tokens_per_step
        most = earlier * max(MOST_PASSES, read * shares["new"] / new)
        wanted = read * shares.get("earlier", 0.0)
        if not earlier or wanted <= CLOSE * most:
            return made
        less = settings.mix.with_part("earlier", most / wanted)
        settings = settings.model_copy(update={"mix": less})


def steps_within(passes: float, one_pass: float, tokens_per_step: int) -> int:
    """Return how many updates fit into so many passes over so many tokens; at least one."""
    return max(1, int(passes * one_pass / tokens_per_step + 1e-9))


def midtraining_in_words(settings: MidtrainConfig, tokens: int, share: float) -> str:
    """Format the fitted settings of a midtraining on one line."""
    steps = settings.steps or 0
    seen = _seen(settings, tokens, share)
    return (
        f"{counted(steps, 'step')} of {settings.tokens_per_step:,} tokens, "
        f"{_warmup_in_words(settings, steps)}; each "
        f"document is seen {seen:,.1f} times, in rows of {settings.row_tokens:,}; {_pass_in_words(settings)}"
    )


def fewer_passes_in_words(
    asked: MidtrainConfig, tokens: int, share: float, fit: Callable[[MidtrainConfig], MidtrainConfig]
) -> str:
    """Warn of a number of passes below the one that is fitted without it: a small folder is read often."""
    if asked.epochs is None or asked.tokens_per_step != AUTO:
        return ""
    passes = _seen(fit(asked.model_copy(update={"epochs": None})), tokens, share)
    return f"; without `epochs` it is {passes:,.1f} times" if passes > CLOSE * asked.epochs else ""


def _seen(settings: MidtrainConfig, tokens: int, share: float) -> float:
    return (settings.steps or 0) * settings.tokens_per_step * share / max(1, tokens)


def distillation_in_words(settings: DistillConfig, answers: int, *, sampled: bool, in_process: bool) -> str:
    """Format a distillation's fitted settings, with so many answers a step, sampled or read, on one line."""
    length = f" of at most {settings.max_new_tokens:,} tokens" if sampled else ""
    at_once = f"{min(answers, LARGEST_BATCH):,} sampled at once if the memory holds them; "
    return (
        f"{_steps_in_words(settings)} of {counted(answers, 'answer')}{length}, "
        f"{_warmup_in_words(settings, settings.steps)}; {at_once if sampled and in_process else ''}"
        f"{_pass_in_words(settings)}"
    )


def _steps_in_words(settings: DistillConfig) -> str:
    if settings.most_steps == settings.steps:
        return counted(settings.steps, "step")
    return f"{settings.steps:,} steps, or up to {settings.most_steps:,} while the divergence falls,"


def _warmup_in_words(settings: TrainingSettings, steps: int) -> str:
    return f"warm-up of {warmup_within(settings.optimizer.warmup_steps, steps)}"


def _pass_in_words(settings: TrainingSettings) -> str:
    """Format what is trained, and how much of it a forward pass holds."""
    if settings.lora == "auto" or settings.microbatch_tokens == AUTO:
        return "what is trained in a forward pass follows from the model"
    adapter = settings.adapter
    weights = f"an adapter of rank {adapter.rank}" if adapter else "all weights"
    return f"{weights}, {settings.microbatch_tokens:,} tokens in a forward pass"


def _lora(asked: LoraConfig | str | None, model: ModelSize, machine: Machine) -> LoraConfig | None:
    """Take the adapter that is asked for, or the student's own; else all weights.

    With `auto` these are trained only where half of the memory holds them and what recovery may have beside
    them, whatever its method and with nothing frozen, in midtraining too: an adapter on a midtrained model
    would have the clean one as a second model beside it.
    """
    if isinstance(asked, LoraConfig):
        return asked
    if model.rank:
        return LoraConfig(rank=model.rank)
    if asked is None:
        return None
    if model.quantized_bytes:
        return LoraConfig()
    held = _held(trained(model, None, False), None, model, machine) + _beside(model, machine)
    return None if held <= machine.usable_bytes / 2 else LoraConfig()


def _free(settings: TrainingSettings, model: ModelSize, machine: Machine, on_teacher: bool) -> float:
    """Return the bytes that weights, optimizer and teacher leave for what a pass computes."""
    count = trained(model, settings.adapter, settings.freeze_embeddings)
    free = machine.usable_bytes - _held(count, settings.adapter, model, machine)
    free -= (copied_bytes(settings, machine.weight_bytes) + averaged_bytes(settings)) * count
    free -= gathered_bytes(whole_weights(model, machine), _ends(model, machine), model.layers, machine.parts)
    if second_model(settings, on_teacher=on_teacher, sharded=machine.parts > 1):
        free -= _second_bytes(settings, model, machine)
    return free


def _second_bytes(settings: TrainingSettings, model: ModelSize, machine: Machine) -> float:
    """Return the bytes of a second model, of whose layers one is there at a time if they are offloaded."""
    weights = whole_weights(model, machine)
    if not (is_offloaded(settings, machine) and model.layers):
        return weights
    return staying_bytes(weights, _ends(model, machine), model.layers)


def _ends(model: ModelSize, machine: Machine) -> float:
    """Return the bytes of the weights that lie in no layer."""
    return float((model.embeddings + model.unused) * machine.weight_bytes)


def is_offloaded(settings: TrainingSettings, machine: Machine) -> bool:
    """Return whether a second model's layers rest in memory beside this one."""
    return isinstance(settings, DistillConfig) and settings.offload_teacher and machine.has_host


def _held(count: int, lora: LoraConfig | None, model: ModelSize, machine: Machine) -> float:
    """Return the bytes of this process's part of the weights and of all that training keeps for them."""
    return (whole_weights(model, machine) + kept_bytes(count, lora, machine)) / machine.parts


def kept_bytes(count: int, lora: LoraConfig | None, machine: Machine) -> int:
    """Return what training keeps of so many trained weights, beside the weights of the model."""
    is_master = lora is None and machine.weight_bytes == 4  # the weight itself
    return count * (MASTER_BYTES - (4 if is_master else 0))


def _beside(model: ModelSize, machine: Machine) -> float:
    """Return the bytes of a teacher, and of a sharded student's other parts, gathered while it samples."""
    gathered = 1 - 1 / machine.parts
    return whole_weights(model, machine) * (1 + gathered)


def whole_weights(model: ModelSize, machine: Machine) -> float:
    """Return the bytes of a loaded model's weights."""
    return model.quantized_bytes or model.parameters * machine.weight_bytes


def _microbatch(free: float, model: ModelSize, machine: Machine) -> int:
    return _within(free / 2 / model.activation_bytes, SMALLEST_MICROBATCH, machine.pass_tokens)


def _row(most: float) -> int:
    """Return the largest power of two below `most`; the length of the corpus if that is shorter."""
    if most < SHORTEST_ROW * 8:
        return max(SHORTEST_ROW, int(most))
    return _within(most, SHORTEST_ROW, LONGEST_ROW)


def _rows(most: float) -> int:
    """Return as many rows, in eights, so that machines with a little more or less memory compute alike."""
    return max(1, int(most)) if most < 8 else int(most) // 8 * 8


def _within(most: float, lowest: int, highest: int) -> int:
    """Return the largest power of two not above `most`, within two bounds."""
    found = highest
    while found > lowest and found > most:
        found //= 2
    return max(found, lowest)
