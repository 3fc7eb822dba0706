"""The memory: what a training holds at least is refused where it is more, and said where it may not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from db.reads import queries
from pipelines.config.fitted import Machine, ModelSize
from pipelines.config.overrides import changed
from pipelines.config.sections.model import ModelConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.pilot import pilot_job
from pipelines.machine import fitting
from pipelines.machine.disk_space import STAGES
from pipelines.machine.held_memory import Held, Student, held, ways_out
from pipelines.machine.model_sizes import model_size, read_size
from recovery.errors import InputError
from tests.support.small_cycles import make_docs, make_home, settle, trainings
from tests.support.stages import PRESET

SIZE = ModelSize(parameters=1000, adapter=128, activation_bytes=3, cache_bytes=1, embeddings=300)
CLEAN = Student(SIZE, adapter=0, below="clean")
ROOMY = Machine(1e9)
MODEL = ModelConfig(path="some")
WHOLE: dict[str, Any] = {"midtrain.lora": None, "distill.lora": None, "distill.freeze_embeddings": False}
ADAPTER: dict[str, Any] = {"midtrain.lora": {"rank": 64}, "distill.lora": "auto"}
CHAT: dict[str, Any] = {"midtrain__mix": {"new": 0.5, "earlier": 0.0, "questions": 0.0, "chat": 0.5}}


def lasting(student: Student = CLEAN, machine: Machine = ROOMY, **changes: Any) -> list[float]:
    """What midtraining and recovery hold all the time, by default with all weights."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return [one.lasting for one in held(changed(PRESET, WHOLE | named), student, machine, STAGES, "clean")]


def test_all_weights_are_held_with_their_optimizer_and_in_recovery_beside_a_teacher() -> None:
    assert lasting() == [18_000, 20_000]
    assert lasting(machine=Machine(1e9, weight_bytes=4)) == [16_000, 20_000]
    assert lasting(machine=Machine(1e9, parts=4)) == [4_500, 6_500]
    assert lasting(distill__freeze_embeddings=True) == [18_000, 2_000 + 16 * 700 + 2_000]
    assert lasting(replace(CLEAN, size=replace(SIZE, unused=100))) == [16_400, 18_400]


def test_a_teacher_elsewhere_is_not_held() -> None:
    assert lasting(distill__teacher_engine="http://127.0.0.1:9") == [18_000, 18_000]
    assert lasting(distill__offload_teacher=True) == lasting(distill__method="sft") == [18_000, 18_000]
    assert lasting(midtrain__method="passage") == [20_000, 20_000]


def test_a_student_that_teaches_itself_holds_a_copy_of_what_is_trained() -> None:
    """In 16 bits, and of an adapter in 32; a moving average beside it in 32. None of it can be offloaded."""
    frozen: dict[str, Any] = {"distill__freeze_embeddings": True}
    assert lasting(distill__method="opcd")[1] == 18_000 + 2_000
    assert lasting(distill__method="opcd", **frozen)[1] == 2_000 + 16 * 700 + 2 * 700
    assert lasting(distill__method="sdft")[1] == 18_000 + 2_000 + 4_000
    assert lasting(**ADAPTER, distill__method="sdft")[1] == 2_000 + (16 + 4 + 4) * 64
    itself = list(held(changed(PRESET, WHOLE | {"distill.method": "sdft"}), CLEAN, ROOMY, STAGES, "clean"))[1]
    assert itself.named == "weights, optimizer and teacher"
    assert "distill.offload_teacher: true" not in ways_out(itself, MODEL, Machine(9e3, whole_bytes=1e4), 2)


@pytest.mark.parametrize(("method", "advised"), [("opd", True), ("seqkd", False)])
def test_a_teacher_is_not_to_be_offloaded_where_that_is_refused(method: str, advised: bool) -> None:
    """One that writes the answers would be too slow so."""
    settings = changed(PRESET, WHOLE | {"distill.method": method})
    taught = list(held(settings, CLEAN, ROOMY, STAGES, "clean"))[1]
    ways = ways_out(taught, MODEL, Machine(9e3, whole_bytes=1e4), 2)
    assert ("distill.offload_teacher: true" in ways) is advised


def test_other_teachers_are_held_beside_all_weights_and_maybe_below_an_adapter() -> None:
    assert lasting(distill__method="opd-multi")[1] == 20_000
    assert (
        lasting(replace(CLEAN, below="mixed"), **ADAPTER, distill__method="opd-multi")[1] == 2_000 + 16 * 64
    )


