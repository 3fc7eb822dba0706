"""Sizes of models: by name, or from a config.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.config.fitted import ModelSize
from pipelines.config.sections.model import ModelConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.machine.stage_memory import training_bytes
from pipelines.microworld.shipped_model import MICROWORLD, place_of
from recovery import untrusted_json
from recovery.errors import InputError
from recovery.hub_data import asked_once
from recovery.named_paths import expanded
from recovery.storage.weights_hash import ADAPTER_CONFIG

if TYPE_CHECKING:
    from recovery.models.size import Size

CACHED = 1024  # tokens of a row whose cache is counted where none is planned


def _qwen3(layers: int, hidden: int, heads: int, intermediate: int, tied: bool) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "vocab_size": 151936,
        "tie_word_embeddings": tied,
        "model_type": "qwen3",
    }


SIZES: dict[str, dict[str, Any]] = {  # Qwen3's shapes; 70B is Llama 3's
    "0.6B": _qwen3(28, 1024, 16, 3072, True),
    "1.7B": _qwen3(28, 2048, 16, 6144, True),
    "4B": _qwen3(36, 2560, 32, 9728, True),
    "8B": _qwen3(36, 4096, 32, 12288, False),
    "14B": _qwen3(40, 5120, 40, 17408, False),
    "32B": _qwen3(64, 5120, 64, 25600, False),
    "70B": {**_qwen3(80, 8192, 64, 28672, False), "vocab_size": 128256, "model_type": "llama"},
}


def read_size(model: str) -> Size:
    """Read a size (8B), `microworld`, a directory, a config.json, or the config.json of a hub id.

    Weights that cannot be trained, as they are quantised, are refused as on loading."""
    from recovery.models.quantization import refuse_quantised
    from recovery.models.size import size_from_config

    if model.upper() in SIZES:
        return size_from_config(model.upper(), SIZES[model.upper()])
    path = expanded(place_of(model))
    path = _config_of(model, path) if path.is_dir() else path
    if not path.is_file():
        path = _from_hub(model)
    try:
        values = untrusted_json.parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a model's config.json: {error}") from error
    refuse_quantised(model, values)
    return size_from_config(model, values)


def _config_of(model: str, folder: Path) -> Path:
    """Return a folder's config.json; say what is there instead of it."""
    found = folder / "config.json"
    if found.is_file():
        return found
    remedy = f"give a model's directory, a hub id or a size: {', '.join(SIZES)}"
    if (folder / ADAPTER_CONFIG).is_file():
        remedy = "an adapter lies there: give the model that it was made for"
    elif any(folder.glob("*.gguf")):
        remedy = "a GGUF file lies there: `recover init --model` converts it, and then --model is not needed"
    raise InputError(f"--model {model}: holds no config.json: {remedy}")


def size_at_hand(model: ModelConfig) -> Size | None:
    """Return a model's size from its own config.json, or from the one in the hub's cache; no hub is asked."""
    from huggingface_hub import try_to_load_from_cache

    from recovery.models.hub import names_a_place

    place: object = model.path
    if model.path != MICROWORLD and not names_a_place(model.path):
        place = try_to_load_from_cache(model.path, "config.json", revision=model.revision)
    try:
        return read_size(place) if isinstance(place, str) else None
    except InputError:
        return None


def _from_hub(model: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download

        commit = asked_once(model, "model")
        return Path(hf_hub_download(model, "config.json", revision=commit, local_files_only=commit is None))
    except Exception as error:
        sizes = ", ".join(SIZES)
        raise InputError(
            f"--model {model}: no directory, and not to be had from the hub ({type(error).__name__}): "
            f"give a directory, a hub id or a size: {sizes}"
        ) from error


def model_size(size: Size, settings: ModelConfig, gpu: bool = True) -> ModelSize:
    """Return the sizes of a model that determine whether it fits."""
    number_bytes = settings.number_bytes(gpu)
    activations = training_bytes(size, settings.checkpoints_gradients(gpu), number_bytes).peak
    cache = size.decoding(CACHED, number_bytes).cache / CACHED
    four_bits = size.weight_bytes(True, number_bytes)
    return ModelSize(
        parameters=size.parameters,
        adapter=size.adapter_weights(LoraConfig().rank),
        activation_bytes=round(activations),
        cache_bytes=max(1, round(cache)),
        quantized_bytes=four_bits if settings.quantize else 0.0,
        embeddings=size.embeddings,
        unused=size.unused,
        four_bits=four_bits,
        layers=size.layers,
    )
