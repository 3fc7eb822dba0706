"""The sizing calculator: weights counted as the models have them, memory and time worked by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner
from torch.profiler import ProfilerActivity
from torch.utils._pytree import tree_leaves

from benchmarks.speed import plan_memory
from pipelines.cli.commands import cli
from pipelines.cli.options import Session
from pipelines.cli.setup import plan_text
from pipelines.config.overrides import changed, override
from pipelines.config.sections.model import ModelConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import Config, parse, preset_text
from pipelines.machine import capacity, stage_memory
from pipelines.machine.fitting import this_machine
from pipelines.machine.gpus import GPUS, parse_gpus
from pipelines.machine.model_sizes import model_size, read_size
from pipelines.machine.stage_estimates import estimates
from recovery.batches.teacher_scores import TeacherScores
from recovery.errors import InputError
from recovery.forward.unpadded_decoders import CACHES
from recovery.methods.table import METHODS
from recovery.models import activations
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import ModelSpec, load
from recovery.models.size import size_from_config, size_of
from recovery.objective.objective import CHUNK_ENTRIES, Objective
from recovery.objective.token_signals import TokenSignals
from tests.support import families

SIZES_BY_HAND = {
    "midtrain.epochs": 3,
    "midtrain.tokens_per_step": 262144,
    "midtrain.row_tokens": 4096,
    "midtrain.microbatch_tokens": 16384,
    "midtrain.lora": {"rank": 128},
    "distill.microbatch_tokens": 16384,
    "distill.lora": {"rank": 128},
    "eval.batch_size": 64,
}
REAL = changed(parse(preset_text("real"), "preset"), SIZES_BY_HAND)
EIGHT = read_size("8B")
GEMMA_3_27B = {
    "num_hidden_layers": 62,
    "hidden_size": 5376,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "intermediate_size": 21504,
    "vocab_size": 262208,
    "sliding_window": 1024,
}
COUNTS: list[Callable[[Any], Any]] = [
    partial(activations.count_training, rank=None, recomputing=False),
    partial(activations.count_training, rank=8, recomputing=False),
    partial(activations.count_training, rank=8, recomputing=True),
    activations.count_reading,
    partial(activations.count_decoding, tokens=16),
]
planning = partial(stage_memory.PlannedWork, EIGHT)


def settings(**model: Any) -> Config:
    return REAL.model_copy(update={"model": REAL.model.model_copy(update=model)})


def test_published_weights() -> None:
    """Qwen3-8B: 36 x (2 x 4096^2 + 2 x 4096 x 1024 + 3 x 4096 x 12288 + 8448) + 2 x 151936 x 4096 + 4096."""
    assert EIGHT.parameters == 8_190_735_360
    assert read_size("0.6B").parameters == 596_049_920
    assert read_size("32B").parameters == 32_762_123_264


def test_a_mixture_of_experts_with_latent_attention_is_counted_whole() -> None:
    """DeepSeek-V3 as published: 671 billion weights, 37 billion of them used by a token."""
    from transformers import DeepseekV3Config

    size = size_from_config("V3", DeepseekV3Config().to_dict())
    assert size.parameters == pytest.approx(671.0e9, rel=0.01)
    assert size.active + 129_280 * 7_168 == pytest.approx(37.5e9, rel=0.01)  # embeddings are looked up


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_weights_are_those_of_the_model_itself(family: families.Family) -> None:
    model = families.model(family)
    size = size_from_config(family.name, model.config.to_dict())
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert replace(size, name="") == size_of(model)


def test_layers_in_4_bits_count_all_their_weights() -> None:
    """As bitsandbytes holds them, two in a byte: the FLOPs of a training were about half."""
    model = families.model(families.named("Llama"))
    whole = size_of(model)
    for layer in model.get_decoder().modules():
        if isinstance(layer, torch.nn.Linear):
            packed = torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8)
            layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    assert sum(one.numel() for one in model.parameters()) < whole.parameters
    assert size_of(model) == whole


@pytest.mark.parametrize("family", ["Llama", "DeepSeek V3", "GPT-OSS", "Gemma 3n", "Qwen 3 VL"])
def test_adapter_weights_are_those_that_peft_makes(tmp_path: Path, family: str) -> None:
    chat = load(ModelSpec(str(families.save(families.named(family), tmp_path / "m"))))
    size = size_of(chat.model)
    add_lora(chat, LoraSpec(rank=4))
    assert size.adapter_weights(4) == sum(p.numel() for p in chat.model.parameters() if p.requires_grad)
    assert size_of(chat.model) == size


@pytest.mark.parametrize(("family", "sees"), [("Llama", False), ("Qwen 3 VL", True)])
def test_what_no_text_meets_is_never_trained(tmp_path: Path, family: str, sees: bool) -> None:
    chat = load(ModelSpec(str(families.save(families.named(family), tmp_path / "m"))))
    frozen = sum(one.numel() for one in chat.model.parameters() if not one.requires_grad)
    assert size_of(chat.model).unused == frozen
    assert (frozen > 0) is sees


@pytest.mark.parametrize(
    "family",
    ["Llama", "DeepSeek V2", "DeepSeek V3", "Gemma 4", "Gemma 3n", "Phi-3", "LFM 2", "Falcon, alibi"],
)
def test_the_cache_is_as_large_as_transformers_makes_it(family: str) -> None:
    model = families.model(families.named(family))
    with torch.inference_mode():
        cache = model(torch.arange(1, 6)[None], use_cache=True).past_key_values
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    numbers = sum(layer.keys.numel() + layer.values.numel() for layer in layers)
    assert size_of(model).cache_numbers * 5 == numbers


@pytest.mark.parametrize(
    "family", ["Llama", "Gemma 3", "DeepSeek V3", "Qwen 3.5", "Falcon-H1", "LFM 2", "Mamba 2", "Jamba"]
)
def test_a_row_holds_what_decoding_allocates(family: str) -> None:
    """Windows, states and latents included; a few bytes count how many tokens were read."""
    model = families.model(families.named(family)).to(torch.bfloat16)
    cache: dict[str, Any] = {}
    for tokens in (torch.arange(1, 20), torch.tensor([20])):
        with torch.inference_mode():
            out = model(tokens[None], use_cache=True, **cache)
        cache = {name: out[name] for name in CACHES if name in out}
    parts = tree_leaves([list(vars(layer).values()) for held in cache.values() for layer in held.layers])
    storages = [part.untyped_storage() for part in parts if isinstance(part, torch.Tensor)]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    counted = size_from_config(family, model.config.to_dict()).decoding(20)
    assert counted.cache == pytest.approx(sum(sizes.values()), abs=64)
    assert counted.step > 0


def test_latent_attention_unfolds_a_layer_of_the_cache_at_each_step() -> None:
    """DeepSeek-V3: 128 heads, keys of 128 + 64 and values of 128, made again from 512 + 64 numbers."""
    from transformers import DeepseekV3Config

    held = size_from_config("V3", DeepseekV3Config().to_dict()).decoding(1000)
    assert held.cache == pytest.approx(2 * 61 * 576 * 1000)
    assert held.step == pytest.approx(2 * 128 * (2 * 128 + 128 + 64) * 1000, rel=0.1)


def test_the_shipped_preset_fits_the_gpu_that_it_names() -> None:
    found = capacity.plan(parse_gpus("1xH100")[1], planning(REAL))
    assert found["fits"] and found["change"] == []
    midtrain, distill = (found["stages"][i]["memory"] for i in (0, 1))
    assert midtrain["going back through the layers, beyond the loss"] > 1
    assert midtrain["chat replay, beyond training"] > 0  # the student's cache
    without = REAL.model_copy(update={"midtrain": override(REAL.midtrain, {"mix": {"new": 1.0}})})
    assert "chat replay, beyond training" not in estimates(GPUS["H100"], planning(without))[0].memory
    assert distill["sampling, beyond training"] > 0


@pytest.mark.parametrize(("shard", "processes"), [(False, 1), (False, 8), (True, 8)])
def test_the_untrained_student_alone_answers_the_chat(shard: bool, processes: int) -> None:
    """Whole, with its adapter, as it is not sharded yet: no second model lies beside it."""
    job = planning(settings(shard=shard), processes)
    whole = 2 * EIGHT.parameters + 4 * EIGHT.adapter_weights(128)
    chats = stage_memory.Sampled(REAL.midtrain.chat_prompts, REAL.midtrain.chat_prompts, 2048)
    room = GPUS["H100"].usable_bytes - whole
    sampling = stage_memory.sampling_memory(chats, room, job)
    memory = estimates(GPUS["H100"], job)[0].memory
    assert sum(memory.values()) == pytest.approx(whole + sum(sampling.values()))


def test_a_teacher_that_sees_the_passage_is_part_of_the_plan() -> None:
    """Its weights, unless an adapter is trained on it; nothing is answered before the training."""
    config = settings(gradient_checkpointing=True)
    taught = {"method": "passage", "mix": {"new": 0.7, "chat": 0.3}}
    config = config.model_copy(update={"midtrain": override(config.midtrain, taught)})
    job = planning(capacity.both_trainings(config, lora=None, microbatch_tokens=1000))
    memory = estimates(GPUS["H200"], job)[0].memory
    assert memory["teacher"] == memory["weights"] and "chat replay, beyond training" not in memory
    adapter = planning(capacity.both_trainings(config, lora=LoraConfig(rank=8), microbatch_tokens=1000))
    assert "teacher" not in estimates(GPUS["H200"], adapter)[0].memory


def test_as_many_rows_as_a_share_of_what_is_free_holds_and_one_at_least() -> None:
    """A row of 200 + 2048 tokens of 8B: 36 layers, keys and values of 8 heads of 128, 2 bytes."""
    cache = 2 * 36 * 2 * 8 * 128 * 2248
    held = EIGHT.decoding(2248)
    assert held.cache == cache and 0 < held.step < cache / 36
    row = cache + held.step + 16 * 151_936
    job = planning(REAL)
    for rows, room, found in ((4, 1e12, 4), (10_000, 1e12, 256), (256, 1e10, 0.7e10 // row), (256, -1, 1)):
        assert stage_memory.rows_at_once(stage_memory.Sampled(rows, 1, 2048), room, job) == found


def test_memory_of_full_training_by_hand() -> None:
    """8B in full: 2 bytes of weights and 4 + 8 + 4 of training for each, nothing shared out."""
    config = settings(gradient_checkpointing=True)
    job = planning(capacity.both_trainings(config, lora=None, microbatch_tokens=1000), 1)
    memory = estimates(GPUS["H200"], job)[0].memory
    assert memory["weights"] == 2 * 8_190_735_360
    assert memory["gradients and optimizer"] == 16 * 8_190_735_360
    # a label's loss holds three fp32 logits of a chunk, the head's gradient is there in fp32 and bf16
    assert memory["loss"] == 12 * 2**26 + 6 * 151_936 * 4096
    # bf16 gradients of all weights are there when activations and loss are gone, but for the last layer's
    beyond = memory["gradients of a pass, beyond activations"]
    counted = stage_memory.training_bytes(EIGHT, checkpointing=True)
    busy = memory["activations"] + memory["loss"] - 1000 * (counted.peak - counted.kept)
    assert beyond == 2 * 8_190_735_360 - busy


IN_FLOAT32 = planning(changed(REAL, {"model.dtype": "float32"}))


def test_memory_of_full_training_in_float32_by_hand() -> None:
    """8B in full: 4 bytes of weights, their gradient and two moments for each; no copy, which bf16 needs."""
    job = replace(IN_FLOAT32, config=capacity.both_trainings(IN_FLOAT32.config, lora=None))
    midtrain, distill, _ = (one.memory for one in estimates(GPUS["H200"], job))
    for memory in (midtrain, distill):
        assert memory["weights"] == 4 * 8_190_735_360
        assert memory["gradients and optimizer"] == 12 * 8_190_735_360
        assert memory["gradients of a pass, beyond activations"] == 0
    # the head's gradient is there twice in fp32: over all chunks of the loss, and of one of them
    assert midtrain["loss"] == 12 * 2**26 + 8 * 151_936 * 4096
    assert distill["teacher"] == 4 * 8_190_735_360
    assert distill["teacher's states"] == 4 * 4096 * 256 * 400  # answers, and tokens of each
    job = replace(job, config=changed(job.config, {"distill.offload_teacher": True}))
    offloaded = estimates(GPUS["H200"], job)[1].memory["teacher"]
    ends = 2 * 151_936 * 4096
    assert offloaded == pytest.approx(4 * (ends + (8_190_735_360 - ends) / 36))
    job = replace(job, config=changed(job.config, {"distill.method": "opcd"}))
    assert estimates(GPUS["H200"], job)[1].memory["teacher"] == 4 * 8_190_735_360  # a copy of itself


def test_an_adapter_on_float32_weights_is_trained_like_any_other() -> None:
    midtrain, distill, evaluate = (one.memory for one in estimates(GPUS["H200"], IN_FLOAT32))
    for memory in (midtrain, distill):
        assert memory["weights"] == evaluate["weights"] == 4 * 8_190_735_360
        assert memory["gradients and optimizer"] == 16 * EIGHT.adapter_weights(128)


def test_keys_values_and_activations_in_float32_by_hand() -> None:
    """64 rows of 200 + 512 tokens of 8B: 36 layers, keys and values of 8 heads of 128, 4 bytes."""
    job = replace(IN_FLOAT32, config=changed(IN_FLOAT32.config, {"eval.max_new_tokens": 512}))
    cache = 4 * 36 * 2 * 8 * 128 * 712
    assert estimates(GPUS["H200"], job)[2].memory["keys and values"] == 64 * cache
    assert replace(EIGHT, empty=None).decoding(712, 4).cache == cache  # by the widths
    # Recomputing keeps each layer's input; with nothing adapted all of it is in the model's own numbers.
    kept = stage_memory.training_bytes(EIGHT, checkpointing=True, number_bytes=4).kept
    assert kept == pytest.approx(36 * 4 * 4096, rel=0.1)
    assert stage_memory.training_bytes(replace(EIGHT, empty=None), True, 4).kept == 36 * 4 * 4096


@pytest.mark.slow
def test_what_is_advised_and_fitted_counts_float32() -> None:
    """32B are 61.02 GiB in bfloat16, of 92 % of a GPU; 8B leave 1 GiB of 40 beside an adapter's training in
    float32."""
    change = capacity.plan(parse_gpus("24GB")[1], replace(IN_FLOAT32, size=read_size("32B")))["change"]
    assert change == [
        "model.dtype: bfloat16",
        "a GPU of 67 GiB or more: sampling and evaluation hold the whole model on each",
    ]
    assert capacity.plan(parse_gpus("48GB")[1], IN_FLOAT32)["change"] == ["model.dtype: bfloat16"]
    whole = replace(IN_FLOAT32, config=capacity.both_trainings(IN_FLOAT32.config, lora=None))
    change = capacity.plan(parse_gpus("24GB")[1], whole)["change"]
    assert change[-2:] == ["lora: {rank: 32} in midtrain and distill", "model.dtype: bfloat16"]
    real = changed(parse(preset_text("real"), "preset"), {"model.dtype": "float32"})
    row = capacity._fitted(real, EIGHT, 1, GPUS["A100-40"], 2_000_000).distill.longest_row
    assert row == 2 * (2048 + 200)


def test_what_is_fitted_in_float32_counts_its_own_activations() -> None:
    """Norms compute in float32 in either case: twice the bytes of bfloat16 left room for half the rows."""
    half, whole = (
        model_size(EIGHT, ModelConfig(path="some", dtype=dtype)) for dtype in ("bfloat16", "float32")
    )
    counted = stage_memory.training_bytes(EIGHT, checkpointing=False, number_bytes=4)
    assert whole.activation_bytes == round(counted.peak) < 1.8 * half.activation_bytes
    assert whole.cache_bytes == 2 * half.cache_bytes == 4 * 36 * 2 * 8 * 128


def test_hours_in_float32_are_those_of_its_own_speed() -> None:
    """A GPU multiplies TF32 while training at half of bfloat16's speed, float32 elsewhere at 67 TFLOP/s."""
    mixed = changed(REAL, {"midtrain.mix": {"new": 1.0, "questions": 0.0, "earlier": 0.0, "chat": 0.0}})
    tiny_answers = {"eval.max_new_tokens": 1, "eval.batch_size": 541}
    half, whole = (
        estimates(
            replace(GPUS["H100"], bandwidth=1e30),
            planning(changed(mixed, {**tiny_answers, "model.dtype": dtype})),
        )
        for dtype in ("bfloat16", "float32")
    )
    slower = [(b.seconds or 0) / (a.seconds or 1) for a, b in zip(half, whole, strict=True)]
    assert slower == pytest.approx([2, 2, 989 / 67])


