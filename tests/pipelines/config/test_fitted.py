"""Fitted settings: folders of 60 tokens to 200 MB, models of 1.8 M to 70 B weights, 2 to 256 GiB."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.config import fitted
from pipelines.config.fitted import Machine, ModelSize, fit_to_corpus
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.model import ModelConfig
from pipelines.config.sections.training import LoraConfig, OptimizerConfig
from pipelines.machine.model_sizes import SIZES, model_size, read_size
from pipelines.machine.stage_memory import PlannedWork, tokens_of_a_pass
from recovery.training.config import warmup_within
from tests.support.stages import PRESET

OPTIMIZER = OptimizerConfig(learning_rate=1e-4)
RECOMPUTING = ModelConfig(path="some", gradient_checkpointing=True)
NAMES = ["microworld", *SIZES]


@cache
def sized(name: str) -> ModelSize:
    return model_size(read_size(name), RECOMPUTING)


SIZE = st.sampled_from(NAMES).map(sized)
MACHINE = st.builds(Machine, st.integers(2**31, 2**38), st.sampled_from([2, 4]))
TOKENS = st.integers(60, 60_000_000)
SHARE = st.floats(0.1, 1.0)


@pytest.fixture(scope="module", autouse=True)
def counted_once() -> None:
    """Hypothesis takes counting a model's passes for a slow way to draw it."""
    for name in NAMES:
        sized(name)


def midtraining(**values: Any) -> MidtrainConfig:
    return MidtrainConfig(optimizer=OPTIMIZER, **values)


def views(settings: MidtrainConfig, tokens: int, share: float) -> float:
    return (settings.steps or 0) * settings.tokens_per_step * share / tokens


@given(TOKENS, SHARE, st.floats(0.5, 40))
def test_a_document_is_never_seen_more_often_than_asked(tokens: int, share: float, epochs: float) -> None:
    found = fit_to_corpus(midtraining(epochs=epochs), tokens, share)
    assert found.steps and found.steps >= 1
    assert views(found, tokens, share) <= epochs * (1 + 1e-6)
    assert views(found, tokens, share) >= epochs * 0.45  # nor half as often


@given(TOKENS, SHARE)
def test_every_folder_gets_enough_small_updates(tokens: int, share: float) -> None:
    found = fit_to_corpus(midtraining(), tokens, share)
    steps = found.steps or 0
    seen = views(found, tokens, share)
    assert steps >= fitted.UPDATES - 1 or seen >= 0.95 * fitted.MOST_PASSES
    assert seen <= fitted.MOST_PASSES
    assert found.tokens_per_step <= min(fitted.LARGEST_STEP, tokens / share)
    assert warmup_within(20, steps) <= steps / 10
    # A row fits into an update, so that each update holds documents.
    assert fitted.SHORTEST_ROW <= found.row_tokens <= max(fitted.SHORTEST_ROW, found.tokens_per_step * share)


@pytest.mark.parametrize(("tokens", "most"), [(60, 32), (5_000, 15), (130_000, 3), (50_000_000, 3)])
def test_small_folders_are_seen_more_often_and_large_ones_thrice(tokens: int, most: float) -> None:
    found = fit_to_corpus(midtraining(), tokens, 0.7)
    assert 0.9 * min(most, 3) <= views(found, tokens, 0.7) <= most


def test_one_note_is_an_update_a_pass() -> None:
    found = fit_to_corpus(midtraining(), 60, 1.0)
    assert (found.steps, found.tokens_per_step, found.row_tokens) == (32, 60, 60)
    assert fit_to_corpus(midtraining(epochs=3), 60, 1.0).steps == 3


@given(TOKENS, SHARE, SIZE, MACHINE)
def test_what_is_set_stays(tokens: int, share: float, model: ModelSize, machine: Machine) -> None:
    values = {"steps": 240, "tokens_per_step": 2048, "row_tokens": 256, "microbatch_tokens": 4096}
    by_hand = midtraining(**values, lora=LoraConfig(rank=4))
    assert fit_to_corpus(fitted.fit_midtraining(by_hand, model, machine), tokens, share) == by_hand
    answers = EvalConfig(batch_size=256)
    assert fitted.fit_evaluation(answers, model, machine) == answers
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER, microbatch_tokens=2048, longest_row=3000)
    assert fitted.fit_distillation(recovery, model, machine) == recovery


