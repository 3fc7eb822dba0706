"""Loading, saving, adapters, the two halves of the forward pass, weight hashes, and what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import errors
from tokenizers import AddedToken
from transformers import AutoModelForCausalLM
from transformers.integrations.mistral import tokenizer as mistral_tokenizer
from transformers.models.auto import tokenization_auto

from recovery.errors import InputError, RecoverError
from recovery.forward.hidden_states import can_pack, decoder_layers, hidden_states, logits_of, unwrap
from recovery.models import gguf, loading
from recovery.models.adapters import LoraSpec, adapter_off, add_lora
from recovery.models.chat_model import ChatModel
from recovery.models.loading import ModelSpec
from recovery.models.saving import save, stored_tensors
from recovery.storage.checkpoints import CheckpointStore
from recovery.storage.weights_hash import weights_sha256
from tests.support import families, tiny
from tests.support.architectures import ARCHITECTURES, TOKENS, architecture
from tests.support.families import Family
from tests.support.tiny import load


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return tiny.save(tmp_path / "model")


def logits(chat: ChatModel) -> torch.Tensor:
    with torch.inference_mode():
        return chat.model(TOKENS).logits


def hold_the_same(one: ChatModel, other: ChatModel) -> bool:
    """Return whether saving both would write the same tensors."""
    mine, theirs = stored_tensors(one.model), stored_tensors(other.model)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def refused(path: Path | str, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        load(path, **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert "http" not in message
    assert str(path) in message
    return message


# Loading and saving


def test_a_model_comes_back_as_it_was_saved(tmp_path: Path, tiny_chat_model: ChatModel) -> None:
    save(tiny_chat_model, tmp_path / "a")
    chat = load(tmp_path / "a", template_args={"enable_thinking": False})
    assert torch.equal(logits(chat), logits(tiny_chat_model))
    assert (chat.stop_ids, chat.pad_id, chat.device.type) == ((257, 258), 258, "cpu")
    assert chat.template_args == {"enable_thinking": False}
    assert not chat.model.training
    assert chat.directory == tmp_path / "a"
    save(chat, tmp_path / "b")
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert "model.safetensors" in names
    assert "generation_config.json" in names
    assert "chat_template.jinja" in names
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)


@pytest.mark.parametrize(("name", "dtype"), [("auto", torch.float32), ("bfloat16", torch.bfloat16)])
def test_dtype(saved: Path, name: Any, dtype: torch.dtype) -> None:
    assert {parameter.dtype for parameter in load(saved, dtype=name).model.parameters()} == {dtype}


@pytest.mark.parametrize(
    ("eos", "stops"), [(258, (258, 257)), ([256, 257], (256, 257)), (None, (257,)), (999, (257,))]
)
def test_stop_tokens_from_any_form_of_generation_config(
    saved: Path, eos: Any, stops: tuple[int, ...]
) -> None:
    (saved / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    assert load(saved).stop_ids == stops


def test_a_published_config_that_transformers_will_not_save_is_saved(saved: Path, tmp_path: Path) -> None:
    settings = {"eos_token_id": 257, "temperature": 0.6, "top_p": 0.9, "do_sample": False, "min_p": 0.1}
    (saved / "generation_config.json").write_text(json.dumps(settings))
    save(load(saved), tmp_path / "again")
    assert load(tmp_path / "again").stop_ids == (257,)


@pytest.mark.parametrize("eos", [{}, {"x": None}, [[]], [{"a": 1}], [257, None, "x"], "x", 1e308, 2.0, True])
def test_stop_tokens_that_are_no_ids_are_refused(saved: Path, eos: Any) -> None:
    (saved / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    assert "expected token ids" in refused(saved)


@pytest.mark.parametrize("settings", [{"output_scores": True}, {"suppress_tokens": 3}])
def test_a_generation_config_that_could_not_be_saved_is_refused_before_any_work(
    saved: Path, settings: dict[str, Any]
) -> None:
    (saved / "generation_config.json").write_text(json.dumps({"eos_token_id": 257, **settings}))
    assert "can't be used" in refused(saved)


def test_a_sharded_model_is_the_same_model(saved: Path, tmp_path: Path, tiny_chat_model: ChatModel) -> None:
    sharded = tmp_path / "sharded"
    tiny.model().save_pretrained(sharded, max_shard_size="30KB")
    tiny.tokenizer().save_pretrained(sharded)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert torch.equal(logits(load(sharded)), logits(tiny_chat_model))
    assert weights_sha256(sharded) == weights_sha256(saved)


def test_gradient_checkpointing_changes_no_gradient(saved: Path) -> None:
    gradients = []
    for flag in (False, True):
        chat = load(saved, gradient_checkpointing=flag, lora=LoraSpec(rank=2))
        chat.model.train()
        hidden = hidden_states(chat.model, TOKENS)
        logits_of(chat.model, hidden).square().mean().backward()
        gradients.append([p.grad for p in chat.model.parameters() if p.grad is not None])
    assert gradients[0]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_attention_scores_stay_capped(tmp_path: Path) -> None:
    settings = {**families.named("Gemma 2").settings, "attn_logit_softcapping": 0.5}
    saved = families.save(Family("capped", "gemma2", settings), tmp_path)
    found = logits(load(saved))
    with torch.inference_mode():
        capped, uncapped = (
            AutoModelForCausalLM.from_pretrained(saved, attn_implementation=name)(TOKENS).logits
            for name in ("eager", "sdpa")
        )
    assert torch.equal(found, capped)
    assert not torch.allclose(found, uncapped, atol=1e-2)
    assert "sdpa leaves out the cap" in refused(saved, attention="sdpa")


@pytest.mark.parametrize("name", ["GPT-2", "RWKV"])
def test_layers_are_compiled_under_any_name(name: str) -> None:
    model = families.model(families.named(name))
    loading.compile_layers(ChatModel.of(model, tiny.tokenizer(), path=name))
    layers = decoder_layers(model)[1]
    assert len(layers) == 2 and all(layer._compiled_call_impl is not None for layer in layers)


def test_experts_in_a_layer_are_no_layers(tiny_chat_model: ChatModel) -> None:
    first = unwrap(tiny_chat_model.model).model.layers[0]
    first.mlp.experts = torch.nn.ModuleList(torch.nn.Identity() for _ in range(5))
    name, layers = decoder_layers(tiny_chat_model.model)
    assert (name, len(layers)) == ("layers", 2)


def test_a_model_without_a_list_of_layers_is_refused(tiny_chat_model: ChatModel) -> None:
    del unwrap(tiny_chat_model.model).model.layers
    with pytest.raises(InputError, match=r"model\.compile: Qwen3ForCausalLM has no list of layers"):
        loading.compile_layers(tiny_chat_model)


# What goes wrong, in one line


def test_missing_directories(tmp_path: Path) -> None:
    assert "no such model directory" in refused(tmp_path / "nowhere")
    assert "no config.json" in refused(tmp_path)


def test_no_name_is_not_the_current_folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved)
    with pytest.raises(InputError, match="no model is named"):
        load("")
    monkeypatch.chdir(saved.parent)
    Path("model.gguf").touch()
    assert gguf.find(".") == Path("model.gguf") and gguf.find("") is None


def test_no_chat_template(saved: Path) -> None:
    (saved / "chat_template.jinja").unlink()
    assert "no chat template: use the instruct or chat version" in refused(saved)


def test_no_tokenizer(saved: Path) -> None:
    for path in saved.glob("*token*"):
        path.unlink()
    assert "no tokenizer in it: add its tokenizer.json" in refused(saved)


def test_a_broken_config(saved: Path) -> None:
    (saved / "config.json").write_text('{"model_type": "qwen3", ')
    refused(saved)
    (saved / "config.json").write_text('{"model_type": "of-tomorrow"}')
    assert "of-tomorrow" in refused(saved)


def test_not_a_causal_language_model(saved: Path) -> None:
    (saved / "config.json").write_text('{"model_type": "t5"}')
    assert "this model can't be used: Unrecognized configuration class" in refused(saved)


def test_weights_that_are_cut_off_or_garbage(saved: Path) -> None:
    weights = saved / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    assert "model.safetensors: cut off" in refused(saved)
    weights.write_bytes(b"version https://git-lfs")
    assert "model.safetensors" in refused(saved)
    weights.unlink()
    assert "no weights: give a model saved as safetensors" in refused(saved)


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("replaced", [as_pipe, as_socket, as_device, Path.mkdir])
@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "config.json", "generation_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    ],
)
def test_what_is_no_regular_file_is_refused_unread(
    saved: Path, monkeypatch: pytest.MonkeyPatch, name: str, replaced: Callable[[Path], None]
) -> None:
    (saved / name).unlink()
    monkeypatch.chdir(saved)  # the path of a socket is short
    replaced(Path(name))
    assert "not a regular file" in refused(saved) or name == "config.json"
    with pytest.raises(InputError):
        loading.load_encoder(ModelSpec(str(saved)))


def test_a_shard_that_is_a_pipe_is_refused_unread(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "model", max_shard_size="30KB")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    index = tmp_path / "model" / "model.safetensors.index.json"
    first, *_ = json.loads(index.read_text())["weight_map"].values()
    os.mkfifo(tmp_path / "pipe")
    index.write_text(index.read_text().replace(first, "../pipe"))
    assert "not a regular file" in refused(tmp_path / "model")
    index.write_text('{"weight_map": {"a": null}}')
    assert "no weight_map" in refused(tmp_path / "model")


def test_a_header_of_any_depth_is_refused(saved: Path) -> None:
    for depth in (900, 990, 100_000):
        header = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        (saved / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
        assert "not a readable safetensors file" in refused(saved)


def test_pickled_weights_are_never_read(saved: Path) -> None:
    (saved / "model.safetensors").rename(saved / "pytorch_model.bin")
    assert "only pytorch_model.bin, which can hold code" in refused(saved)


def test_weights_with_a_tensor_missing_or_misshapen(saved: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(saved / "model.safetensors")
    gone = "model.layers.1.mlp.up_proj.weight"
    save_file({n: t for n, t in tensors.items() if n != gone}, saved / "model.safetensors", {"format": "pt"})
    assert f"weights without {gone}: the files are incomplete" in refused(saved)
    save_file({**tensors, gone: torch.zeros(3, 32)}, saved / "model.safetensors", {"format": "pt"})
    refused(saved)


def test_a_shard_missing(tmp_path: Path) -> None:
    tiny.model().save_pretrained(tmp_path / "m", max_shard_size="30KB")
    tiny.tokenizer().save_pretrained(tmp_path / "m")
    next(iter(sorted((tmp_path / "m").glob("model-0*")))).unlink()
    assert "model-00001-of" in refused(tmp_path / "m")


def test_a_tokenizer_of_another_model(saved: Path) -> None:
    tiny.model(vocab_size=100, eos_token_id=2, pad_token_id=0).save_pretrained(saved)
    (saved / "generation_config.json").write_text('{"eos_token_id": 2}')
    assert "its tokenizer gives id 257, its weights have 100: not a pair" in refused(saved)


def test_an_id_beyond_the_weights_counts_where_a_text_becomes_it(saved: Path) -> None:
    """Gemma 3's text models have no row for the token of an image, which their tokenizer knows."""
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens([AddedToken("<image_soft_token>", special=True)], special_tokens=True)
    tokenizer.save_pretrained(saved)
    chat = load(saved)
    assert chat.largest_id == 257
    assert max(chat.document_start("An <image_soft_token>.")) < 256
    tokenizer.add_tokens(["Oslo"])
    tokenizer.save_pretrained(saved)
    assert "its tokenizer gives id 260, its weights have 259: not a pair" in refused(saved)


