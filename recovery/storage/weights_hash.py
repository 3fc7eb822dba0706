"""One hash of the weights in safetensors files, and where in them each tensor lies.

The hash depends on names, dtypes, shapes and bytes; not on the tensors' order nor on how they are sharded.
"""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery import untrusted_json
from recovery.errors import InputError
from recovery.storage.file_hashes import workers

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
CHUNK = 1 << 22
SAFETENSORS_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def weights_sha256(directory: Path) -> str:
    """Return one hash of all weights in a directory's safetensors."""
    slots = [slot for file in weight_files(directory) for slot in tensor_slots(file)]
    if len({slot.name for slot in slots}) != len(slots):
        raise InputError(f"{directory}: a tensor is stored twice: keep one set of weight files")
    with ThreadPoolExecutor(workers()) as pool:
        hashes = pool.map(_slot_sha256, slots)
        rows = sorted((s.name, s.dtype, s.shape, sha) for s, sha in zip(slots, hashes, strict=True))
    total = hashlib.sha256()
    for row in rows:
        total.update(json.dumps(row).encode() + b"\n")
    return total.hexdigest()


@dataclass(frozen=True)
class TensorSlot:
    """Where one tensor's bytes lie."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    length: int


def weight_files(directory: Path) -> list[Path]:
    """Return the safetensors files that a load would read: the index's shards, else the single file."""
    index = directory / "model.safetensors.index.json"
    if (directory / ADAPTER_CONFIG).is_file():
        return sorted(directory.glob(ADAPTER_WEIGHTS))
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"]
    if index.is_file():
        shards = read_object(index).get("weight_map")
        named = isinstance(shards, dict) and all(isinstance(name, str) for name in shards.values())
        if not named or not shards:
            raise InputError(f"{index}: no weight_map in it: the download is damaged, fetch it again")
        return [directory / name for name in sorted(set(shards.values()))]
    return sorted(directory.glob("*.safetensors"))


def require_regular(file: Path) -> None:
    """Raise InputError for a pipe, a socket, a device or a directory: reading one may never end."""
    if file.exists() and not file.is_file():
        raise InputError(f"{file}: not a regular file: fetch or save it again")


def tensor_slots(file: Path) -> list[TensorSlot]:
    """Read from a safetensors header where each tensor's bytes are; refuse a truncated file."""
    require_regular(file)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = untrusted_json.parse(stream.read(length)) if 8 + length <= size else None
        entries = [(name, entry) for name, entry in (header or {}).items() if name != "__metadata__"]
        slots = [_slot(file, name, entry, 8 + length) for name, entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: not a readable safetensors file: fetch or save it again") from error
    if header is None or any(slot.start + slot.length > size for slot in slots):
        raise InputError(f"{file}: cut off: fetch or save it again")
    return slots


def _slot(file: Path, name: str, entry: dict[str, Any], data: int) -> TensorSlot:
    start, end = entry["data_offsets"]
    return TensorSlot(name, entry["dtype"], tuple(entry["shape"]), file, data + start, end - start)


def _slot_sha256(slot: TensorSlot) -> str:
    sha = hashlib.sha256()
    left = slot.length
    with slot.file.open("rb") as stream:
        stream.seek(slot.start)
        while left and (block := stream.read(min(CHUNK, left))):
            sha.update(block)
            left -= len(block)
    return sha.hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a model's file."""
    try:
        return untrusted_json.parse_object(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as a JSON object: fetch or save it again") from error
