"""Low-rank adapters: which weights they train, adding one to a model, switching it off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from recovery.errors import InputError
from recovery.forward.hidden_states import embedding_weights, is_adapter, unwrap
from recovery.models.hub import explained
from recovery.named_paths import expanded
from recovery.storage.weights_hash import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_object, tensor_slots

if TYPE_CHECKING:
    from peft import PeftModel

    from recovery.models.chat_model import ChatModel

ALL_LINEAR = "all-linear"
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
NARROWEST = 8  # a matrix with fewer rows or columns is a gate or a set of coefficients


@dataclass(frozen=True)
class LoraSpec:
    """A low-rank adapter. `targets` are module names, or every linear layer of the decoder but the head."""

    rank: int = 128
    alpha: int | None = None
    dropout: float = 0.0
    targets: str | tuple[str, ...] = ALL_LINEAR
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1 or not 0 <= self.dropout < 1:
            raise InputError(f"lora: rank {self.rank} must be >= 1 and dropout {self.dropout} in [0, 1)")


@dataclass(frozen=True)
class AdapterTargets:
    """Full names of what gets an adapter: linear modules, and parameters that hold many experts' weights."""

    modules: tuple[str, ...]
    parameters: tuple[str, ...] = ()


def linear_targets(model: Any) -> AdapterTargets:
    """Choose every weight matrix of the decoder's layers: attention, MLPs, shared and routed experts.

    Excluded: the head and embeddings, routers and other gates, vision and audio towers, and what state-space
    mixers read as bare weights instead of calling the layer.
    """
    core = unwrap(model)
    decoder, head = core.get_decoder(), core.get_output_embeddings()
    prefix = next(name for name, module in core.named_modules() if module is decoder)
    experts = expert_count(core.config.get_text_config())
    modules, parameters = [], []
    for inner, wrapped in decoder.named_modules():
        if ".lora_" in inner or "base_layer" in inner:
            continue
        name = f"{prefix}.{inner}" if prefix else inner
        module = plain_layer(wrapped)
        if is_linear(module):
            parent = decoder.get_submodule(inner.rpartition(".")[0])
            if module is not head and not _is_gate(inner, module, experts) and _is_called(inner, parent):
                modules.append(name)
        else:
            for key, parameter in module.named_parameters(recurse=False):
                if _holds_experts(parameter, experts):
                    parameters.append(f"{name}.{key}")
    return _around_renaming(core, AdapterTargets(tuple(modules), tuple(parameters)))


def expert_count(config: Any) -> int:
    """Return the number of routed experts; 0 in a dense model."""
    return next((count for name in EXPERT_COUNTS if (count := getattr(config, name, None))), 0)


def plain_layer(module: Any) -> Any:
    """Return the layer itself, without the adapters around it."""
    while hasattr(module, "base_layer"):
        module = module.base_layer
    return module


def is_linear(module: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, torch.nn.Linear | Conv1D)


def matrix_shape(layer: Any) -> tuple[int, int]:
    """Return (inputs, outputs) of a linear layer, however its weights are held."""
    if isinstance(layer, torch.nn.Linear):
        return layer.in_features, layer.out_features
    inputs, outputs = layer.weight.shape
    return inputs, outputs


def _is_gate(name: str, linear: Any, experts: int) -> bool:
    """Return whether a layer only routes or weighs: a router, a shared expert's gate, mixing coefficients."""
    shape = matrix_shape(linear)
    if min(shape) < NARROWEST or "router" in name:
        return True
    return name.endswith("gate") and shape[1] == experts


def _is_called(name: str, parent: Any) -> bool:
    """Return whether a layer's forward is called; Mamba's kernels read most of its weights bare."""
    is_state_space = hasattr(parent, "A_log") and hasattr(parent, "D")
    return not is_state_space or name.endswith("in_proj")


def _holds_experts(parameter: torch.Tensor, experts: int) -> bool:
    return parameter.ndim == 3 and parameter.shape[0] == experts > 1


def _around_renaming(core: Any, targets: AdapterTargets) -> AdapterTargets:
    """Name as parameters what peft would otherwise take for routed experts of an older transformers.

    For mixture-of-experts families peft renames targets such as `gate_proj` into the fused expert weights:
    dense layers and shared experts of that name would be lost.
    """
    from peft.utils import transformers_weight_conversion as renaming

    family = renaming._MODEL_TO_CONVERSION_PATTERN.get(core.config.model_type)
    renamed = set(renaming._MOE_TARGET_MODULE_MAPPING.get(family, ()))
    taken = tuple(name for name in targets.modules if name.rpartition(".")[2] in renamed)
    kept = tuple(name for name in targets.modules if name not in taken)
    return AdapterTargets(kept, targets.parameters + tuple(f"{name}.weight" for name in taken))