@given(SIZE, MACHINE)
def test_all_weights_where_they_fit_and_never_more_with_less_memory(
    model: ModelSize, machine: Machine
) -> None:
    """They fit where they do in recovery too, beside a teacher."""
    automatic = midtraining(lora="auto")
    found = fitted.fit_midtraining(automatic, model, machine)
    trained = model.parameters * (18 if machine.weight_bytes == 2 else 16)
    teacher = model.parameters * machine.weight_bytes
    assert (found.lora is None) == (trained + teacher <= machine.usable_bytes / 2)
    smaller = replace(machine, usable_bytes=machine.usable_bytes / 2)
    less = fitted.fit_midtraining(automatic, model, smaller)
    if (less.lora is None) == (found.lora is None):
        assert less.microbatch_tokens <= found.microbatch_tokens
    if found.lora is None:
        activations = found.microbatch_tokens * model.activation_bytes
        least = fitted.SMALLEST_MICROBATCH * model.activation_bytes
        assert trained + activations <= machine.usable_bytes or activations == least


@given(SIZE, MACHINE, st.sampled_from([1, 2, 8]), st.sampled_from(["opd", "sdft"]))
def test_both_stages_of_a_cycle_train_alike(
    model: ModelSize, machine: Machine, parts: int, method: str
) -> None:
    """An adapter on a midtrained model would become `current`, which every later cycle trains."""
    shared = replace(machine, parts=parts)
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER, method=method, lora="auto")
    taught = fitted.fit_midtraining(midtraining(lora="auto"), model, shared)
    assert fitted.fit_distillation(recovery, model, shared).lora == taught.lora


def test_a_small_model_on_24_gb_has_one_adapter_in_both_stages() -> None:
    """0.6 billion weights: 10.7 GB in midtraining, of which half of 23.7 hold; 11.9 in recovery."""
    size, machine = model_size(read_size("0.6B"), RECOMPUTING), Machine(0.92 * 24 * 2**30)
    assert 18 * size.parameters < machine.usable_bytes / 2 < 20 * size.parameters
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER, lora="auto")
    assert fitted.fit_midtraining(midtraining(lora="auto"), size, machine).lora == LoraConfig()
    assert fitted.fit_distillation(recovery, size, machine).lora == LoraConfig()


@given(SIZE, MACHINE, st.sampled_from(["auto", None]))
def test_an_adapter_stays_the_one_that_it_is(model: ModelSize, machine: Machine, asked: str | None) -> None:
    """Also where none is asked for: it is what is trained, and what takes memory."""
    student, own = replace(model, rank=16), LoraConfig(rank=16)
    midtrained = fitted.fit_midtraining(midtraining(lora=asked), student, machine)
    assert midtrained == fitted.fit_midtraining(midtraining(lora=own), student, machine)
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER)
    taught, by_hand = (
        fitted.fit_distillation(recovery.model_copy(update={"lora": lora}), student, machine)
        for lora in (asked, own)
    )
    assert taught == by_hand and taught.lora == own


@given(SIZE, MACHINE)
def test_a_teacher_that_sees_the_passage_takes_its_place_in_memory(
    model: ModelSize, machine: Machine
) -> None:
    """As in distillation: it is as large as the student, and its weights are there all the time."""
    passage = fitted.fit_midtraining(midtraining(method="passage", lora="auto"), model, machine)
    distill = fitted.fit_distillation(
        DistillConfig(prompts="p", optimizer=OPTIMIZER, lora="auto"), model, machine
    )
    longest = fitted.tokens_of_a_pass(passage.microbatch_tokens, distill.max_new_tokens)
    assert (passage.lora, longest) == (distill.lora, distill.microbatch_tokens)


@given(SIZE, MACHINE, st.integers(16, 32_768))
def test_a_microbatch_holds_the_longest_answer_which_a_pass_holds_anyway(
    model: ModelSize, machine: Machine, longest: int
) -> None:
    """So what is chosen is what `recover plan` counts, and a smaller one would only take more passes."""
    settings = DistillConfig(prompts="p", optimizer=OPTIMIZER, max_new_tokens=longest)
    found = fitted.fit_distillation(settings, model, machine)
    assert found.microbatch_tokens >= longest + fitted.TRAINED_PROMPT
    planned = PlannedWork(read_size("microworld"), PRESET.model_copy(update={"distill": found}))
    assert tokens_of_a_pass(planned, "distill") == found.microbatch_tokens


