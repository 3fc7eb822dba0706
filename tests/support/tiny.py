"""A tiny random model and a byte tokenizer: real objects of a real architecture, made in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from recovery.models.chat_model import ChatModel

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif %}{%- endif %}"
)


CODE = """from transformers import Qwen3Config, Qwen3ForCausalLM
class C(Qwen3Config):
    model_type = "mine"
class M(Qwen3ForCausalLM):
    config_class = C
"""


def byte_vocabulary() -> dict[str, int]:
    """GPT-2's printable stand-in of every byte -> the byte, so that `list("abc".encode())` are the ids."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(b) if b in printable else chr(256 + hidden.index(b)): b for b in range(256)}


def byte_backend(specials: Sequence[str]) -> Tokenizer:
    """Ids 0-255 are the bytes, then the special tokens in their order."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    backend = Tokenizer(models.BPE(vocab=byte_vocabulary(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    return backend


def tokenizer(**overrides: Any) -> PreTrainedTokenizerFast:
    """Ids 0-255 are the bytes, then <|im_start|>, <|im_end|> (eos), <|endoftext|> (pad); ChatML template."""
    from transformers import PreTrainedTokenizerFast

    backend = byte_backend((IM_START, IM_END, END_OF_TEXT))
    settings: dict[str, Any] = {"eos_token": IM_END, "pad_token": END_OF_TEXT, "chat_template": TEMPLATE}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{**settings, **overrides})


def model(seed: int = 0, **overrides: Any) -> Qwen3ForCausalLM:
    """A random fp32 Qwen3 (2 layers, hidden 32, vocabulary 259) in eval mode; leaves the global RNG alone."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
        "eos_token_id": 257,
        "pad_token_id": 258,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Qwen3ForCausalLM(Qwen3Config(**{**settings, **overrides}))
    made.generation_config = GenerationConfig(eos_token_id=[257, 258], pad_token_id=258)
    return made.eval()


def save(directory: Path | str, seed: int = 0, **overrides: Any) -> Path:
    """A complete checkpoint directory: safetensors, config, generation config, tokenizer and template."""
    model(seed, **overrides).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    return Path(directory)


def load(path: Path | str, **settings: Any) -> ChatModel:
    """Load a checkpoint directory by a `ModelSpec` of these settings."""
    from recovery.models import loading

    return loading.load(loading.ModelSpec(str(path), **settings))


def unprefixed(directory: Path) -> Path:
    """Take the prefix from the names in a checkpoint's file, as in those of GPT-2: saving puts it back."""
    from safetensors.torch import load_file, save_file

    file = directory / "model.safetensors"
    tensors = {name.removeprefix("model."): tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return directory


def save_with_code(directory: Path | str) -> Path:
    """A checkpoint directory whose classes come with it."""
    base = save(directory)
    (base / "mine.py").write_text(CODE)
    config = json.loads((base / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (base / "config.json").write_text(json.dumps(config))
    return base


def chat_model(seed: int = 0, *, template_args: dict[str, Any] | None = None, **overrides: Any) -> ChatModel:
    """The tiny model and tokenizer wrapped as the house passes them around; nothing touches the disk."""
    from recovery.models.chat_model import ChatModel

    return ChatModel.of(model(seed, **overrides), tokenizer(), path="tiny", template_args=template_args)