def add_lora(chat: ChatModel, spec: LoraSpec) -> ChatModel:
    """Wrap the model in place with a fresh adapter, initialised by the seed; only the adapter is trained."""
    if is_adapter(chat.model):
        raise InputError(f"{chat.path}: has an adapter already: train that one, or merge it first")
    cuda = [chat.device] if chat.device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda), explained(chat.path, "lora"):
        torch.manual_seed(spec.seed)
        model = with_adapter(chat.model, spec)
    local = expanded(chat.path)
    config = model.peft_config["default"]
    config.base_model_name_or_path = str(local.absolute()) if local.exists() else chat.path
    config.revision = chat.revision
    chat.model = model.eval()
    return chat


def with_adapter(model: Any, spec: LoraSpec) -> PeftModel:
    """Return the model with a fresh adapter on it; its layers are replaced in place."""
    from peft import LoraConfig, get_peft_model

    targets = linear_targets(model) if spec.targets == ALL_LINEAR else None
    if targets and targets.parameters and spec.dropout:
        raise InputError("lora.dropout does not work on experts: set it to 0")
    named = spec.targets if isinstance(spec.targets, str) else list(spec.targets)
    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.rank if spec.alpha is None else spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=list(targets.modules) if targets else named,
        target_parameters=list(targets.parameters) or None if targets else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def describe_trained(model: Any) -> str:
    """Return on one line how many weights are trained, and in which layers."""
    trained = [(name, one.numel()) for name, one in model.named_parameters() if one.requires_grad]
    total = sum(count for _, count in trained)
    if not is_adapter(model):
        frozen = not any(weight.requires_grad for weight in embedding_weights(model))
        return f"all weights{' but embeddings and head' if frozen else ''}: {total:,}"
    kinds = sorted({layer_kind(name) for name, _ in trained})
    return f"an adapter of {total:,} weights on {', '.join(kinds)}"


def layer_kind(name: str) -> str:
    """`...layers.3.mlp.experts.base_layer.lora_A.default.weight` -> `experts`."""
    parts = name.partition(".lora_")[0].split(".")
    return next(
        part for part in reversed(parts) if part not in ("base_layer", "weight") and not part.isdigit()
    )


def adapter_rank(directory: Path | str) -> int | None:
    """Return the rank of the adapter stored in a directory; None for a whole model."""
    path = Path(directory) / ADAPTER_CONFIG
    if not path.is_file():
        return None
    rank = read_object(path).get("r")
    if type(rank) is not int:
        raise InputError(f"{path}: names no rank (r): only LoRA adapters are taken: give one")
    return rank


def require_rank(directory: Path | str, rank: int) -> None:
    """Refuse to train another adapter than the one that a checkpoint has; rank 0 stands for no adapter."""
    present = adapter_rank(directory)
    if present is not None and present != rank:
        wanted = f"one of rank {rank} cannot take its place" if rank else "all weights cannot be trained"
        raise InputError(
            f"lora: the student is an adapter of rank {present}, {wanted}: "
            f"give rank {present}, or merge the adapter first (`recover merge --weight 0`)"
        )


def kept_settings(model: Any, spec: LoraSpec) -> list[str]:
    """Return what of an adapter differs from what the spec sets, but for its rank."""
    config = model.peft_config["default"]
    found = []
    if spec.alpha is not None and spec.alpha != config.lora_alpha:
        found.append(f"alpha {config.lora_alpha:g}")
    if spec.dropout and spec.dropout != config.lora_dropout:
        found.append(f"dropout {config.lora_dropout:g}")
    names = spec.targets if isinstance(spec.targets, str) else set(spec.targets)
    if names not in (ALL_LINEAR, config.target_modules):
        found.append("targets")
    return found


def changes_head(model: Any) -> bool:
    """Return whether a model's adapter also changes its output head."""
    head = model.get_output_embeddings()
    return hasattr(head, "disable_adapters") or any(one.requires_grad for one in head.parameters())


def changes_vocabulary(model: Any) -> bool:
    """Return whether a model's adapter also changes its output head or its input embeddings."""
    return changes_head(model) or hasattr(model.get_input_embeddings(), "disable_adapters")


def is_within_layers(directory: Path) -> bool:
    """Return whether a stored adapter, if there is one, lies on numbered layers alone, not on the head."""
    weights = directory / ADAPTER_WEIGHTS
    names = [slot.name.split(".") for slot in tensor_slots(weights)] if weights.is_file() else []
    return all(any(part.isdigit() for part in name) for name in names)


@contextmanager
def adapter_off(chat: ChatModel) -> Iterator[None]:
    """Switch the adapter off inside the block; afterwards the same weights are trainable as before."""
    if not is_adapter(chat.model):
        raise InputError(
            f"{chat.path}: has no adapter to switch off: load it with lora, or use another teacher"
        )
    trainable = [(parameter, parameter.requires_grad) for parameter in chat.model.parameters()]
    try:
        model: Any = chat.model
        with model.disable_adapter():
            yield
    finally:
        for parameter, flag in trainable:
            parameter.requires_grad_(flag)