def test_a_pass_holds_the_longest_answer_however_small_the_microbatch() -> None:
    config = capacity.both_trainings(settings(gradient_checkpointing=True), lora=None)
    distill = config.distill.model_copy(update={"microbatch_tokens": 512, "max_new_tokens": 2048})
    job = planning(config.model_copy(update={"distill": distill}), prompt_tokens=200)
    kept = stage_memory.training_bytes(EIGHT, checkpointing=True).kept
    assert stage_memory.training_memory(job, "distill")["activations"] == 2248 * kept
    wide = distill.model_copy(update={"microbatch_tokens": 4096})
    job = planning(config.model_copy(update={"distill": wide}), prompt_tokens=200)
    assert stage_memory.training_memory(job, "distill")["activations"] == 4096 * kept


def test_activations_are_those_of_the_models_own_code() -> None:
    """A token of Qwen3-8B, without recomputation, in bf16 numbers kept by each of 36 layers.

    Two norms of 4096: an fp32 copy (two each), the normalised and the scaled number. Norms of queries and
    keys likewise. Rotated queries and keys, values, the mixed values. Gate, its SiLU, up, their product.
    """
    norms, attention = 2 * 4 * 4096, 4 * (4096 + 1024) + 2 * 4096 + 2 * 1024
    layer = 2 * (norms + attention + 4 * 12288)
    training = stage_memory.training_bytes(EIGHT, checkpointing=False)
    assert training.kept == pytest.approx(36 * layer, rel=0.1)
    assert training.kept <= training.peak < training.kept + layer
    recomputing, inputs = stage_memory.training_bytes(EIGHT, checkpointing=True), 36 * 2 * 4096
    assert inputs < recomputing.kept < inputs + layer / 2
    assert inputs + layer < recomputing.peak < inputs + 2 * layer


