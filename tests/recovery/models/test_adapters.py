"""Which weights an adapter trains, by family; an adapter of one rank is not taken for another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recovery.engines.vllm_lora import lora_targets
from recovery.errors import InputError
from recovery.inspection.weight_parts import parts
from recovery.models import adapters, loading
from recovery.models.adapters import LoraSpec, add_lora, linear_targets, require_rank
from recovery.models.loading import ModelSpec
from recovery.models.merging import merge_weights
from recovery.models.saving import save
from tests.support import families, tiny

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
STACKED = {"gate_up_proj", "down_proj"}


def last(names: tuple[str, ...]) -> set[str]:
    return {name.removesuffix(".weight").rpartition(".")[2] for name in names}


@pytest.mark.parametrize(
    ("family", "modules", "parameters"),
    [
        ("Llama", ATTENTION | MLP, set()),
        ("GPT-OSS", ATTENTION, STACKED),
        ("Granite MoE", ATTENTION, STACKED),
        ("Qwen 2 MoE", ATTENTION | MLP, STACKED),
        ("Jamba", ATTENTION | MLP | {"in_proj"}, STACKED),
        ("Mamba 2", {"in_proj"}, set()),
        ("Qwen 3 VL", ATTENTION | MLP, set()),
    ],
)
def test_every_matrix_of_the_decoder_and_no_gate(
    family: str, modules: set[str], parameters: set[str]
) -> None:
    model = families.model(families.named(family))
    targets = linear_targets(model)
    assert last(targets.modules) == modules
    assert last(targets.parameters) == parameters
    assert not any("visual" in name or "router" in name for name in targets.modules + targets.parameters)


def test_dense_and_shared_experts_are_trained_beside_routed_ones() -> None:
    model = families.model(families.named("DeepSeek V3"))
    names = linear_targets(model).parameters
    for wanted in (
        "layers.0.mlp.gate_proj",
        "layers.1.mlp.shared_experts.up_proj",
        "layers.1.mlp.experts.down",
    ):
        assert any(wanted in name for name in names), wanted


@pytest.mark.parametrize("family", ["Qwen 3 MoE", "DeepSeek V3", "GPT-OSS", "Qwen 3 VL", "GPT-2"])
def test_an_adapter_of_each_structure_is_saved_and_merged(tmp_path: Path, family: str) -> None:
    base = families.save(families.named(family), tmp_path / "base")
    chat = loading.load(ModelSpec(str(base), lora=LoraSpec(rank=2, alpha=3)))
    for parameter in chat.model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.1)
    save(chat, tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    merge_weights(tmp_path / "adapter", base, tmp_path / "merged", 0.0)
    tokens = torch.arange(1, 9)[None]
    with torch.inference_mode():
        wanted = chat.model(tokens, use_cache=False).logits
        merged = loading.load(ModelSpec(str(tmp_path / "merged"))).model(tokens, use_cache=False).logits
        plain = loading.load(ModelSpec(str(base))).model(tokens, use_cache=False).logits
    torch.testing.assert_close(merged, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(plain, wanted, atol=1e-2)
    names = [load_file(path / "model.safetensors").keys() for path in (base, tmp_path / "merged")]
    assert names[0] == names[1]


def test_experts_take_no_dropout(tmp_path: Path) -> None:
    chat = loading.load(ModelSpec(str(families.save(families.named("GPT-OSS"), tmp_path / "m"))))
    with pytest.raises(InputError, match=r"lora\.dropout does not work on experts"):
        add_lora(chat, LoraSpec(rank=2, dropout=0.1))


def test_what_is_trained_in_one_line() -> None:
    chat = tiny.chat_model()
    assert adapters.describe_trained(chat.model).startswith("all weights: ")
    frozen = tiny.chat_model()
    loading.freeze_embeddings(frozen)
    count = sum(one.numel() for one in frozen.model.parameters() if one.requires_grad)
    assert adapters.describe_trained(frozen.model) == f"all weights but embeddings and head: {count:,}"
    add_lora(chat, LoraSpec(rank=2))
    count = sum(one.numel() for one in chat.model.parameters() if one.requires_grad)
    said = adapters.describe_trained(chat.model)
    assert said.startswith(f"an adapter of {count:,} weights on down_proj, gate_proj, k_proj, ")


@pytest.fixture
def with_code(tmp_path: Path) -> Path:
    return tiny.save_with_code(tmp_path / "with-code")


def test_an_adapter_on_a_model_with_code_of_its_own_is_merged(with_code: Path, tmp_path: Path) -> None:
    spec = ModelSpec(str(with_code), lora=LoraSpec(rank=2), trust_remote_code=True)
    save(loading.load(spec), tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    models = tmp_path / "adapter", with_code
    with pytest.raises(InputError, match="then set trust_remote_code"):
        merge_weights(*models, tmp_path / "merged", 0.0)
    merge_weights(*models, tmp_path / "merged", 0.0, trust_remote_code=True)
    one, other = (load_file(path / "model.safetensors") for path in (with_code, tmp_path / "merged"))
    assert all(torch.equal(one[name], other[name]) for name in one)  # a fresh adapter adds nothing
    (embeddings, *_) = parts(*models, 1, trust_remote_code=True)
    assert embeddings.moved == 0


def test_an_engine_finds_the_layers_of_a_model_with_code_of_its_own(with_code: Path) -> None:
    with pytest.raises(InputError, match="then set trust_remote_code"):
        lora_targets(with_code)
    assert set(lora_targets(with_code, trust_remote_code=True)) == ATTENTION | MLP


@pytest.mark.parametrize("rank", [0, 4, 64])
def test_a_student_with_an_adapter_keeps_its_rank(tmp_path: Path, rank: int) -> None:
    chat: Any = loading.load(ModelSpec(str(tiny.save(tmp_path / "m")), lora=LoraSpec(rank=8)))
    save(chat, tmp_path / "adapter")
    require_rank(tmp_path / "adapter", 8)
    require_rank(tmp_path / "m", rank)
    with pytest.raises(InputError, match="the student is an adapter of rank 8") as caught:
        require_rank(tmp_path / "adapter", rank)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", ['{"peft_type": "IA3"}', '{"r": null}', "no JSON"])
def test_an_adapter_that_names_no_rank_is_refused_by_its_file(tmp_path: Path, settings: str) -> None:
    (tmp_path / "adapter_config.json").write_text(settings)
    with pytest.raises(InputError, match=r"adapter_config\.json"):
        adapters.adapter_rank(tmp_path)
