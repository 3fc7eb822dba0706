"""Hold a model's linear layers in 4 bits (bitsandbytes), to train an adapter on them (QLoRA)."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, Literal

import torch

from recovery.errors import InputError
from recovery.extras import to_install
from recovery.forward.hidden_states import is_adapter, unwrap

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

Quantize = Literal["nf4", "fp4"]
PACKAGE = "bitsandbytes"
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
