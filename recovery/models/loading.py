"""Load any causal language model with a chat template, or an adapter on its base, and check its head.

Models come from a directory or from the hub (downloaded once, pinned to one commit). Only safetensors are
read, and code that ships with a model runs only with `trust_remote_code`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recovery.errors import InputError, OutOfMemory, RecoverError
from recovery.forward import varlen
from recovery.forward.fast_path import fast_path
from recovery.forward.hidden_states import (
    embedding_weights,
    logits_of,
    plain_states,
    require_layers,
    unwrap,
)
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.chat_encoding import ChatEncoder
from recovery.models.chat_model import ChatModel
from recovery.models.device import Dtype, pick_device, pick_dtype
from recovery.models.hub import explained, locate, quiet
from recovery.models.quantization import (
    Quantize,
    quantization_config,
    settle_dequantized,
    settle_quantized,
    unpacking_arguments,
)
from recovery.storage import checkpoints
from recovery.storage.weights_hash import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    read_object,
    tensor_slots,
    weight_files,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Settings of a generation config that transformers saves together with do_sample only.
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
LOADING_OPTIONS = ("is_local", "local_files_only", "mistral_format")  # not to be saved with a tokenizer


@dataclass(frozen=True)
class ModelSpec:
    """The model to load and its loading options. `path` is a model or adapter directory, or a hub id."""

    path: str
    revision: str | None = None
    dtype: Dtype = "auto"
    trust_remote_code: bool = False
    template_args: dict[str, Any] = field(default_factory=dict)
    lora: LoraSpec | None = None
    device: str = "auto"
    attention: str = "auto"  # or a value of attn_implementation in transformers
    gradient_checkpointing: bool = False
    quantize: Quantize | None = None  # hold linear layers in 4 bits: only an adapter can be trained


Loaded = tuple[Any, "PreTrainedTokenizerBase"]


def load(spec: ModelSpec) -> ChatModel:
    """Load a model in eval mode and check its head; every error message is one line."""
    directory, revision = locate(spec.path, spec.revision)
    device = pick_device(spec.device)
    adapter = directory / ADAPTER_CONFIG
    try:
        with quiet():
            load_one = _load_adapter if adapter.is_file() else _load_full
            model, tokenizer = load_one(spec, directory, device)
    except torch.OutOfMemoryError as error:
        fewer_bits = "" if spec.quantize else ", 4 bits (model.quantize: nf4 in recover.yaml)"
        raise OutOfMemory(
            f"{spec.path}: does not fit on {device}: use bfloat16{fewer_bits} or a smaller model"
        ) from error
    chat = ChatModel.of(
        model,
        tokenizer,
        path=spec.path,
        template_args=spec.template_args,
        directory=directory,
        revision=revision,
    )
    _check_tokens(chat)
    _check_head(chat)
    if spec.lora and not adapter.is_file():
        add_lora(chat, spec.lora)
    if spec.gradient_checkpointing:
        unwrap(chat.model).gradient_checkpointing_enable({"use_reentrant": False})
        unwrap(chat.model).enable_input_require_grads()
    return chat


def compile_layers(chat_model: ChatModel) -> None:
    """Compile each layer lazily, for sequences of any length.

    The CPU engine does not use the compiled layers.
    """
    for layer in require_layers(chat_model.model, "model.compile"):
        layer.compile(dynamic=True)


def load_encoder(spec: ModelSpec) -> ChatEncoder:
    """Load only the tokenizer, to count tokens."""
    directory, _ = locate(spec.path, spec.revision)
    with quiet():
        return ChatEncoder(_load_tokenizer(spec, directory), spec.template_args)


def _load_full(spec: ModelSpec, directory: Path, device: torch.device) -> Loaded:
    """Load the tokenizer first, to report a missing chat template before gigabytes are read."""
    tokenizer = _load_tokenizer(spec, directory)
    return _load_weights(spec, directory, device), tokenizer


def _load_tokenizer(spec: ModelSpec, directory: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with explained(spec.path, "tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(
            directory,
            trust_remote_code=spec.trust_remote_code,
            local_files_only=True,
            mistral_format=False,  # where vLLM brings mistral-common: its tokenizer has no chat template
        )
    for name in LOADING_OPTIONS:
        tokenizer.init_kwargs.pop(name, None)
    if not tokenizer("a", add_special_tokens=False)["input_ids"]:
        raise InputError(f"{spec.path}: no tokenizer in it: add its tokenizer.json or tokenizer.model")
    if not tokenizer.chat_template:
        raise InputError(f"{spec.path}: no chat template: use the instruct or chat version of this model")
    return tokenizer


def _load_weights(spec: ModelSpec, directory: Path, device: torch.device) -> PreTrainedModel:
    """Load the weights in one dtype to the device; raise InputError if any weight is missing."""
    _require_safetensors(spec.path, directory)
    dtype = pick_dtype(spec.dtype, device)
    unpacking = unpacking_arguments(spec.path, directory)
    if spec.quantize:
        unpacking = {"quantization_config": quantization_config(spec.path, spec.quantize, dtype)}
    placed = device.type == "cuda" or spec.quantize
    with explained(spec.path, "model"):
        model, report = loader_of(directory).from_pretrained(
            directory,
            dtype=dtype,
            trust_remote_code=spec.trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            attn_implementation=None if spec.attention == "auto" else spec.attention,
            device_map={"": device} if placed else None,
            **unpacking,
        )
    lost = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if lost:
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise InputError(
            f"{spec.path}: weights without {lost[0]}{more}: the files are incomplete, fetch them again"
        )
    _settle_generation_config(spec.path, model)
    settle_dequantized(model, directory)
    settle_architecture(model)
    settle_quantized(model)
    _freeze_unused(model)
    model = model.eval() if placed else model.to(device).eval()
    if device.type == "cpu" and not spec.quantize:
        fast_path().configure(model)
    _settle_attention(spec, model)
    return model


def loader_of(directory: Path) -> Any:
    return loader_for(read_object(directory / "config.json"))


def loader_for(config: Mapping[str, Any]) -> Any:
    """Return the auto class that holds all weights, so that saving keeps a vision tower as well."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if "vision_config" in config else AutoModelForCausalLM


