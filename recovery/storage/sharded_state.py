"""Store a training state's tensors: in one file, or, if they are sharded, in one file per process.

A shard is consecutive rows of a tensor; its file says where they begin. Reading gives whole tensors, one
at a time, so any number of processes can resume a state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from recovery import distributed

WHOLE, SHARD = "tensors.safetensors", "shard-{:05d}.safetensors"


def spread(tensors: Mapping[str, Tensor]) -> bool:
    """Return whether any tensor is sharded."""
    return any(hasattr(tensor, "to_local") for tensor in tensors.values())


def write(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write the tensors into one file; if they are sharded, each process's part into its own."""
    if not spread(tensors):
        safetensors.torch.save_file(own_storage(tensors), directory / WHOLE)
        return
    distributed.broadcast(str(directory))
    _write_own(directory, tensors)
    distributed.gather(None)  # all are done


def write_along(tensors: Mapping[str, Tensor]) -> None:
    """Write this process's shards, while the first process calls `write`."""
    directory: str | None = None
    _write_own(Path(str(distributed.broadcast(directory))), tensors)
    distributed.gather(None)


def _write_own(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write this process's rows; the first process also writes what is not sharded."""
    mine = {
        name: distributed.local(tensor)
        for name, tensor in tensors.items()
        if hasattr(tensor, "to_local") or distributed.rank() == 0
    }
    begins = {name: distributed.rows(t)[0] for name, t in tensors.items() if hasattr(t, "to_local")}
    path = directory / SHARD.format(distributed.rank())
    safetensors.torch.save_file(own_storage(mine), path, metadata={"begins": json.dumps(begins)})


def read(directory: Path) -> Mapping[str, Tensor]:
    """Return the whole tensors by name."""
    if (directory / WHOLE).is_file():
        return safetensors.torch.load_file(directory / WHOLE)
    return JoinedShards(sorted(directory.glob(SHARD.format(0).replace("00000", "*"))))


class JoinedShards(Mapping[str, Tensor]):
    """A lazy mapping of whole tensors: each is joined from its shards on access."""

    def __init__(self, paths: list[Path]) -> None:
        self._places: dict[str, list[tuple[int, Path]]] = {}
        for path in paths:
            with safetensors.safe_open(path, "pt") as file:
                begins = json.loads(file.metadata()["begins"])
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    self._places.setdefault(name, []).append((begins.get(name, 0), path))

    def __getitem__(self, name: str) -> Tensor:
        parts = []
        for _, path in sorted(self._places[name]):
            with safetensors.safe_open(path, "pt") as file:
                parts.append(file.get_tensor(name))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return CPU tensors that share no memory, as safetensors requires: copy views and second names."""
    seen: set[int] = set()
    owned = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        storage = plain.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != plain.numel() * plain.element_size()
        owned[name] = plain.clone() if shared else plain
        seen.add(storage.data_ptr())
    return owned
