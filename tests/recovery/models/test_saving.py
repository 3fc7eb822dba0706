"""What is saved is what was in memory: names, shapes and bytes are read back before anyone relies on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from recovery.errors import RecoverError
from recovery.models import saving
from recovery.models.adapters import LoraSpec
from recovery.models.chat_model import ChatModel
from recovery.models.saving import checkpoint_tensors, save
from recovery.storage.checkpoints import CheckpointStore
from tests.support import families, tiny
from tests.support.tiny import load

DROPPED = "model.layers.1.mlp.up_proj.weight"


def spoil(monkeypatch: pytest.MonkeyPatch, chat: ChatModel, change: Any) -> None:
    """Let the model's own `save_pretrained` write something else than it holds."""
    save = type(chat.model).save_pretrained

    def spoiled(self: Any, directory: Any, **kwargs: Any) -> None:
        save(self, directory, **kwargs)
        path = next(Path(directory).glob("*.safetensors"))
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})

    monkeypatch.setattr(type(chat.model), "save_pretrained", spoiled)


def renamed(tensors: dict[str, torch.Tensor]) -> None:
    tensors["down_proj$"] = tensors.pop(DROPPED)


def rounded(tensors: dict[str, torch.Tensor]) -> None:
    tensors[DROPPED] = tensors[DROPPED].bfloat16().float()


@pytest.mark.parametrize("change", [lambda tensors: tensors.pop(DROPPED), renamed, rounded])
def test_a_save_that_loses_weights_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    chat, store = load(tiny.save(tmp_path / "model")), CheckpointStore(tmp_path / "store")
    spoil(monkeypatch, chat, change)
    with pytest.raises(RecoverError, match=r"saved weights are not those in memory: .*nothing was published"):
        store.publish(lambda directory: save(chat, directory), parent=None)
    assert not list(store.root.glob("*/manifest.json"))


def test_an_adapter_that_is_saved_in_part_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = load(tiny.save(tmp_path / "model"), lora=LoraSpec(rank=2))
    spoil(monkeypatch, chat, lambda tensors: tensors.pop(next(iter(tensors))))
    with pytest.raises(RecoverError, match=r"lora_A\.weight is missing"):
        save(chat, tmp_path / "adapter")


def test_a_name_that_no_loader_knows_is_caught_though_memory_and_file_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides take their names from transformers' conversion; only loading shows that it went wrong."""
    chat = load(tiny.save(tmp_path / "model"))
    spoil(monkeypatch, chat, renamed)
    whole = checkpoint_tensors(chat.model)
    renamed(whole)
    monkeypatch.setattr(saving, "checkpoint_tensors", lambda *_: whole)
    with pytest.raises(RecoverError, match=f"{DROPPED} does not load again"):
        save(chat, tmp_path / "saved")


def test_a_head_that_left_its_embeddings_is_not_saved_as_tied(tmp_path: Path) -> None:
    chat = load(tiny.save(tmp_path / "model"))
    chat.model.lm_head.weight = torch.nn.Parameter(chat.model.lm_head.weight.detach() + 1)
    with pytest.raises(RecoverError, match=r"lm_head.weight (is declared a copy|is in the file only)"):
        save(chat, tmp_path / "saved")


def equal(one: ChatModel, other: ChatModel) -> None:
    theirs = other.model.state_dict()
    assert theirs.keys() == one.model.state_dict().keys()
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


def quantised(directory: Path) -> Path:
    """A GPT-OSS whose experts are stored in MXFP4, as published."""
    families.save(families.named("GPT-OSS"), directory)
    tensors = load_file(directory / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("experts.down_proj", "experts.gate_up_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        shape = (experts, outputs, inputs // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.randint(120, 126, shape, dtype=torch.uint8)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_experts_that_were_stored_in_mxfp4_are_saved_unpacked(tmp_path: Path) -> None:
    chat = load(quantised(tmp_path / "model"))
    save(chat, tmp_path / "saved")
    equal(chat, load(tmp_path / "saved"))


def test_a_vision_language_model_keeps_its_vision(tmp_path: Path) -> None:
    source = families.save(families.named("Qwen 3.5 VL"), tmp_path / "model")
    chat = load(source)
    trained = [name for name, one in chat.model.named_parameters() if one.requires_grad]
    assert trained and not any("visual" in name for name in trained)
    save(chat, tmp_path / "saved")
    tensors, again = (load_file(path / "model.safetensors") for path in (source, tmp_path / "saved"))
    assert any("visual" in name for name in tensors)
    assert tensors.keys() == again.keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in tensors.items())


def test_what_reads_images_goes_with_every_checkpoint(tmp_path: Path) -> None:
    source = families.save(families.named("Qwen 3.5 VL"), tmp_path / "model")
    names = ("preprocessor_config", "video_preprocessor_config", "processor_config", "chat_template")
    files = {f"{name}.json": json.dumps({"of": name}) for name in names}
    for name, content in files.items():
        (source / name).write_text(content)
    for month in ("first", "second"):  # each begins with the model of the one before
        chat, source = load(source), tmp_path / month
        save(chat, source)
        assert {name: (source / name).read_text() for name in files} == files


def test_a_processor_s_template_is_left_out_beside_templates_by_name(tmp_path: Path) -> None:
    """transformers loads no processor from a folder with both."""
    source = tiny.save(tmp_path / "model")
    named = {"default": tiny.TEMPLATE, "rag": f"{{# rag #}}{tiny.TEMPLATE}"}
    tiny.tokenizer(chat_template=named).save_pretrained(source)
    for name in ("preprocessor_config.json", "chat_template.json"):
        (source / name).write_text("{}")
    save(load(source), tmp_path / "saved")
    assert load(tmp_path / "saved").tokenizer.chat_template == named
    assert (tmp_path / "saved" / "preprocessor_config.json").is_file()
    assert not (tmp_path / "saved" / "chat_template.json").exists()