def test_an_adapter_on_the_clean_model_holds_no_second_one() -> None:
    """Of rank 64, half of the default one's weights; on modules of their own they are not known."""
    adapter = 2_000 + 16 * 64
    assert lasting(**ADAPTER) == [adapter, adapter]
    beside = lasting(replace(CLEAN, below="mixed"), **ADAPTER)
    assert beside == [2 * 2_000 + 4 * 64, adapter + 2_000]  # in midtraining before there is an optimizer
    assert lasting(midtrain__lora={"rank": 64, "targets": ["q_proj"]}, distill__lora="auto") == [2_000, 2_000]
    own = Student(replace(SIZE, rank=8), adapter=77, below="clean")
    assert lasting(own) == [2_000 + 16 * 77] * 2
    in_four_bits = replace(CLEAN, size=replace(SIZE, quantized_bytes=600, unused=100))
    assert lasting(in_four_bits, **ADAPTER) == [600 - 200 + 16 * 64] * 2


def first(student: Student, machine: Machine = ROOMY, **changes: Any) -> Held:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return next(held(changed(PRESET, ADAPTER | named), student, machine, STAGES, "clean"))


def test_the_clean_model_is_held_where_no_student_on_it_stands_in_for_it() -> None:
    """While it answers the chat share or is compared with, in any number of processes."""
    chat = CHAT
    unforeseen: dict[str, Any] = {"midtrain__forecast_every": 0}
    on_clean = Student(replace(SIZE, rank=8), adapter=50, below="clean")
    on_other = replace(on_clean, below="mixed")
    assert not any(first(one, **chat).beside_clean for one in (CLEAN, on_clean))
    assert not first(on_clean).beside_clean and first(on_other).beside_clean
    assert first(on_other, **chat, **unforeseen).beside_clean
    assert not first(on_other, **unforeseen).beside_clean
    beside = first(on_other)
    assert (
        beside.least == 4_000 + 4 * 50 and beside.named == "the weights of the student and of the clean model"
    )
    without = "a mix without chat (midtrain.mix), with midtrain.forecast_every: 0"
    assert ways_out(beside, MODEL, ROOMY, 2) == [without, "model.quantize: nf4", "a smaller model"]


def test_the_whole_student_is_held_before_it_is_sharded() -> None:
    """Itself and its adapter, also while it answers the chat share: no second model beside it."""
    eight = Machine(1e9, parts=8)
    assert lasting(machine=eight, **ADAPTER) == [2_000 + 4 * 64] * 2
    chat = first(CLEAN, eight, **CHAT)
    assert chat.least == 2_000 + 4 * 64 and chat.named == "the student's weights before they are sharded"
    sharded = MODEL.model_copy(update={"shard": True})
    assert ways_out(chat, sharded, Machine(1e3, whole_bytes=1.5e3, parts=8), 8) == ["a smaller model"]


def test_an_adapter_on_midtrained_weights_is_held_beside_the_clean_model() -> None:
    assert lasting(distill__lora={"rank": 64}) == [18_000, 2_000 + 16 * 64 + 2_000]


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, [256, 296]),
        ({"midtrain.microbatch_tokens": 64, "distill.max_new_tokens": 500}, [64, 700]),
        ({"distill.longest_row": 150}, [256, 150]),
    ],
)
def test_the_shortest_pass_holds_an_answer(changes: dict[str, Any], tokens: list[int]) -> None:
    found = held(changed(PRESET, WHOLE | changes), CLEAN, ROOMY, STAGES, "clean")
    assert [one.shortest_pass for one in found] == [3 * count for count in tokens]


def test_an_8b_model_on_24_gb_may_run_out_and_one_of_70b_cannot_be_trained() -> None:
    """8.19 billion weights of 2 bytes, and 16 of each of 349 million in an adapter of rank 128: 22 GB."""
    adapters = {"midtrain.lora": "auto", "distill.lora": "auto", "distill.max_new_tokens": 2048}
    settings = changed(PRESET, adapters)
    machine = Machine(0.92 * 22.5 * 2**30, whole_bytes=22.5 * 2**30)

    def last(name: str) -> Held:
        size = model_size(read_size(name), ModelConfig(path="some", gradient_checkpointing=True))
        return list(held(settings, Student(size, 0, "clean"), machine, STAGES, "clean"))[-1]

    eight, large = last("8B"), last("70B")
    assert machine.usable_bytes < eight.least < machine.whole_bytes < large.lasting
    lower = "a lower rank (lora: {rank: 64} in midtrain and distill)"
    assert ways_out(eight, MODEL, machine, 1) == [lower, "model.quantize: nf4", "a smaller model"]
    assert ways_out(large, MODEL, machine, 1) == ["a smaller model"]  # 39 GB in 4 bits too
    roomier = Machine(0.92e11, whole_bytes=1e11)
    assert ways_out(large, MODEL, roomier, 1) == ["model.quantize: nf4", "a smaller model"]