def test_a_teacher_that_is_a_moving_average_takes_four_bytes_of_a_trained_weight_more() -> None:
    """1,000 million weights: 18 bytes each in training, 2 and 4 in the teacher; 30 million in an adapter, of
    which alone the teacher has a copy, of 4 bytes each, and the average."""
    model = ModelSize(10**9, 30 * 10**6, activation_bytes=10**6, cache_bytes=1)
    plain, averaged = (
        DistillConfig(prompts="p", optimizer=OPTIMIZER, method=method, lora="auto", max_new_tokens=16)
        for method in ("opd", "sdft")
    )
    for usable, adapter in ((39e9, True), (41e9, False)):
        found = [fitted.fit_distillation(one, model, Machine(usable)) for one in (plain, averaged)]
        assert [one.lora is not None for one in found] == [adapter, adapter]  # as in midtraining
    set_up = [one.model_copy(update={"lora": None}) for one in (plain, averaged)]
    rows = [fitted.fit_distillation(one, model, Machine(60e9)).longest_row for one in set_up]
    assert rows == [40_000, 36_000]
    adapted = averaged.model_copy(update={"lora": LoraConfig()})
    row = fitted.fit_distillation(adapted, model, Machine(60e9)).longest_row
    assert row == 60_000 - 2_000 - 480 - 120 - 120


def test_an_adapter_on_its_teacher_leaves_the_memory_of_a_second_model() -> None:
    """1,000 million weights of 2 bytes, and 16 of each of 30 million in the adapter."""
    model = ModelSize(10**9, 30 * 10**6, activation_bytes=10**6, cache_bytes=1)
    usual, head = LoraConfig(), LoraConfig(targets=["q_proj", "lm_head"])

    def row(method: str, lora: LoraConfig | None, on_teacher: bool = True) -> int:
        settings = DistillConfig(
            prompts="p", optimizer=OPTIMIZER, method=method, lora=lora, max_new_tokens=16
        )
        return fitted.fit_distillation(settings, model, Machine(60e9), on_teacher=on_teacher).longest_row

    assert row("opd", usual) == row("seqkd", usual) == 60_000 - 2_000 - 480
    beside = [row("opd", usual, on_teacher=False), row("opd", head), row("opd-multi", usual)]
    assert beside == [60_000 - 2_000 - 480 - 2_000] * 3
    assert row("opd", None) == 60_000 - 18_000 - 2_000


def test_rows_are_as_long_as_the_memory_holds_beside_what_a_method_loads() -> None:
    """1,000 million weights, 18 bytes each in training; a vision tower of 100 million of them is not trained,
    nor are 200 million of frozen embeddings. Of an offloaded teacher one of 4 layers is there."""
    model = ModelSize(
        10**9, 30 * 10**6, activation_bytes=10**6, cache_bytes=1, embeddings=2 * 10**8, unused=10**8, layers=4
    )

    def row(method: str = "opd", has_host: bool = True, **values: Any) -> int:
        settings = DistillConfig(prompts="p", optimizer=OPTIMIZER, method=method, max_new_tokens=16, **values)
        machine = Machine(60e9, has_host=has_host)
        return fitted.fit_distillation(settings, model, machine).longest_row

    alone = 60_000 - 2_000 - 16 * 900
    assert row("sft") == row("rl") == alone
    assert row() == row("asft") == alone - 2_000
    assert row(teacher_engine="server") == alone
    assert row(freeze_embeddings=True) == 60_000 - 2_000 - 16 * 700 - 2_000
    assert row(offload_teacher=True) == alone - (2 * 300 + 1_400 // 4)
    assert row(has_host=False, offload_teacher=True) == row()  # no other memory to rest in
    adapter = 60_000 - 2_000 - 16 * 15
    assert row("sft", lora=LoraConfig(rank=64)) == adapter
    assert row("opcd", lora=LoraConfig(rank=64)) == adapter - 4 * 15  # its copy shares what is frozen


def test_an_adapter_on_the_clean_model_reads_passages_without_a_second_model() -> None:
    """1,000 million weights of 2 bytes, and 16 of each of 30 million in the adapter, or of each of all."""
    model = ModelSize(10**9, 30 * 10**6, activation_bytes=10**6, cache_bytes=1)

    def tokens(usable: float, lora: LoraConfig | None, on_teacher: bool = True) -> int:
        settings = midtraining(method="passage", lora=lora)
        return fitted.fit_midtraining(
            settings, model, Machine(usable), on_teacher=on_teacher
        ).microbatch_tokens

    head = LoraConfig(targets=["q_proj", "lm_head"])
    assert tokens(6.6e9, LoraConfig()) == 2048
    assert tokens(6.6e9, LoraConfig(), on_teacher=False) == tokens(6.6e9, head) == 1024
    assert tokens(28e9, None) == tokens(28e9, None, on_teacher=False) == 2048


def test_what_a_shard_gathers_to_sample_is_gone_when_it_trains() -> None:
    """A part in eight of 18 bytes of each of 1,000 million weights, and a whole teacher."""
    model = ModelSize(10**9, 30 * 10**6, activation_bytes=10**6, cache_bytes=1)
    settings = DistillConfig(prompts="p", optimizer=OPTIMIZER, max_new_tokens=16)
    found = fitted.fit_distillation(settings, model, Machine(60e9, parts=8))
    assert found.longest_row == 60_000 - 2_250 - 2_000


def test_what_a_shard_gathers_to_train_takes_its_room() -> None:
    """Seven eighths of embeddings and head, 100 million weights, and of two of ten layers of 90 million."""
    model = ModelSize(10**9, 30 * 10**6, 10**6, cache_bytes=1, embeddings=10**8, layers=10)
    settings = DistillConfig(prompts="p", optimizer=OPTIMIZER, max_new_tokens=16)
    found = fitted.fit_distillation(settings, model, Machine(60e9, parts=8))
    assert found.longest_row == 60_000 - 2_250 - 2_000 - 490


def test_a_longest_row_without_room_for_a_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="longest_row holds no prompt beside max_new_tokens"):
        DistillConfig(prompts="p", optimizer=OPTIMIZER, max_new_tokens=64, longest_row=64)