def test_reading_takes_a_layer_whatever_their_number() -> None:
    """Without gradients nothing of a layer stays behind."""
    deep, flat = (
        size_from_config("m", {**families.DENSE, "model_type": "llama", "num_hidden_layers": layers})
        for layers in (24, 6)
    )
    assert deep.reading() == flat.reading() is not None


def test_a_cache_of_windowed_and_full_attention_by_hand() -> None:
    """Gemma 3 of 27B: every sixth of 62 layers keeps the whole row, the others the last 1,024 tokens."""
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    settings = {
        **GEMMA_3_27B,
        "layer_types": (kinds * 11)[: GEMMA_3_27B["num_hidden_layers"]],
        "model_type": "gemma3_text",
    }
    a_token = 2 * 16 * 128 * 2  # keys and values, in 16 bits
    counted = size_from_config("27B", settings).decoding(8192).cache
    assert counted == a_token * (10 * 8192 + 52 * 1024)


@pytest.mark.parametrize("layers", [8, 9])
def test_layers_that_repeat_count_as_often_as_they_stand(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running a few layers foretells what running all of them takes."""
    kinds = (["sliding_attention", "full_attention"] * 5)[:layers]
    settings = {**families.DENSE, "num_hidden_layers": layers, "layer_types": kinds, "head_dim": 8}
    size = size_from_config("deep", {**settings, "model_type": "gemma3_text", "sliding_window": 8})
    assert size.empty is not None
    empty = size.empty
    few = [count(empty()) for count in COUNTS]
    monkeypatch.setattr(activations, "_depths", lambda kinds: ((len(kinds),), 0))
    assert [count(empty()) for count in COUNTS] == few


@pytest.mark.parametrize("count", [COUNTS[1], COUNTS[4]])
def test_operations_whose_shapes_are_known_count_like_those_that_are_run(
    count: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = size_from_config("m", families.model(families.named("Qwen 3.5")).config.to_dict()).empty
    assert empty is not None
    known = [count(empty()) for _ in range(2)]
    monkeypatch.setattr(activations, "_made", lambda func, args, kwargs: func(*args, **kwargs))
    assert [count(empty())] * 2 == known


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_logit_takes_what_the_plan_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHUNK_ENTRIES, "cpu", CHUNK_ENTRIES["accelerator"])
    monkeypatch.setenv("RECOVER_CPU", "off")
    method, tokens, vocabulary = METHODS[name], 64, 4096
    head = torch.nn.Linear(8, vocabulary, bias=False, dtype=torch.bfloat16)
    states_ND = torch.zeros(tokens, 8, dtype=torch.bfloat16, requires_grad=True)
    scores = TeacherScores(hidden_ND=states_ND.detach(), head=torch.no_grad()(head))
    signals = TokenSignals(
        scores,
        behaviour_N=torch.full((tokens,), -8.0),
        advantages_N=torch.ones(tokens),
        anchor=scores if method.anchor_beta else None,
        rows_N=torch.arange(tokens),
    )
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        Objective(method)(states_ND, head, torch.zeros(tokens, dtype=torch.long), signals).value.backward()
    held = plan_memory.peak(seen) / (tokens * vocabulary)
    assert held == pytest.approx(stage_memory.logit_bytes(method), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "rank"), [("bfloat16", None), ("float32", None), ("float32", 8)])
def test_a_stage_takes_as_much_memory_as_the_plan_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: Literal["bfloat16", "float32"], rank: int | None
) -> None:
    """Allocated bytes of training, distilling and answering, counted as the benchmark counts them."""
    monkeypatch.setitem(CHUNK_ENTRIES, "cpu", CHUNK_ENTRIES["accelerator"])
    monkeypatch.setenv("RECOVER_CPU", "off")
    small = {**plan_memory.WIDE, "num_hidden_layers": 2, "hidden_size": 128, "vocab_size": 1024}
    sizes = plan_memory.Sizes(microbatch=256, rows=8, prompt=32, answer=32, rank=rank, dtype=dtype)
    case = plan_memory.Case("small", "Qwen 3", small, sizes)
    plan_memory.save(case, tmp_path)
    found, planned = plan_memory.allocated(tmp_path, sizes), plan_memory.planned(case, tmp_path)
    for stage in plan_memory.STAGES:
        assert planned[stage] == pytest.approx(found[stage], rel=0.15), stage


def test_frozen_embeddings_need_no_gradients_by_hand() -> None:
    """8B has 151,936 rows of 4,096 twice; an adapter never trained them."""
    for lora, less in ((None, 16 * 2 * 151_936 * 4096), (LoraConfig(rank=8), 0)):
        plain, frozen = (
            estimates(
                GPUS["H200"],
                planning(capacity.both_trainings(settings(), **changes), 1),
            )[0].memory
            for changes in ({"lora": lora}, {"lora": lora, "freeze_embeddings": True})
        )
        assert plain["gradients and optimizer"] - frozen["gradients and optimizer"] == less


def test_shards_divide_weights_and_optimizer() -> None:
    whole, parts = (
        estimates(
            GPUS["H100"],
            planning(capacity.both_trainings(settings(shard=True), lora=None), n),
        )[0]
        for n in (1, 8)
    )
    for name in ("weights", "gradients and optimizer"):
        assert parts.memory[name] == whole.memory[name] / 8
    assert parts.memory["activations"] == whole.memory["activations"]
    # Embeddings and head stay gathered through a pass, layers one after the other, the next one ahead.
    layer = (EIGHT.parameters - EIGHT.embeddings) / 36
    gathered = "shards of other GPUs, gathered to compute"
    assert parts.memory[gathered] == pytest.approx(7 / 8 * 2 * (EIGHT.embeddings + 2 * layer))
    assert whole.memory[gathered] == 0


@pytest.mark.parametrize(("shard", "parts", "row"), [(True, 8, 4096), (False, 1, 256)])
def test_what_is_fitted_counts_shards_as_they_are_planned_and_launched(
    monkeypatch: pytest.MonkeyPatch, shard: bool, parts: int, row: int
) -> None:
    real = changed(parse(preset_text("real"), "preset"), {"model.shard": shard, "midtrain.lora": None})
    assert capacity._fitted(real, EIGHT, 8, GPUS["H100"], 2_000_000).midtrain.row_tokens == row
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert this_machine(real.model).parts == 1
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert this_machine(real.model).parts == parts


def test_no_row_is_planned_that_is_longer_than_the_model_s_context() -> None:
    real = parse(preset_text("real"), "preset")
    short = replace(EIGHT, context=1024)
    rows = [
        capacity._fitted(real, size, 1, GPUS["H100"], 2_000_000).midtrain.row_tokens
        for size in (EIGHT, short)
    ]
    assert rows[0] > rows[1] == 1024


def test_an_adapter_needs_no_second_teacher() -> None:
    """Both stages train adapters: the clean model is the student with its adapter off."""
    lora = estimates(GPUS["H100"], planning(REAL))[1]
    full = estimates(GPUS["H100"], planning(capacity.both_trainings(REAL, lora=None)))[1]
    assert lora.memory["teacher"] == 0
    assert full.memory["teacher"] == 2 * 8_190_735_360


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"distill.method": "sft"}, 0),
        ({"distill.method": "rl"}, 0),
        ({"distill.method": "opd-topk", "distill.teacher_engine": "server"}, 0),
        ({"distill.method": "asft"}, 36),
        ({"distill.offload_teacher": True}, 1),
    ],
)
def test_a_teacher_is_planned_where_one_is_loaded(changes: dict[str, Any], layers: int) -> None:
    """8B has 36 layers, and 151,936 rows of 4,096 twice, which are not offloaded."""
    whole = capacity.both_trainings(changed(REAL, changes), lora=None)
    found = estimates(GPUS["H100"], planning(whole))[1].memory["teacher"]
    ends = 2 * EIGHT.embeddings
    expected = ends + (2 * EIGHT.parameters - ends) * layers / 36 if layers else 0
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("lora", [LoraConfig(rank=8), "auto"])
def test_recovery_goes_on_with_the_adapter_of_midtraining(lora: LoraConfig | str) -> None:
    """Where distill.lora is not set; an 8B model on 80 GB gets an adapter of rank 128 by itself."""
    config = changed(REAL, {"midtrain.lora": lora, "distill.lora": None})
    fitted = capacity._fitted(config, EIGHT, 1, GPUS["H100"], 2_000_000)
    found = estimates(GPUS["H100"], planning(fitted))[1]
    rank = 8 if lora != "auto" else 128
    assert fitted.distill.lora == fitted.midtrain.lora == LoraConfig(rank=rank)
    assert found.memory["teacher"] == 0  # the student without its adapter
    assert planning(fitted).trained("distill") == EIGHT.adapter_weights(rank)


def test_a_student_that_teaches_itself_copies_its_adapter_alone() -> None:
    config = changed(REAL, {"distill.method": "opcd", "midtrain.lora": None})
    found = estimates(GPUS["H100"], planning(config))[1].memory["teacher"]
    assert found == 4 * EIGHT.adapter_weights(128)


def test_no_training_of_a_vision_tower_is_planned() -> None:
    size = replace(EIGHT, unused=10**9)
    job = planning(capacity.both_trainings(REAL, lora=None))
    for stage in ("midtrain", "distill"):
        planned = [replace(job, size=one).trained(stage) for one in (EIGHT, size)]
        assert planned[0] - planned[1] == 10**9


def test_rows_are_planned_as_long_as_recovery_reads_them() -> None:
    """8B on 40 GiB: 17.5 GB are left beside an adapter on the clean model, 1.1 beside a second model too."""
    real = changed(parse(preset_text("real"), "preset"), {"distill.lora": {"rank": 128}})
    whole = changed(real, {"midtrain.lora": None})
    rows = [
        capacity._fitted(one, EIGHT, 1, GPUS["A100-40"], 2_000_000).distill.longest_row
        for one in (real, whole)
    ]
    assert rows[0] > 20_000 and rows[1] == 2 * (2048 + 200)


def test_a_moving_average_that_teaches_is_there_in_fp32() -> None:
    """Four bytes of every trained weight, beside the teacher that computes with them in 16 bits."""
    name = "the teacher's average"
    for lora, trained in ((None, 8_190_735_360), (LoraConfig(rank=8), EIGHT.adapter_weights(8))):
        for method, held in (("opcd", None), ("sdft-reverse", 4 * trained)):
            config = capacity.both_trainings(changed(REAL, {"distill.method": method}), lora=lora)
            found = estimates(GPUS["H200"], planning(config))[1]
            assert found.memory.get(name) == held


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("size", ["0.6B", "8B"])
def test_no_part_of_the_memory_is_negative(size: str, checkpointing: bool) -> None:
    """Without checkpointing an adapted model keeps less than a plain one: frozen weights need no inputs."""
    job = stage_memory.PlannedWork(read_size(size), settings(gradient_checkpointing=checkpointing))
    stages = estimates(GPUS["H100"], job)
    assert all(one.memory for one in stages) and len(stages) == len(plan_memory.STAGES)
    for one in stages:
        assert not {name: part for name, part in one.memory.items() if part < 0}, one.stage


def test_a_config_with_an_infinite_number_is_sized(tmp_path: Path) -> None:
    """transformers writes it as {"__float__": "Infinity"}."""
    from transformers import FalconH1Config

    config = FalconH1Config(num_hidden_layers=1, vocab_size=64)
    config.save_pretrained(tmp_path)
    assert "Infinity" in (tmp_path / "config.json").read_text()
    assert read_size(str(tmp_path)).parameters == size_from_config("H1", config.to_dict()).parameters


def test_a_method_that_samples_a_group_is_planned_with_the_whole_group() -> None:
    def planned(samples: int) -> tuple[float | None, dict[str, float]]:
        config = changed(REAL, {"distill.method": "rl", "distill.samples_per_prompt": samples})
        _, distill, _ = estimates(GPUS["H100"], planning(config))
        return distill.seconds, distill.memory

    assert planned(1) == planned(8) != planned(16)


@pytest.mark.parametrize(("dtype", "number"), [("auto", 2), ("float32", 4)])
@pytest.mark.parametrize(("together", "batches"), [(1, 541), (64, 9)])
def test_a_batch_of_answers_waits_for_its_longest(
    together: int, batches: int, dtype: str, number: int
) -> None:
    """541 answers of 400 tokens, three times; 100 tokens more read the weights 100 times for each batch,
    at 32 % of 3.35 TB/s."""

    def planned(longest: int) -> float:
        wanted = {"eval.batch_size": together, "eval.max_new_tokens": longest, "model.dtype": dtype}
        config = changed(REAL, wanted)
        found = estimates(GPUS["H100"], planning(config))[2].seconds
        assert found is not None
        return found

    waited = 3 * batches * 100 * number * EIGHT.parameters / (0.32 * 3.35e12)
    assert planned(600) - planned(500) == pytest.approx(waited)
    assert planned(500) - planned(400) == pytest.approx(waited)


def test_time_by_hand() -> None:
    """8B on an H100: 3 passes over 1 M tokens that are a third, 6 FLOP a weight and token with an adapter and
    checkpointing, attention's 12 a number of its width at a context of 2,048, at 26 % of 989 TFLOP/s."""
    mix = {"new": 0.3, "questions": 0.55, "earlier": 0.15, "chat": 0.0}
    config = REAL.model_copy(update={"midtrain": override(REAL.midtrain, {"mix": mix})})
    job = planning(config, document_tokens=1_000_000)
    assert EIGHT.active == EIGHT.parameters - 151936 * 4096
    per_token = 6 * EIGHT.active + 12 * 36 * 4096 * 2048
    share = 0.3 / (1 - 0.15)  # nothing is earlier
    wanted = (3 * 1_000_000 / share) * per_token / (0.26 * 989e12)
    assert estimates(GPUS["H100"], job)[0].seconds == pytest.approx(wanted)
    two = estimates(GPUS["H100"], replace(job, processes=2))
    assert two[0].seconds == pytest.approx(wanted / 2)


@pytest.mark.parametrize(
    ("text", "count", "name", "gib"),
    [
        ("8xH100", 8, "H100", 80),
        ("h200", 1, "H200", 139),
        ("24GB", 1, "24 GB", 24),
        ("2x 48GiB", 2, "48 GB", 48),
    ],
)
def test_gpus_as_they_are_written(text: str, count: int, name: str, gib: float) -> None:
    found, gpu = parse_gpus(text)
    assert (found, gpu.name, gpu.gib) == (count, name, gib)


def test_answers_are_planned_no_longer_than_their_limits() -> None:
    """Of 2,048 tokens in recovery and 1,280 in an evaluation, in hours and in memory."""
    beyond, most = (estimates(GPUS["H200"], planning(REAL, answer_tokens=tokens)) for tokens in (10**6, 2048))
    assert beyond[0] == most[0] and beyond[1].memory == most[1].memory
    assert beyond[2].seconds == most[2].seconds


@pytest.mark.parametrize(
    "text", ["", "0xH100", "8x", "hundred", "xH100", "9" * 400 + "GB", "9" * 5000 + "xH100"]
)
def test_gpus_that_nobody_has(text: str) -> None:
    with pytest.raises(InputError, match="write 8xH100"):
        parse_gpus(text)


def test_what_does_not_fit_is_told_what_to_change() -> None:
    """All 8 B weights on 24 GB are 150 GiB of training; what is named makes it fit, or more GPUs do."""
    config = capacity.both_trainings(settings(gradient_checkpointing=False), lora=None)
    found = capacity.plan(parse_gpus("24GB")[1], planning(config))
    assert not found["fits"] and found["hours"] is None and found["change"]
    small = capacity.plan(parse_gpus("18GB")[1], stage_memory.PlannedWork(read_size("4B"), REAL))
    assert not small["fits"] and small["change"] == ["microbatch_tokens: 2048"]
    large = capacity.plan(parse_gpus("H200")[1], stage_memory.PlannedWork(read_size("0.6B"), REAL))
    assert large["fits"] and large["change"] == []


def advised(processes: int, **changes: Any) -> set[str]:
    """Return what a plan advises, one by one, where all weights are trained."""
    config = changed(capacity.both_trainings(REAL, lora=None), changes)
    return {name for name, _ in capacity.remedies(config, processes)}


OFFLOAD = "distill.offload_teacher: true"


@pytest.mark.parametrize(
    "changes",
    [
        {"distill.method": "sft"},
        {"distill.method": "rl"},
        {"distill.method": "seqkd"},
        {"distill.stop.every": 5},
        {"distill.teacher_engine": "server"},
    ],
)
def test_a_teacher_is_not_to_be_offloaded_where_that_is_refused(changes: dict[str, Any]) -> None:
    assert OFFLOAD in advised(1) - advised(1, **changes)


@pytest.mark.parametrize("changes", [{"model.quantize": "nf4"}, {"distill.method": "sdft"}])
def test_what_cannot_be_sharded_is_not_to_be(changes: dict[str, Any]) -> None:
    assert "model.shard: true (FSDP2 over 2 GPUs)" in advised(2) - advised(2, **changes)
    job = stage_memory.PlannedWork(read_size("32B"), changed(REAL, changes), 2)
    change = capacity.plan(parse_gpus("2x10GB")[1], job)["change"]
    assert not any("model.shard" in one for one in change)
    assert "GiB or more: each holds the whole model" in change[-1]


def test_shards_of_a_model_in_4_bits_are_not_planned(tmp_path: Path) -> None:
    text = preset_text("real").replace("model:\n", "model:\n  quantize: nf4\n", 1)
    (tmp_path / "recover.yaml").write_text(text)
    with pytest.raises(InputError, match=r"--shard: model\.quantize is nf4"):
        capacity.plan_for(tmp_path, model="8B", gpus="2x24GB", shard=True)


@pytest.mark.parametrize(("in_file", "rank"), [("lora: auto", 0), ("lora: null", None)])
def test_no_training_of_all_weights_in_4_bits_is_planned(
    tmp_path: Path, in_file: str, rank: int | None
) -> None:
    """It fitted, and every training refused it."""
    text = preset_text("real").replace("model:\n", "model:\n  quantize: nf4\n", 1)
    (tmp_path / "recover.yaml").write_text(text.replace("lora: auto", in_file))
    with pytest.raises(InputError, match=r"midtrain\.lora: weights in 4 bits .* can't be trained"):
        capacity.plan_for(tmp_path, model="8B", gpus="1xH100", lora=rank)
    assert capacity.plan_for(tmp_path, model="8B", gpus="1xH100", lora=32)["fits"]


@pytest.mark.parametrize("lengths", [{}, {"steps": 50}, {"epochs": 2}, {"tokens_per_step": 8192}])
def test_hours_of_midtraining_by_passages_are_not_told_from_the_documents_tokens(
    tmp_path: Path, lengths: dict[str, float]
) -> None:
    """A pass is the cost of all questions about the documents, which none of these numbers gives."""
    found = planned_by_passages(tmp_path, lengths)
    assert [row["hours"] is None for row in found["stages"]] == [True, False, False]
    assert (found["hours"], found["gpu_hours"]) == (None, None)
    said = plan_text(found)
    assert (
        "time: that of midtraining follows from the questions" in said and "unknown for this GPU" not in said
    )


def test_hours_of_midtraining_by_passages_follow_steps_and_their_cost(tmp_path: Path) -> None:
    short, long = (
        planned_by_passages(tmp_path, {"steps": steps, "tokens_per_step": 8192}) for steps in (50, 100)
    )
    assert long["stages"][0]["hours"] == pytest.approx(2 * short["stages"][0]["hours"])
    assert "together" in plan_text(short)


def planned_by_passages(home: Path, lengths: dict[str, float]) -> dict[str, Any]:
    text = preset_text("real").replace(
        "midtrain:\n",
        "midtrain:\n  method: passage\n" + "".join(f"  {name}: {n}\n" for name, n in lengths.items()),
        1,
    )
    (home / "recover.yaml").write_text(text)
    return capacity.plan_for(home, model="8B", gpus="8xH100")


@pytest.mark.slow
def test_changes_that_are_named_do_make_it_fit() -> None:
    for gpus in ("1xH100", "8xH100", "2xA100", "4x48GB"):
        for size in ("4B", "8B", "14B", "32B"):
            count, gpu = parse_gpus(gpus)
            config = capacity.both_trainings(settings(gradient_checkpointing=False), lora=None)
            job = stage_memory.PlannedWork(read_size(size), config, count)
            taken = capacity.changes(gpu, job)
            remedies = dict(capacity.remedies(config, count))
            if set(taken) <= set(remedies):
                for name in taken:
                    config = changed(config, remedies[name])
                assert capacity._largest(gpu, replace(job, config=config)) <= gpu.usable_gib


def test_the_command(tmp_path: Path) -> None:
    def call(*words: str) -> Any:
        return CliRunner().invoke(cli, ["--home", str(tmp_path / "none"), *words], obj=Session())

    done = call("--json", "plan", "--model", "8B", "--gpus", "8xH100", "--price", "2.5")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["fits"] and found["cost"] == pytest.approx(2.5 * found["gpu_hours"])
    assert [row["stage"] for row in found["stages"]] == ["midtrain", "distill", "evaluate"]
    assert not (tmp_path / "none").exists()
    text = call("plan", "--model", "microworld", "--gpus", "24GB").output
    timed = call("plan", "--model", "8B", "--gpus", "8xH100").output
    priced = call("plan", "--model", "8B", "--gpus", "8xH100", "--price", "2.5").output
    assert f" GPU-hours, cost {found['cost']:,.2f}; an estimate" in priced
    assert "cost" not in timed and " GPU-hours; an estimate" in timed
    assert "recovery is counted by distill.method: --recover-with auto tries cheaper ways" in timed
    assert "time: unknown for this GPU" in text and "1.8 million weights on 1 x 24 GB" in text


def test_the_command_says_what_it_assumes_and_what_more_gpus_do_not_shorten(tmp_path: Path) -> None:
    def plan(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(
            cli, ["--home", str(tmp_path / "none"), "--json", "plan", *words], obj=Session()
        )
        found: dict[str, Any] = json.loads(done.output)
        return found

    one = plan("--model", "8B", "--tokens", "300000", "--answer-tokens", "50")
    eight = plan("--model", "8B", "--tokens", "300000", "--answer-tokens", "50", "--gpus", "8xH100")
    assert one["assumed"] == {
        "document_tokens": 300_000,
        "answer_tokens": 50,
        "evaluations": 3,
        "evaluation_prompts": 541,
    }
    assert one["stages"][2]["hours"] == eight["stages"][2]["hours"]
    alone = "evaluation and midtraining's chat are answered by one GPU: more do not shorten them"
    said = plan_text(eight).splitlines()
    assert said[1:3] == [
        "assumed: 300,000 tokens of documents (--tokens), answers of 50 (--answer-tokens), 3 evaluations of "
        "541 prompts; probes and other questions are not counted",
        alone,
    ]
    assert alone not in plan_text(one)
    eight["stages"][0]["hours"] = 0.432
    eight["hours"] = 1.0 + 7 / 60
    rows = [line.split() for line in plan_text(eight).splitlines()]
    assert ["midtrain", f"{eight['stages'][0]['gib']:.1f}", "yes", "26", "min"] in rows
    assert "together 1 h 07 min, " in plan_text(eight)


def test_without_a_home_the_model_has_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"^there is no home at {tmp_path}/none: give --model, as in"):
        capacity.plan_for(tmp_path / "none", gpus="8xH100")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"hidden_size": 8}', "lacks 'model_type'"),
        ("8", "is not a model's config.json: not an object"),
        ("[" * 100_000, "is not a model's config.json"),
    ],
)
def test_a_config_that_is_none(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_size(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("adapter_config.json", "an adapter lies there: give the model that it was made for"),
        ("m.gguf", "a GGUF file lies there: `recover init --model` converts it"),
        ("model.safetensors", "give a model's directory, a hub id or a size: 0.6B"),
    ],
)
def test_a_folder_without_a_config_is_said_to_lack_it(tmp_path: Path, file: str, said: str) -> None:
    """It was taken for a hub id."""
    (tmp_path / file).touch()
    with pytest.raises(InputError, match=rf"--model {tmp_path}: holds no config\.json: {said}"):
        read_size(str(tmp_path))


