"""Save and load the training state that a killed run resumes from; an optimizer as named tensors."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from recovery import distributed
from recovery.errors import DamagedCheckpoint, RecoverError
from recovery.storage import atomic_dirs, file_hashes, sharded_state
from recovery.storage.checkpoints import MANIFEST

log = logging.getLogger(__name__)
KEPT = 2  # states: the one before is there if the newest is damaged


class TrainState:
    """The last states that a killed run can resume from, each whole or absent."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def save(self, step: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        """Write the state of `step` atomically; then remove the older ones beyond the last KEPT.

        If tensors are sharded, every process calls this and writes its own shards.
        """
        if sharded_state.spread(tensors) and distributed.rank():
            sharded_state.write_along(tensors)
            return
        with atomic_dirs.new_directory(self.root) as scratch:
            sharded_state.write(scratch, tensors)
            atomic_dirs.write_json(scratch / "meta.json", meta)
            atomic_dirs.write_sealed(
                scratch / MANIFEST, {"step": step, "files": file_hashes.file_table(scratch)}
            )
            target = self.root / f"step-{step:09d}"
            atomic_dirs.replace(scratch, target)
            self._forget(target)

    def load(self) -> tuple[int, Mapping[str, torch.Tensor], dict[str, Any]] | None:
        """Return the newest complete state as (step, tensors, meta), or None; warn of damaged ones."""
        for directory in self._steps():
            try:
                step = self._verified_step(directory)
            except DamagedCheckpoint as error:
                log.warning("%s; going back to the state before it", error)
                continue
            meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
            return step, sharded_state.read(directory), meta
        return None

    def _forget(self, newest: Path) -> None:
        """Keep the last few states; remove those beyond `newest`, left by an abandoned attempt."""
        steps = self._steps()
        for directory in {*steps[: steps.index(newest)], *steps[steps.index(newest) + KEPT :]}:
            atomic_dirs.remove(directory)

    def _steps(self) -> list[Path]:
        """Return all states, newest first; a kill may leave `.old` of a step that was saved again."""
        return sorted(self.root.glob("step-*"), key=lambda at: (at.stem, not at.suffix), reverse=True)

    def _verified_step(self, directory: Path) -> int:
        label = f"training state {directory.name}"
        manifest = atomic_dirs.read_sealed(label, directory / MANIFEST)
        file_hashes.check_files(label, directory, manifest["files"])
        return int(manifest["step"])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Name an optimizer's tensors: `state.<parameter>.<key>` and `group.<group>.<setting>`."""
    whole = optimizer.state_dict()
    tensors = {
        f"state.{index}.{key}": _as_tensor(value)
        for index, entries in whole["state"].items()
        for key, value in entries.items()
        if value is not None
    }
    for index, group in enumerate(whole["param_groups"]):
        settings = {key: value for key, value in group.items() if key != "params" and _is_number(value)}
        tensors |= {f"group.{index}.{key}": _as_tensor(value) for key, value in settings.items()}
    return tensors


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Restore exactly what `optimizer_tensors` named; the optimizer must have the same parameters."""
    whole = optimizer.state_dict()
    groups = [dict(group) for group in whole["param_groups"]]
    known = {index for group in groups for index in group["params"]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        part, number, key = name.split(".", 2)
        index = int(number)
        if part == "state" and index in known:
            state.setdefault(index, {})[key] = _cut(tensor, parameters[index]).clone()
        elif part == "group" and index < len(groups):
            groups[index][key] = _like(groups[index].get(key), tensor)
        else:
            raise RecoverError(f"optimizer state {name} fits no parameter: resume with the same settings")
    _check_shapes(parameters, state)
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _cut(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Shard a tensor as its parameter is sharded, if at all."""
    return distributed.like(tensor, parameter) if tensor.ndim else tensor


def _check_shapes(parameters: Sequence[torch.Tensor], state: dict[int, dict[str, Any]]) -> None:
    for index, entries in state.items():
        for key, value in entries.items():
            if value.ndim and value.shape != parameters[index].shape:
                found, wanted = tuple(value.shape), tuple(parameters[index].shape)
                message = f"optimizer state {index}.{key} is {found}, its parameter {wanted}"
                raise RecoverError(f"{message}: resume with the same model")


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_number(item) for item in value)
    return isinstance(value, bool | int | float | torch.Tensor)


def _as_tensor(value: Any) -> torch.Tensor:
    """Convert a setting to a tensor; Python floats keep all their bits as float64."""
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    whole = isinstance(value, int)
    return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)


def _like(current: Any, tensor: torch.Tensor) -> Any:
    """Convert a tensor back to the type of the setting's value."""
    if isinstance(current, torch.Tensor):
        return tensor.clone()
    value = tensor.tolist()
    return tuple(value) if isinstance(current, tuple) else value


def prefixed(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


class Unprefixed(Mapping[str, torch.Tensor]):
    """A lazy view of the tensors with a prefix, under names without it; each is read on access."""

    def __init__(self, prefix: str, tensors: Mapping[str, torch.Tensor]) -> None:
        self._prefix = f"{prefix}."
        self._tensors = tensors
        self._names = [n.removeprefix(self._prefix) for n in tensors if n.startswith(self._prefix)]

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