def settle_architecture(model: PreTrainedModel) -> None:
    """Mend what transformers gets wrong for single architectures."""
    if model.get_decoder() is model:  # Llama 4 names a prefix that only its vision-language sibling has
        model.base_model_prefix = "model"
    if getattr(model.config, "rescale_every", 0):  # RWKV divides weights in eval mode, and would save them so
        model.config.rescale_every = 0


def _settle_attention(spec: ModelSpec, model: PreTrainedModel) -> None:
    """Read without padding where no attention was named; eagerly where attention scores are capped (Gemma 2).

    transformers' sdpa leaves the cap out without saying so, and so does reading without padding.
    """
    if not getattr(model.config.get_text_config(), "attn_logit_softcapping", None):
        if spec.attention == "auto":
            varlen.use_varlen(model)
    elif spec.attention == "sdpa":
        raise InputError(
            f"{spec.path}: sdpa leaves out the cap on its attention scores: set model.attention to auto"
        )
    elif spec.attention == "auto":
        model.set_attn_implementation("eager")


def _freeze_unused(model: PreTrainedModel) -> None:
    """Freeze everything but the decoder, the embeddings and the head, such as a vision tower."""
    read = {id(parameter) for parameter in model.get_decoder().parameters()}
    read |= {id(parameter) for parameter in embedding_weights(model)}
    for parameter in model.parameters():
        if id(parameter) not in read:
            parameter.requires_grad_(False)