def test_a_model_in_the_users_own_folder_is_sized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    families.save(families.named("Llama"), tmp_path / "m")
    assert read_size("~/m").parameters == read_size(str(tmp_path / "m")).parameters


@pytest.mark.parametrize(("method", "refused"), [("fp8", True), ("gptq", True), ("mxfp4", False)])
def test_quantised_weights_are_planned_only_where_they_can_be_loaded(
    tmp_path: Path, method: str, refused: bool
) -> None:
    model = families.save(families.named("Llama"), tmp_path / "m")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": method}}))
    if not refused:
        assert read_size(str(model)).parameters > 0
        return
    with pytest.raises(InputError, match=rf"its weights are quantised \({method}\), which can't be trained"):
        read_size(str(model))


def test_a_hub_out_of_reach_is_asked_once_for_a_models_size(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of the library's own retries was printed twice, over half a minute."""
    asked: list[str] = []

    def refusing(what: str) -> Callable[..., None]:
        def refuse(*_: object, **__: object) -> None:
            asked.append(what)
            raise OSError("no route to host")

        return refuse

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refusing("model"))
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", refusing("file"))
    with pytest.raises(InputError, match="--model owner/nobody-has-it: no directory, and not to be had"):
        read_size("owner/nobody-has-it")
    assert asked == ["model"] and capfd.readouterr() == ("", "")