@given(SIZE, MACHINE, st.integers(16, 2048))
def test_the_longest_row_fits_beside_the_weights(model: ModelSize, machine: Machine, answer: int) -> None:
    """Or is twice a microbatch: what is so short that a pass of several holds it is never left out."""
    settings = DistillConfig(prompts="p", optimizer=OPTIMIZER, lora=LoraConfig(), max_new_tokens=answer)
    found = fitted.fit_distillation(settings, model, machine)
    held = 2 * model.parameters * machine.weight_bytes + 16 * model.adapter
    longest = found.longest_row * model.activation_bytes
    assert held + longest <= machine.usable_bytes or found.longest_row == 2 * found.microbatch_tokens
    assert found.longest_row >= 2 * found.microbatch_tokens > answer


def test_shards_leave_the_memory_of_what_the_other_processes_hold() -> None:
    """8.19 billion weights, 18 bytes each in training: 147 GB on one GPU of 80, 18 GB on each of eight."""
    size = model_size(read_size("8B"), RECOMPUTING)
    alone, eight = (Machine(0.92 * 80 * 2**30, parts=parts) for parts in (1, 8))
    assert fitted._held(size.parameters, None, size, eight) == 18 * 8_190_735_360 / 8
    for machine, row in ((alone, 256), (eight, 4096)):
        found = fit_to_corpus(fitted.fit_midtraining(midtraining(), size, machine), 2_000_000, 0.7)
        assert found.row_tokens == row <= found.microbatch_tokens
        assert found.microbatch_tokens > 4000 or machine is alone
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER, max_new_tokens=512)
    assert fitted.fit_distillation(recovery, size, eight).microbatch_tokens > 4000
    assert fitted.fit_distillation(recovery, size, alone).microbatch_tokens == 512 + fitted.TRAINED_PROMPT


def test_all_weights_are_trained_where_their_part_fits() -> None:
    """Of eight GPUs each holds 18 GB in midtraining; in recovery also a teacher, 16, and 14 gathered."""
    size = model_size(read_size("8B"), RECOMPUTING)
    recovery = DistillConfig(prompts="p", optimizer=OPTIMIZER, lora="auto")
    for gib, parts, full in ((80, 1, 0), (80, 8, 0), (139, 1, 0), (139, 8, 2)):
        machine = Machine(0.92 * gib * 2**30, parts=parts)
        found = fitted.fit_midtraining(midtraining(lora="auto"), size, machine)
        taught = fitted.fit_distillation(recovery, size, machine)
        assert [found.lora, taught.lora].count(None) == full, (gib, parts)


@given(SIZE, MACHINE, st.integers(16, 4096))
def test_sampled_rows_fit_beside_the_weights(model: ModelSize, machine: Machine, longest: int) -> None:
    batch = fitted.fit_evaluation(EvalConfig(max_new_tokens=longest), model, machine).batch_size
    free = machine.usable_bytes - model.parameters * machine.weight_bytes
    assert 1 <= batch <= 256
    row = (512 + longest) * model.cache_bytes
    assert batch == 1 or batch * row <= free / 2
    assert batch == 256 or (batch + (1 if batch < 8 else 8)) * row > free / 2


