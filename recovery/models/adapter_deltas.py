"""What a stored adapter adds to each tensor of its base's files.

An adapter names modules in memory; files may keep other names and shapes (one tensor an expert where memory
holds all in one). peft lays the adapter over the base without numbers, and transformers' own conversion says
where in the files each piece belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from recovery.errors import InputError
from recovery.models.hub import explained, quiet
from recovery.models.loading import loader_of
from recovery.storage.weights_hash import ADAPTER_WEIGHTS


class Delta(Protocol):
    """What is added to one tensor of the files."""

    def rows(self, rows: slice) -> Tensor: ...


@dataclass(frozen=True)
class LowRank:
    """scale * B @ A for one matrix, computed for the rows that are asked for; of Conv1D layers transposed."""

    a: Tensor
    b: Tensor
    scale: float
    transposed: bool = False

    def rows(self, rows: slice) -> Tensor:
        if self.transposed:
            return self.scale * (self.b @ self.a[:, rows]).T
        return self.scale * (self.b[rows] @ self.a)


@dataclass(frozen=True)
class Experts:
    """B @ A of every expert (E of them) in one tensor, as peft's ParamWrapper stacks them."""

    low_rank: LowRank
    count: int
    inputs_last: bool

    def rows(self, rows: slice) -> Tensor:
        """Compute the experts that are asked for, and no other."""
        a_ERI = self.low_rank.a.reshape(self.count, -1, self.low_rank.a.shape[-1])[rows]
        b_ORE = self.low_rank.b.reshape(self.low_rank.b.shape[0], -1, self.count)[..., rows]
        order = "ore,eri->eoi" if self.inputs_last else "ore,eri->eio"
        return self.low_rank.scale * torch.einsum(order, b_ORE, a_ERI)


@dataclass(frozen=True)
class DeltaPart:
    """The part of a module's delta that one tensor of the files gets."""

    whole: SplitDelta
    name: str

    def rows(self, rows: slice) -> Tensor:
        return _pieces(self.whole)[self.name][rows]


@dataclass(frozen=True, eq=False)
class SplitDelta:
    """A module's delta, which the files hold in several tensors."""

    model: Any
    name: str
    delta: Experts | LowRank


@lru_cache(maxsize=1)  # one module's: its tensors are read one after the other
def _pieces(module: SplitDelta) -> dict[str, Tensor]:
    return _reverted(module.model, module.name, module.delta.rows(slice(None)))


def deltas(adapter: Path, base: Path, trust_remote_code: bool = False) -> dict[str, Delta]:
    """Return the deltas by the tensor's name in the base's files; refuse anything but LoRA matrices."""
    model = skeleton(base, trust_remote_code)
    found: dict[str, Delta] = {}
    for name, delta in _by_parameter(adapter, skeleton(base, trust_remote_code)):
        shape = model.get_parameter(name).shape
        placed = _reverted(model, name, torch.empty(shape, device="meta"))
        if [piece.shape for piece in placed.values()] == [shape]:
            found[next(iter(placed))] = delta
        else:
            whole = SplitDelta(model, name, delta)
            found |= {piece: DeltaPart(whole, piece) for piece in placed}
    return found


def skeleton(base: Path, trust_remote_code: bool) -> Any:
    """Return the base's modules without numbers, knowing how its files were converted."""
    with quiet(), explained(str(base), "model"):
        return loader_of(base).from_pretrained(
            base, device_map="meta", local_files_only=True, trust_remote_code=trust_remote_code
        )


def _reverted(model: Any, name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return one parameter under the names and in the shapes of the files."""
    from transformers.core_model_loading import revert_weight_conversion

    return dict(revert_weight_conversion(model, {name: tensor}))


def _by_parameter(adapter: Path, model: Any) -> Iterator[tuple[str, Experts | LowRank]]:
    """Lay the adapter over the model; yield each adapted parameter's name and its delta."""
    from peft import PeftConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    config: Any = PeftConfig.from_pretrained(str(adapter))
    if getattr(config, "use_dora", False):
        raise _refusal(adapter, "use_dora")
    with safe_open(adapter / ADAPTER_WEIGHTS, framework="pt") as file:
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
    with quiet(), explained(str(adapter), "adapter"):
        wrapped = get_peft_model(model, config)
    for name, layer in wrapped.named_modules():
        if isinstance(layer, LoraLayer):
            names = [f"{name}.lora_{side}.weight" for side in "AB"]
            if not tensors.keys() >= set(names):
                raise _refusal(adapter, f"one without {names[0]}")
            yield _parameter(name, layer), _delta(layer, tensors.pop(names[0]), tensors.pop(names[1]))
    if tensors:
        raise _refusal(adapter, min(tensors))


def _parameter(name: str, layer: Any) -> str:
    """Return the adapted parameter's name in the model without its adapter."""
    module = name.removeprefix("base_model.model.").replace(".base_layer", "")
    return f"{module}.{getattr(layer, 'parameter_name', 'weight')}"


def _delta(layer: Any, a: Tensor, b: Tensor) -> Experts | LowRank:
    scale = layer.scaling["default"]
    count = getattr(layer, "num_experts", 1)
    if count > 1:
        return Experts(LowRank(a, b, scale), count, inputs_last=layer._did_swap_in_out_features)
    return LowRank(a, b, scale, transposed=layer.fan_in_fan_out)


def _refusal(adapter: Path, what: str) -> InputError:
    return InputError(f"merge: {adapter}: only plain LoRA adapters can be merged, not {what}")