def test_a_mistral_tokenizer_keeps_its_template_where_vllm_is_installed(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM brings mistral-common, with which transformers took tekken.json, and no template beside it."""
    (saved / "tekken.json").write_text("{}")
    (saved / "config.json").write_text(json.dumps({"model_type": "mistral"}))
    monkeypatch.setitem(tokenization_auto.TOKENIZER_MAPPING_NAMES, "mistral", "MistralCommonBackend")
    monkeypatch.setattr(mistral_tokenizer, "is_mistral_common_available", lambda: True)
    encoder = loading.load_encoder(ModelSpec(str(saved)))
    assert encoder.tokenizer.chat_template == tiny.TEMPLATE
    assert "mistral_format" not in encoder.tokenizer.init_kwargs


def test_code_that_comes_with_a_model_is_not_run(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (saved / "mine.py").write_text("print('ran')\nraise SystemExit")
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (saved / "config.json").write_text(json.dumps(config))
    said = refused(saved)
    assert "it brings its own code: read it, then set trust_remote_code in recover.yaml" in said
    assert said.endswith("`recover init --home DIR --trust-remote-code`")
    assert "ran" not in capsys.readouterr().out


def response(status: int) -> Any:
    """The hub client's own response class, whichever HTTP library it is built on."""
    kind: Any = getattr(errors, "Response")  # noqa: B009 - imported there under whichever library is used
    web = sys.modules[kind.__module__.partition(".")[0]]
    return kind(status, request=web.Request("GET", "https://example.org"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.GatedRepoError("gated", response=response(403)), "this model is gated: accept its licence"),
        (errors.RepositoryNotFoundError("gone", response=response(404)), "no such model on the hub"),
        (errors.RevisionNotFoundError("gone", response=response(404)), "no such revision"),
        (errors.HFValidationError("bad"), "neither a directory nor a hub id"),
        (errors.LocalEntryNotFoundError("offline"), "the hub can't be reached: go online once"),
        (errors.OfflineModeIsEnabled("offline"), "the hub can't be reached"),
        (
            errors.LocalEntryNotFoundError("Got: ConnectError: [Errno -2] Name or service not known"),
            "some-owner/some-model: no directory here, not in the local cache, and the hub can't be reached: "
            "go online once, or give a model's directory (Name or service not known)",
        ),
        (
            ConnectionError("no route\nto it"),
            "the hub can't be reached: go online once, or give a model's directory (no route)",
        ),
        (
            errors.HfHubHTTPError("Invalid credentials", response=response(401)),
            "the hub refuses your token, which may have expired",
        ),
        (PermissionError(13, "Permission denied", "/cache/hub"), "/cache/hub may not be read and written: "),
    ],
)
def test_what_the_hub_says(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert message in refused("some-owner/some-model")


def test_a_hub_model_is_pinned_to_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = tiny.save(tmp_path / "0123abc")
    asked: list[Any] = []

    def download(*args: object, **options: object) -> str:
        asked.append((args, options))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    chat = load("some-owner/some-model", revision="main", lora=LoraSpec(rank=2))
    assert (chat.path, chat.revision, chat.directory) == ("some-owner/some-model", "0123abc", snapshot)
    assert asked[0][1]["revision"] == "main"
    save(chat, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("some-owner/some-model", "0123abc")
    load(tmp_path / "adapter")
    assert asked[-1][1]["revision"] == "0123abc"


def test_a_repository_without_a_config_is_said_to_hold_gguf_files_perhaps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a repository of GGUF files only texts are downloaded."""
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    said = refused("some-owner/some-GGUF")
    assert said.startswith("some-owner/some-GGUF: no config.json in this repository: ")
    assert "`hf download some-owner/some-GGUF FILE.gguf`" in said


def test_a_full_disk_while_downloading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(RecoverError, match="the disk is full") as caught:
        load("some-owner/some-model")
    assert caught.value.exit_code == 1


# Adapters


def disturb(chat: ChatModel) -> None:
    """A few steps' worth of change: fresh adapters start as no change at all."""
    torch.manual_seed(1)
    for parameter in chat.model.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.1)


def test_an_adapter_starts_as_its_base_by_its_seed_and_trains_alone(saved: Path) -> None:
    base, chat = load(saved), load(saved, lora=LoraSpec(rank=2))
    assert torch.equal(logits(chat), logits(base))
    trained = [name for name, parameter in chat.model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    assert not any("lm_head" in name for name in trained)
    state = torch.get_rng_state()
    assert hold_the_same(load(saved, lora=LoraSpec(rank=2)), chat)
    assert not hold_the_same(load(saved, lora=LoraSpec(rank=2, seed=1)), chat)
    assert torch.equal(state, torch.get_rng_state())


def test_adapter_off_is_the_base_exactly_and_restores_what_was_trainable(saved: Path) -> None:
    base, chat = load(saved), load(saved, lora=LoraSpec(rank=2))
    disturb(chat)
    changed, before = logits(chat), [p.requires_grad for p in chat.model.parameters()]
    with adapter_off(chat):
        assert torch.equal(logits(chat), logits(base))
        hidden = hidden_states(chat.model, TOKENS)
        assert torch.equal(logits_of(chat.model, hidden), logits(base))
    assert not torch.equal(changed, logits(base))
    assert torch.equal(logits(chat), changed)
    assert [p.requires_grad for p in chat.model.parameters()] == before
    chat.model.requires_grad_(False)
    with adapter_off(chat):
        pass
    assert not any(p.requires_grad for p in chat.model.parameters())
    with pytest.raises(InputError, match="no adapter to switch off"), adapter_off(base):
        pass


def test_an_adapter_checkpoint_holds_the_adapter_alone_and_finds_its_base(
    tmp_path: Path, saved: Path
) -> None:
    store = CheckpointStore(tmp_path / "store")
    clean = store.reference(saved)
    chat = load(clean.path, lora=LoraSpec(rank=2))
    disturb(chat)
    made = store.publish(lambda d: save(chat, d), parent=clean.id, base=clean.id)
    names = {path.name for path in made.path.iterdir()}
    assert "adapter_model.safetensors" in names
    assert not {"model.safetensors", "config.json", "README.md"} & names
    assert hold_the_same(load(made.path), chat)

    config = made.path / "adapter_config.json"  # the manifest decides, not the path written by peft
    config.write_text(config.read_text().replace(str(saved), "/elsewhere"))
    again = load(made.path)
    assert torch.equal(logits(again), logits(chat))
    assert any(parameter.requires_grad for parameter in again.model.parameters())
    with adapter_off(again):
        assert torch.equal(logits(again), logits(load(saved)))
    with pytest.raises(InputError, match="has an adapter already"):
        add_lora(again, LoraSpec())


def test_a_saved_adapter_is_the_same_bytes_each_time(tmp_path: Path, saved: Path) -> None:
    chat = load(saved, lora=LoraSpec(rank=2))
    for name in ("a", "b"):
        save(chat, tmp_path / name)
    names = [path.name for path in (tmp_path / "a").iterdir()]
    assert all((tmp_path / "a" / n).read_bytes() == (tmp_path / "b" / n).read_bytes() for n in names)
    targets = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
def test_broken_adapters(tmp_path: Path, saved: Path) -> None:
    save(load(saved, lora=LoraSpec(rank=2)), tmp_path / "a")
    weights = tmp_path / "a" / "adapter_model.safetensors"
    shutil.copytree(tmp_path / "a", tmp_path / "other")
    save(load(saved, lora=LoraSpec(rank=2, targets=("q_proj",))), tmp_path / "q")
    shutil.copy(tmp_path / "q" / weights.name, tmp_path / "other")
    assert "wrong base or damaged" in refused(tmp_path / "other")
    weights.write_bytes(weights.read_bytes()[:-8])
    assert "cut off" in refused(tmp_path / "a")
    weights.unlink()
    assert "without adapter_model.safetensors" in refused(tmp_path / "a")
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    refused(tmp_path / "a")
    shutil.rmtree(saved)
    with pytest.raises(InputError, match="no such model directory"):
        load(tmp_path / "q")


@pytest.mark.parametrize("settings", [{"rank": 0}, {"dropout": 1.0}])
def test_impossible_adapters(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="must be >= 1"):
        LoraSpec(**settings)


def test_unknown_target_modules(saved: Path) -> None:
    assert "nonsense" in refused(saved, lora=LoraSpec(targets=("nonsense",)))


# Hidden states and head


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.inference_mode()
def test_the_head_on_the_hidden_states_is_the_model(name: str) -> None:
    model = architecture(name)
    expected = model(TOKENS).logits
    alone = hidden_states(model, TOKENS)
    torch.testing.assert_close(logits_of(model, alone), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(logits_of(model, alone[1, 2:3]), expected[1, 2:3], rtol=1e-5, atol=1e-5)

    padding = torch.zeros(2, 3, dtype=torch.long)
    real, padded = torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 3, dtype=torch.bool)
    right = hidden_states(model, torch.cat([TOKENS, padding], 1), torch.cat([real, padded], 1))
    left = hidden_states(model, torch.cat([padding, TOKENS], 1), torch.cat([padded, real], 1))
    torch.testing.assert_close(right[:, :5], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(left[:, 3:], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_packed_sequences_do_not_see_each_other(name: str) -> None:
    model = architecture(name)
    assert can_pack(model) == (name != "bloom")
    row = torch.cat([TOKENS.view(1, -1), torch.zeros(1, 2, dtype=torch.long)], 1)
    attention, positions = torch.arange(12)[None] < 10, torch.tensor([[*range(5), *range(5), 5, 6]])
    if name == "bloom":
        with pytest.raises(InputError, match="can't be packed"):
            hidden_states(model, row, attention, positions)
        return
    packed = hidden_states(model, row, attention, positions)[0, :10].view(2, 5, -1)
    torch.testing.assert_close(packed, hidden_states(model, TOKENS), rtol=1e-4, atol=1e-4)


def test_a_head_that_is_not_understood_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "recovery.models.loading.logits_of", lambda model, hidden: 2 * unwrap(model).lm_head(hidden)
    )
    with pytest.raises(RecoverError, match="its head does more than a matrix product"):
        load(saved)


# Hashes


def test_a_hash_is_of_names_shapes_types_and_bytes_in_any_order(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    one, two = torch.arange(6.0).view(2, 3), torch.arange(4, dtype=torch.int64)
    sets = {
        "same": {"a": one, "b": two},
        "order": {"b": two, "a": one},
        "name": {"a": one, "c": two},
        "shape": {"a": one.view(3, 2), "b": two},
        "type": {"a": one, "b": two.double()},
        "bytes": {"a": one + 1, "b": two},
        "swapped": {"a": one, "b": two.flip(0)},
    }
    for name, tensors in sets.items():
        (tmp_path / name).mkdir()
        save_file({k: t.contiguous() for k, t in tensors.items()}, tmp_path / name / "model.safetensors")
    hashes = {name: weights_sha256(tmp_path / name) for name in sets}
    assert hashes["same"] == hashes["order"]
    assert len(set(hashes.values())) == len(sets) - 1


def test_quantised_weights_are_refused_with_what_to_give_instead(saved: Path) -> None:
    config = json.loads((saved / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (saved / "config.json").write_text(json.dumps(config))
    said = refused(saved)
    assert (
        "its weights are quantised (gptq), which can't be trained: give the model that they were made" in said
    )


def test_a_relative_path_that_leads_nowhere_says_where_it_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused("./moved")
    assert f"(expected at {tmp_path / 'moved'})" in said
    assert "name the new place as model.path" in said