def test_auto_is_a_word_of_the_settings_and_one_line_says_what_it_came_to() -> None:
    words = {"tokens_per_step": "auto", "row_tokens": "auto", "microbatch_tokens": "auto", "lora": "auto"}
    assert midtraining(**words) == midtraining(lora="auto")
    found = fit_to_corpus(
        fitted.fit_midtraining(
            midtraining(lora="auto"), model_size(read_size("8B"), RECOMPUTING), Machine(73 * 2**30)
        ),
        130_000,
        0.7,
    )
    said = fitted.midtraining_in_words(found, 130_000, 0.7)
    assert said == (
        "200 steps of 2,785 tokens, warm-up of 20; each document is seen 3.0 times, in rows of 1,024; "
        f"an adapter of rank 128, {found.microbatch_tokens:,} tokens in a forward pass"
    )


def test_a_number_of_passes_below_the_fitted_one_is_named() -> None:
    def said(tokens: int, **settings: Any) -> str:
        return fitted.fewer_passes_in_words(
            midtraining(**settings), tokens, 1.0, lambda free: fit_to_corpus(free, tokens, 1.0)
        )

    assert said(5_000, epochs=6) == "; without `epochs` it is 20.5 times"
    assert said(5_000, epochs=6, tokens_per_step=512) == said(5_000) == said(10_000_000, epochs=6) == ""


@given(TOKENS, SHARE, st.integers(64, 8192), st.sampled_from([0, 256, 4096]))
def test_no_row_is_longer_than_the_model_s_context(tokens: int, share: float, context: int, row: int) -> None:
    free = fit_to_corpus(midtraining(row_tokens=row), tokens, share)
    found = fit_to_corpus(midtraining(row_tokens=row), tokens, share, context)
    assert found == free.model_copy(update={"row_tokens": min(free.row_tokens, context)})


def test_a_line_says_what_a_distillation_came_to() -> None:
    settings = DistillConfig(
        prompts="self",
        steps=60,
        max_new_tokens=256,
        microbatch_tokens=4096,
        optimizer=OPTIMIZER,
    )
    said = fitted.distillation_in_words(settings, 32, sampled=True, in_process=True)
    assert said == (
        "60 steps of 32 answers of at most 256 tokens, warm-up of 6; 32 sampled at once if the memory holds "
        "them; all weights, 4,096 tokens in a forward pass"
    )
    elsewhere = fitted.distillation_in_words(settings, 32, sampled=True, in_process=False)
    assert elsewhere == said.replace("32 sampled at once if the memory holds them; ", "")
    read = fitted.distillation_in_words(settings, 32, sampled=False, in_process=True)
    assert read == elsewhere.replace(" of at most 256 tokens", "")


def test_no_torch_is_needed() -> None:
    code = "import sys, pipelines.config.fitted; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_in_four_bits_gets_an_adapter_however_small_it_is() -> None:
    """Its weights can't be trained."""
    roomy = Machine(2**38)
    size = model_size(read_size("0.6B"), RECOMPUTING)
    assert fitted.fit_midtraining(midtraining(lora="auto"), size, roomy).lora is None
    quantized = model_size(read_size("0.6B"), RECOMPUTING.model_copy(update={"quantize": "nf4"}))
    assert fitted.fit_midtraining(midtraining(lora="auto"), quantized, roomy).lora == LoraConfig()


def test_weights_in_four_bits_leave_their_memory_to_answers_and_passes() -> None:
    """14.8 billion weights: 27.5 GiB in 16 bits; 9.2 in 4, as `recover plan` counts them, of 24."""
    size, machine = read_size("14B"), Machine(0.92 * 24 * 2**30)
    in_four_bits = RECOMPUTING.model_copy(update={"quantize": "nf4"})
    quantized = model_size(size, in_four_bits)
    assert quantized.quantized_bytes == size.weight_bytes(quantize=True) < machine.usable_bytes / 2
    assert fitted.fit_evaluation(EvalConfig(max_new_tokens=512), quantized, machine).batch_size > 16
    found = fitted.fit_midtraining(midtraining(lora="auto"), quantized, machine)
    assert found.microbatch_tokens > fitted.SMALLEST_MICROBATCH
    on_cpu = model_size(size, in_four_bits, gpu=False)
    assert on_cpu.quantized_bytes - quantized.quantized_bytes == pytest.approx(2 * size.embeddings, rel=0.01)


def test_a_token_takes_about_twice_the_memory_on_a_cpu() -> None:
    """Keys and values do; of activations, norms are in float32 anyway."""
    size = read_size("0.6B")
    settings = ModelConfig(path="some", gradient_checkpointing=True)
    gpu, cpu = model_size(size, settings), model_size(size, settings, gpu=False)
    assert cpu.cache_bytes == 2 * gpu.cache_bytes
    assert 1.5 * gpu.activation_bytes < cpu.activation_bytes < 1.9 * gpu.activation_bytes