def _load_adapter(spec: ModelSpec, directory: Path, device: torch.device) -> Loaded:
    """Load an adapter on its base model, named by the checkpoint's manifest or else the adapter's config."""
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict

    with explained(spec.path, "adapter"):
        config = PeftConfig.from_pretrained(str(directory))
    weights = directory / ADAPTER_WEIGHTS
    if not weights.is_file():
        raise InputError(f"{spec.path}: an adapter without {ADAPTER_WEIGHTS}: save it as safetensors")
    names = {slot.name for slot in tensor_slots(weights)}
    published = checkpoints.base_directory(directory)
    base_path = str(published or config.base_model_name_or_path)
    base, _ = locate(base_path, None if published else config.revision)
    if (base / ADAPTER_CONFIG).is_file():
        raise InputError(f"{spec.path}: its base {base_path} is an adapter too: merge that one first")
    has_own = (directory / "tokenizer_config.json").is_file()
    tokenizer = _load_tokenizer(spec, directory if has_own else base)
    model = _load_weights(spec, base, device)
    with explained(spec.path, "adapter"):
        wrapped = PeftModel.from_pretrained(model, str(directory), is_trainable=True)
    if set(get_peft_model_state_dict(wrapped, save_embedding_layers=False)) != names:
        raise InputError(
            f"{spec.path}: the adapter's tensors are not those of {base_path}: wrong base or damaged"
        )
    return wrapped.eval(), tokenizer


def _require_safetensors(path: str, directory: Path) -> None:
    """Raise InputError for missing, pickled or truncated weight files."""
    shards = weight_files(directory)
    if not shards:
        pickled = next(iter(sorted(directory.glob("*.bin")) + sorted(directory.glob("*.pt*"))), None)
        why = f"only {pickled.name}, which can hold code" if pickled else "no weights"
        raise InputError(f"{path}: {why}: give a model saved as safetensors")
    for shard in shards:
        tensor_slots(shard)


def _settle_generation_config(path: str, model: PreTrainedModel) -> None:
    """Raise InputError for stop tokens that are no ids, and for what transformers would refuse to save.

    Set do_sample if the config sets how to sample without it: published configs do that.
    """
    config = model.generation_config
    if config is None:
        return
    stops = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if any(stop is not None and type(stop) is not int for stop in stops):
        raise InputError(
            f"{path}: generation_config.json: eos_token_id {stops!r:.60}: expected token ids: fetch it again"
        )
    if not config.do_sample and any(getattr(config, name, None) for name in SAMPLING):
        config.do_sample = True
    with explained(path, "generation config"):
        config.validate(strict=True)


def _check_tokens(chat: ChatModel) -> None:
    """Refuse a model without stop tokens, and a tokenizer whose ids the embeddings do not hold."""
    if not chat.stop_ids:
        raise InputError(f"{chat.path}: no stop token in its generation config or tokenizer: set eos_token")
    rows = min(weight.shape[0] for weight in embedding_weights(chat.model))
    if chat.largest_id >= rows:
        raise InputError(
            f"{chat.path}: its tokenizer gives id {chat.largest_id}, its weights have {rows}: not a pair"
        )


def _check_head(chat: ChatModel) -> None:
    """Refuse a model whose logits from hidden states, which the loss reads, are not those of its forward
    pass."""
    ids = chat.prompt_ids([{"role": "user", "content": "a"}])
    tokens = torch.tensor([ids], device=chat.device)
    with torch.inference_mode(), explained(chat.path, "model"):
        own = unwrap(chat.model)(input_ids=tokens, use_cache=False).logits.float()
        states = plain_states(unwrap(chat.model), tokens)
        if states.shape[-1] != embedding_weights(chat.model)[-1].shape[-1]:
            kind = unwrap(chat.model).config.model_type
            raise InputError(
                f"{chat.path}: models of type {kind} are not supported: "
                "the decoder gives no hidden states for the head"
            )
        gap = (logits_of(chat.model, states).float() - own).abs().max()
    tolerance = 1e-3 if chat.model.dtype == torch.float32 else 5e-2
    if not gap <= tolerance * own.abs().max().clamp(min=1):
        raise RecoverError(
            f"{chat.path}: its head does more than a matrix product (logits off by {gap:.3g}): report it"
        )


def freeze_embeddings(chat: ChatModel) -> None:
    """Exclude the embeddings and the head from training."""
    for weight in embedding_weights(chat.model):
        weight.requires_grad_(False)