def test_only_what_applies_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(90.0, whole_bytes=100.0)
    small = Held("distill", 90.0, 160.0, 0.0, lora=LoraConfig(rank=32), rank_bytes=1.0)
    whole = Held("distill", 20.0, 200.0, 0.0, lora=None, taught=True, may_offload=True)
    shard, last = "model.shard: true with more processes", "a smaller model"
    adapter = "an adapter (distill.lora: {rank: 128})"
    assert ways_out(whole, MODEL, machine, 2) == [adapter, "distill.offload_teacher: true", shard, last]
    assert ways_out(whole, MODEL, machine, 0) == [adapter, last]
    assert ways_out(small, MODEL, machine, 1) == ["model.quantize: nf4", last]
    own = replace(small, lora=LoraConfig(), fresh=False)  # its rank cannot be lowered
    assert ways_out(own, MODEL, machine, 1) == ["model.quantize: nf4", last]
    quantized = MODEL.model_copy(update={"quantize": "nf4"})
    assert ways_out(small, quantized, machine, 2) == [last]
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ways_out(small, quantized, machine, 0) == ["fewer processes", last]


def test_the_highest_rank_that_fits_is_advised() -> None:
    whole = Held("distill", 20.0, 200.0, 10.0, lora=None, rank_bytes=2.0, four_bits=1.0)
    lower = replace(whole, lora=LoraConfig(rank=128), lasting=20.0 + 2 * 128)
    for usable, rank in ((150.0, 32), (94.0, 32), (93.0, 16), (46.0, 8)):
        machine = Machine(usable, whole_bytes=250.0)
        assert ways_out(whole, MODEL, machine, 1)[0] == f"an adapter (distill.lora: {{rank: {rank}}})"
        assert ways_out(lower, MODEL, machine, 1)[0].startswith(f"a lower rank (lora: {{rank: {rank}}} ")
    assert ways_out(whole, MODEL, Machine(45.0, whole_bytes=250.0), 1) == ["a smaller model"]


def test_four_bits_are_advised_where_they_make_it_fit() -> None:
    """Routed experts stay as they are, so that hardly a mixture of experts is smaller so."""
    one = Held("midtrain", 200.0, 210.0, 10.0, lora=LoraConfig(rank=8), four_bits=0.3)
    machine = Machine(90.0, whole_bytes=100.0)
    assert ways_out(one, MODEL, machine, 1) == ["model.quantize: nf4", "a smaller model"]
    assert ways_out(replace(one, four_bits=0.9), MODEL, machine, 1) == ["a smaller model"]
    size = read_size("0.6B")
    assert model_size(size, MODEL).four_bits == size.weight_bytes(quantize=True)


def test_processes_on_a_cpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight on two machines: of this one's four each may take a quarter."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(fitting, "main_memory", lambda: 800.0)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = fitting.this_machine(MODEL)
    assert found.usable_bytes == pytest.approx(140)
    assert found.whole_bytes == 200


def test_what_the_memory_cannot_hold_is_refused_before_the_first_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-12)
        monkeypatch.setattr(fitting, "this_machine", lambda model: Machine(900.0, 4, whole_bytes=1000.0))
        for build in (*trainings(ws, docs), lambda: pilot_job(ws, docs, 50.0)):
            with pytest.raises(
                InputError,
                match=r"^(midtrain|distill): weights.* take .* its memory is .*: take .*a smaller model$",
            ):
                build()
        assert queries.runs(ws.tracker.db) == []


@pytest.fixture
def said_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Build a cycle's job on a machine, and return the lines about its memory."""
    docs = make_docs(tmp_path)

    def lines(machine: Machine, how: str | None = None) -> list[str]:
        said: list[str] = []
        with make_home(tmp_path) as ws:
            settle(ws, margin=0.4, learning_rate=1e-12)
            monkeypatch.setattr(ws.progress, "say", said.append)
            monkeypatch.setattr(fitting, "this_machine", lambda model: machine)
            cycle_job(ws, docs, recover_with=how)
        return [line for line in said if line.startswith("  memory  ")]

    return lines


@pytest.mark.parametrize(("how", "stages"), [(None, ["midtrain", "distill"]), ("auto", ["midtrain"])])
def test_what_may_run_out_of_memory_is_said(
    said_of_memory: Callable[..., list[str]], how: str | None, stages: list[str]
) -> None:
    """Of a choice among ways back, those that do not fit are left out."""
    found = said_of_memory(Machine(900.0, 4), how)
    assert [line.split()[1] for line in found] == stages
    assert all(" may run out of it: " in line and line.endswith("a smaller model") for line in found)
    assert ("shorter answers (distill.max_new_tokens)" in found[-1]) is (how is None)


def test_nothing_is_said_where_there_is_room(said_of_memory: Callable[..., list[str]]) -> None:
    assert said_of_memory(Machine(1e12, 4, whole_bytes=2e12)) == []
