"""Students in 4 bits: the base stays as it was loaded, an adapter on it is trained, saved and merged."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.errors import InputError, OutOfMemory
from recovery.inspection.supported import sampling_problem
from recovery.models import loading
from recovery.models.adapters import LoraSpec, adapter_off, linear_targets
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.models.merging import merge_weights, mix_in
from recovery.models.quantization import is_quantized, require_trainable
from recovery.models.saving import save
from recovery.models.size import size_of
from tests.support import families
from tests.support.family_table import TOKENS, train

WIDE = replace(
    families.named("Llama"), settings={"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
)
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="needs the extra qlora"
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.save(WIDE, tmp_path_factory.mktemp("base") / "model")


def student(base: Path) -> ChatModel:
    return loading.load(ModelSpec(str(base), lora=LoraSpec(rank=4), quantize="nf4"))


def held(chat: ChatModel) -> dict[str, torch.Tensor]:
    """The weights of the base, as they lie in memory."""
    named: Any = chat.model.named_parameters()
    return {name: one.detach().clone() for name, one in named if ".lora_" not in name}


@torch.no_grad()
def logits(chat: ChatModel) -> torch.Tensor:
    model: Any = chat.model
    return model(TOKENS, use_cache=False).logits.clone()


def test_without_the_package_one_line_says_what_to_install(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"needs bitsandbytes; in the checkout: .*python\S* -m pip .*'\.\[qlora\]'"
    ):
        loading.load(ModelSpec(str(base), quantize="nf4"))


@pytest.mark.parametrize(
    ("quantize", "said"),
    [
        (None, r"use bfloat16, 4 bits \(model\.quantize: nf4 in recover\.yaml\) or a"),
        ("nf4", "bfloat16 or a"),
    ],
)
def test_a_model_that_does_not_fit_is_said_to_need_4_bits(
    base: Path, monkeypatch: pytest.MonkeyPatch, quantize: Any, said: str
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loading, "_load_full", full)
    with pytest.raises(OutOfMemory, match=said):
        loading.load(ModelSpec(str(base), quantize=quantize))


@needs_bitsandbytes
def test_the_adapter_is_trained_and_its_base_is_not(base: Path) -> None:
    chat = student(base)
    assert is_quantized(chat.model)
    require_trainable(chat)
    before, whole = held(chat), logits(chat)
    for _ in range(2):
        train(chat, learning_rate=1.0)
    assert all(torch.equal(before[name], one) for name, one in held(chat).items())
    assert not torch.allclose(logits(chat), whole, atol=1e-2)
    with adapter_off(chat):
        torch.testing.assert_close(logits(chat), whole)


@needs_bitsandbytes
def test_reading_between_steps_leaves_the_weights_as_they_are(base: Path) -> None:
    """On some CPUs bitsandbytes repacks them for inference, and rounds them anew for training."""
    chat = student(base)
    before = held(chat)
    assert sampling_problem(chat) is None
    train(chat)
    assert sampling_problem(chat) is None
    assert all(torch.equal(before[name], one) for name, one in held(chat).items())


@needs_bitsandbytes
def test_a_saved_adapter_is_read_back_on_the_4_bit_base(base: Path, tmp_path: Path) -> None:
    chat = student(base)
    for _ in range(2):
        train(chat, learning_rate=1.0)
    save(chat, tmp_path / "adapter")
    again = loading.load(ModelSpec(str(tmp_path / "adapter"), quantize="nf4"))
    torch.testing.assert_close(logits(again), logits(chat), rtol=0, atol=0)


@needs_bitsandbytes
def test_an_adapter_is_merged_into_the_stored_weights(base: Path, tmp_path: Path) -> None:
    chat = student(base)
    for _ in range(2):
        train(chat, learning_rate=1.0)
    save(chat, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge_weights(tmp_path / "adapter", base, tmp_path / "merged", 0.0)
    on_stored = loading.load(ModelSpec(str(tmp_path / "adapter")))
    merged = loading.load(ModelSpec(str(tmp_path / "merged")))
    torch.testing.assert_close(logits(merged), logits(on_stored), rtol=1e-3, atol=1e-3)


@needs_bitsandbytes
def test_whole_weights_in_4_bits_are_neither_trained_nor_saved_nor_mixed(base: Path, tmp_path: Path) -> None:
    chat = loading.load(ModelSpec(str(base), quantize="nf4"))
    with pytest.raises(InputError, match="can't be trained: set lora"):
        require_trainable(chat)
    with pytest.raises(InputError, match=r"saving a model needs the whole weights: remove model\.quantize"):
        save(chat, tmp_path / "saved")
    with pytest.raises(InputError, match="mixing checkpoints in memory needs the whole weights"):
        mix_in(chat, chat, 0.5)


@needs_bitsandbytes
def test_adapters_are_on_the_same_layers_and_the_plan_counts_the_bytes(base: Path) -> None:
    quantized = loading.load(ModelSpec(str(base), dtype="bfloat16", quantize="nf4"))
    whole = loading.load(ModelSpec(str(base), dtype="bfloat16"))
    assert linear_targets(quantized.model) == linear_targets(whole.model)
    weights = {one.data_ptr(): one.nbytes for one in quantized.model.parameters()}
    states = [one.quant_state for one in quantized.model.parameters() if hasattr(one, "quant_state")]
    scales = sum(one.absmax.nbytes + one.state2.absmax.nbytes for one in states)
    assert size_of(quantized.model) == size_of(whole.model)
    planned = size_of(whole.model).weight_bytes(quantize=True)
    assert planned == pytest.approx(sum(weights.values()) + scales, rel=0.01)
