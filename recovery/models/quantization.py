"""Hold a model's linear layers in 4 bits (bitsandbytes), to train an adapter on them (QLoRA); tell which
weights are stored in fewer bits, and refuse or unpack them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from recovery.errors import InputError
from recovery.extras import to_install
from recovery.forward.hidden_states import is_adapter, unwrap
from recovery.storage.weights_hash import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from recovery.models.chat_model import ChatModel

Quantize = Literal["nf4", "fp4"]
PACKAGE = "bitsandbytes"
MXFP4 = "mxfp4"
# Half a byte a weight; one byte of scale for 64 weights, and four bytes for 256 of these scales.
BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)


def quantization_config(path: str, quantize: Quantize, dtype: torch.dtype | str) -> Any:
    """Return transformers' configuration; raise InputError where bitsandbytes is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InputError(
            f"{path}: model.quantize: {quantize} needs {PACKAGE}; {to_install('qlora')}; "
            "or remove model.quantize"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantize,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype if isinstance(dtype, torch.dtype) else torch.bfloat16,
    )


def quantised_as(directory: Path) -> str | None:
    """Return how the weights in a folder are quantised, by the name that transformers has for it, if so."""
    return _method(read_object(directory / "config.json"))


def _method(config: dict[str, Any]) -> str | None:
    found = config.get("quantization_config")
    method = found.get("quant_method") if isinstance(found, dict) else found
    return str(method) if method else None


def refuse_quantised(path: str, config: dict[str, Any]) -> None:
    """Refuse weights that are stored in fewer bits, by a config.json; MXFP4 is dequantised on loading."""
    method = _method(config)
    if method and method != MXFP4:
        raise InputError(
            f"{path}: its weights are quantised ({method}), which can't be trained: "
            "give the model that they were made from, in bfloat16"
        )


def unpacking_arguments(path: str, directory: Path) -> dict[str, Any]:
    """Return loading arguments that dequantise MXFP4; raise InputError for other quantised weights."""
    config = read_object(directory / "config.json")
    refuse_quantised(path, config)
    if _method(config) != MXFP4:
        return {}
    from transformers import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def settle_dequantized(model: PreTrainedModel, directory: Path) -> None:
    """Make a model that was dequantised on loading save its weights under their current names.

    Otherwise transformers restores the quantised names on saving, but not the quantised values.
    """
    unpacked = not getattr(model, "is_quantized", False) and not hasattr(model, "hf_quantizer")
    if unpacked and quantised_as(directory):
        model._weight_conversions = None


def is_quantized(model: Any) -> bool:
    """Return whether a model's linear layers are held in fewer bits than they were stored in."""
    return bool(getattr(unwrap(model), "is_quantized", False))


def settle_quantized(model: Any) -> None:
    """Keep the 4-bit weights as they are: bitsandbytes would repack them on a CPU, and rounds again then."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def require_trainable(chat: ChatModel) -> None:
    """Refuse to train all weights of a quantised model."""
    if is_quantized(chat.model) and not is_adapter(chat.model):
        raise InputError(
            f"{chat.path}: weights in 4 bits (model.quantize) can't be trained: set lora, "
            "as in lora: {rank: 32}"
        )


def require_whole(chat: ChatModel, what: str) -> None:
    """Refuse what needs the numbers of the stored weights."""
    if is_quantized(chat.model):
        raise InputError(f"{chat.path}: {what} needs the whole weights: remove model.quantize")
