"""Merging without training: a new model out of others' weights, from file to file, a few rows at a time; or
in memory, where a training begins at a mixture.

    linear    (1 - w) * student + w * other
    slerp     the same along the arc between them, tensor by tensor (of models this close, almost linear)
    residual  student + w * (other - origin): adds back what turned `origin` into the instruct model `other`,
              all of it or the entries that a mask leaves (task_vectors.py)
    embeddings  linear in the embeddings and the head, and nowhere else: documents push down every token that
              they do not hold, chat's own among them

Each is a weighted sum of two or three tensors, so memory is a few million numbers however large the model is.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from recovery.errors import InputError
from recovery.forward.hidden_states import embedding_weights, unwrap
from recovery.models.adapter_deltas import deltas, skeleton
from recovery.models.hub import explained, locate, quiet
from recovery.models.quantization import require_whole
from recovery.models.saving import checkpoint_tensors
from recovery.models.task_vectors import Mask, Residual, magnitude_of_rank
from recovery.storage.atomic_dirs import storage_errors
from recovery.storage.checkpoints import (
    FURTHER_TEMPLATES,
    MANIFEST,
    PROCESSOR_TEMPLATE,
    base_directory,
    model_files,
)
from recovery.storage.weights_hash import (
    ADAPTER_CONFIG,
    SAFETENSORS_DTYPES,
    TensorSlot,
    read_object,
    tensor_slots,
    weight_files,
)

if TYPE_CHECKING:
    from recovery.models.chat_model import ChatModel

KINDS = ("linear", "slerp", "residual", "embeddings")
CHUNK = 2**24  # numbers held of a tensor at once: 64 MB in fp32
PARALLEL = 1e-4  # radians below which the arc is its chord
TIED = {"lm_head.weight"}  # some files store the head a second time, as the embedding
DTYPES = {short: getattr(torch, name) for name, short in SAFETENSORS_DTYPES.items()}

Share = Callable[[str], tuple[float, ...]]  # of each source, in a tensor of that name
Masks = Callable[[str], Mask | None]  # of a residual, in a tensor of that name
OnTensor = Callable[[int, int], None]


def merge_weights(  # noqa: PLR0913 - three models, and how they are merged
    student: Path,
    other: Path,
    target: Path,
    weight: float,
    kind: str = "linear",
    *,
    residual: Residual | None = None,
    on_tensor: OnTensor | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write the student's files and the merged weights to `target`; an adapter counts with its base."""
    if (kind == "residual") != (residual is not None):
        raise InputError("merge: residual, and no other kind, needs the origin that `other` was tuned from")
    paths = (student, other) if residual is None else (student, other, residual.origin)
    sources = mergeable(paths, trust_remote_code)
    with storage_errors(target):
        _copy_rest(student, sources[0].base, target)
        sums = Sums(sources, _shares(sources, weight, kind), _masks(sources, residual))
        _write(sums, target, on_tensor)


def mergeable(paths: Sequence[Path], trust_remote_code: bool = False) -> list[StoredWeights]:
    """Return the models at these places by the headers of their files; refuse those that cannot be merged."""
    sources = [StoredWeights(path, trust_remote_code) for path in paths]
    for one in sources[1:]:
        require_same(sources[0], one)
    return sources


def put_back(
    student: Path,
    other: Path,
    target: Path,
    names: Collection[str],
    *,
    on_tensor: OnTensor | None = None,
    trust_remote_code: bool = False,
) -> None:
    """Write the student to `target` with the named tensors of `other` in place of its own."""
    sources = mergeable((student, other), trust_remote_code)
    sums = Sums(sources, lambda name: (0.0, 1.0) if name in names else (1.0, 0.0))
    with storage_errors(target):
        _copy_rest(student, sources[0].base, target)
        _write(sums, target, on_tensor)


@torch.no_grad()
def mix_in(student: ChatModel, other: ChatModel, weight: float, kind: str = "linear") -> None:
    """Replace weights in memory by (1 - w) * student + w * other: all, or embeddings and head."""
    for chat in (student, other):
        require_whole(chat, "mixing checkpoints in memory")
    mine, theirs = (dict(unwrap(chat.model).named_parameters()) for chat in (student, other))
    my_shapes, their_shapes = ({(name, one.shape) for name, one in of.items()} for of in (mine, theirs))
    _refuse_different({name for name, _ in my_shapes ^ their_shapes})
    ends = {id(weight) for weight in embedding_weights(student.model)}
    for name, parameter in mine.items():
        if kind == "embeddings" and id(parameter) not in ends:
            continue
        mixed = parameter.float() * (1 - weight)  # summed in fp32, rounded once
        parameter.copy_(mixed.add_(theirs[name].to(parameter.device, torch.float32), alpha=weight))


@torch.no_grad()
def weaken(student: ChatModel, share: float) -> None:
    """Scale in memory what an adapter adds by `share`, as if its base had been mixed in."""
    trained = {name: one for name, one in student.model.named_parameters() if one.requires_grad}
    odd = [name for name in trained if ".lora_A." not in name and ".lora_B." not in name]
    if odd:
        raise InputError(f"merge: only plain LoRA adapters can be merged, not {odd[0]}")
    for name, parameter in trained.items():
        if ".lora_B." in name:
            parameter.mul_(share)


def _shares(sources: Sequence[StoredWeights], weight: float, kind: str) -> Share:
    if kind == "linear":
        return lambda name: (1 - weight, weight)
    if kind == "residual":
        return lambda name: (1.0, weight, -weight)
    if kind == "slerp":
        return lambda name: arc_shares(*inner_products(sources[0], sources[1], name), weight)
    if kind == "embeddings":
        ends = token_matrices(sources[0])
        return lambda name: (1 - weight, weight) if name in ends else (1.0, 0.0)
    raise InputError(f"merge: kind {kind!r} is not one of {', '.join(KINDS)}")


def _masks(sources: Sequence[StoredWeights], residual: Residual | None) -> Masks:
    """Return the mask of each tensor's residual; none where all of it is added."""
    if residual is None or (residual.keep == 1 and not residual.elect_signs):
        return lambda name: None
    student, other, origin = sources
    keep, elect_signs = residual.keep, residual.elect_signs
    return lambda name: Mask(
        added=_smallest_kept(other, origin, name, keep),
        own=_smallest_kept(student, origin, name, keep) if elect_signs else None,
    )


def _smallest_kept(after: StoredWeights, before: StoredWeights, name: str, keep: float) -> float:
    """Return the smallest magnitude among the kept share of a tensor's difference."""
    shape = before.slots[name].shape
    entries = math.prod(shape)
    if keep == 1 or not entries:
        return 0.0
    rank = max(1, round(keep * entries))
    return magnitude_of_rank(
        lambda: (after.read(name, rows) - before.read(name, rows) for rows in _chunks(shape)), rank
    )


def token_matrices(model: StoredWeights) -> set[str]:
    """Return the matrices with a row for every token: the embeddings, and the head if it is not tied."""
    from transformers import AutoConfig

    with quiet(), explained(str(model.base), "model"):
        config = AutoConfig.from_pretrained(
            model.base, local_files_only=True, trust_remote_code=model.trust_remote_code
        )
    tokens = config.get_text_config().vocab_size  # a file may leave it to the class
    found = {name for name, slot in model.slots.items() if len(slot.shape) == 2 and slot.shape[0] == tokens}
    if not found:
        raise InputError(f"merge: {model.base}: no matrix has a row for each of the {tokens} tokens")
    return found


def arc_shares(dot: float, square_a: float, square_b: float, weight: float) -> tuple[float, float]:
    """Return the shares of a and b at `weight` of the arc: sin((1-w)t)/sin t and sin(wt)/sin t."""
    lengths = math.sqrt(square_a * square_b)
    angle = math.acos(max(-1.0, min(1.0, dot / lengths))) if lengths else 0.0
    if min(angle, math.pi - angle) < PARALLEL:  # opposite tensors have no one arc
        return 1 - weight, weight
    return math.sin((1 - weight) * angle) / math.sin(angle), math.sin(weight * angle) / math.sin(angle)


class StoredWeights:
    """A model on disk as named tensors, read by rows in fp32; an adapter's part is added on the way."""

    def __init__(self, directory: Path, trust_remote_code: bool = False) -> None:
        adapter = (directory / ADAPTER_CONFIG).is_file()
        self.base = _base_of(directory) if adapter else directory
        self.trust_remote_code = trust_remote_code
        self.files = weight_files(self.base)
        self.slots = {slot.name: slot for file in self.files for slot in tensor_slots(file)}
        self.added = deltas(directory, self.base, trust_remote_code) if adapter else {}
        self._require_places(directory)
        self._open: dict[Path, Any] = {}

    def _require_places(self, adapter: Path) -> None:
        """Refuse an adapter on a tensor that the base stores quantised, or not at all (a tied head)."""
        floating = {name for name, slot in self.slots.items() if DTYPES[slot.dtype].is_floating_point}
        lost = sorted(self.added.keys() - floating)
        if lost:
            raise InputError(
                f"merge: {adapter}: its adapter changes {lost[0]}, which {self.base} does not store in "
                "floating point: merge it on a base that does"
            )

    def loaded_names(self) -> set[str]:
        """Return the names that loading reads; others, as for multi-token prediction, are ignored."""
        model = skeleton(self.base, self.trust_remote_code)
        return {*checkpoint_tensors(model), *(getattr(model, "all_tied_weights_keys", None) or ())}

    def read(self, name: str, rows: slice) -> Tensor:
        """Return rows of a tensor: fractions in fp32 (a single number has no rows: pass any slice)."""
        slot = self.slots[name]
        if slot.file not in self._open:
            self._open[slot.file] = safe_open(slot.file, framework="pt")
        file = self._open[slot.file]
        found: Tensor = file.get_slice(name)[rows] if slot.shape else file.get_tensor(name)
        if not found.is_floating_point():
            return found
        extra = self.added.get(name)
        return found.float() if extra is None else found.float() + extra.rows(rows)


def _base_of(adapter: Path) -> Path:
    if published := base_directory(adapter):
        return published
    config = read_object(adapter / ADAPTER_CONFIG)
    named = config.get("base_model_name_or_path")
    if not isinstance(named, str):
        raise InputError(
            f"merge: {adapter}: its {ADAPTER_CONFIG} names no base model: write the model's path there"
        )
    return locate(named, config.get("revision"))[0]


def inner_products(one: StoredWeights, other: StoredWeights, name: str) -> tuple[float, float, float]:
    """Return a.b, a.a and b.b of a whole tensor."""
    sums = torch.zeros(3, dtype=torch.float64)
    for rows in _chunks(one.slots[name].shape):
        a, b = one.read(name, rows).flatten().double(), other.read(name, rows).flatten().double()
        sums += torch.stack([a @ b, a @ a, b @ b])
    dot, square_a, square_b = sums.tolist()
    return dot, square_a, square_b


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield the rows of a tensor, CHUNK numbers at a time."""
    rows, width = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
    size = max(1, CHUNK // max(1, width))
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


def require_same(student: StoredWeights, other: StoredWeights) -> None:
    """Refuse other shapes, and tensors that one model alone has, unless loading ignores them.

    Published files hold such tensors (multi-token prediction); a model that was loaded and saved does not.
    """
    shared = student.slots.keys() & other.slots.keys()
    different = {name for name in shared if student.slots[name].shape != other.slots[name].shape}
    for model, extra in (
        (student, student.slots.keys() - shared),
        (other, other.slots.keys() - shared - TIED),
    ):
        if extra and not different:
            different = extra & model.loaded_names()
    _refuse_different(different)


def _refuse_different(names: Collection[str]) -> None:
    if names:
        raise InputError(
            f"merge: the models have different tensors, as {min(names)}: "
            "merge checkpoints of one architecture"
        )


def _copy_rest(student: Path, base: Path, target: Path) -> None:
    """Copy config, tokenizer and templates of the base, then an adapter's over them."""
    for directory in dict.fromkeys((base, student)):
        for name in model_files(directory):
            if name != MANIFEST and not name.startswith("adapter_") and not name.endswith(".safetensors"):
                (target / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(directory / name, target / name)
    if (target / FURTHER_TEMPLATES).is_dir():
        (target / PROCESSOR_TEMPLATE).unlink(missing_ok=True)


@dataclass(frozen=True)
class Sums:
    """Weighted sums of the sources' tensors; a mask leaves entries of a residual out."""

    sources: Sequence[StoredWeights]
    shares: Share
    masks: Masks = lambda name: None

    def of_tensor(self, slot: TensorSlot) -> Iterator[Tensor]:
        """Yield a tensor a few rows at a time: a sum in fp32, rounded once.

        Integers, and what another source lacks, stay the student's.
        """
        dtype = DTYPES[slot.dtype]
        if not dtype.is_floating_point or any(slot.name not in one.slots for one in self.sources):
            yield from (self.sources[0].read(slot.name, rows).to(dtype) for rows in _chunks(slot.shape))
            return
        own, *others = self.shares(slot.name)
        mask = self.masks(slot.name)
        for rows in _chunks(slot.shape):
            student, *added = (one.read(slot.name, rows) for one in self.sources)
            if mask is not None:
                left_out = ~mask(student, *added)
                added = [one.masked_fill(left_out, 0) for one in added]
            merged = student * own
            for one, share in zip(added, others, strict=True):
                merged.add_(one, alpha=share)
            yield merged.to(dtype)


def _write(sums: Sums, target: Path, on_tensor: OnTensor | None) -> None:
    """Write files with the student's headers, so that each tensor lies where its slot says."""
    student = sums.sources[0]
    done = 0
    for file in student.files:
        slots = sorted((s for s in student.slots.values() if s.file == file), key=lambda slot: slot.start)
        with file.open("rb") as old, (target / file.name).open("wb") as new:
            new.write(old.read(slots[0].start if slots else -1))
            for slot in slots:
                for rows in sums.of_tensor(slot):
                    new.write(rows.contiguous().reshape(-1).view(torch.uint8).numpy().data)
                done += 1
                if on_tensor:
                    on_tensor(done, len(student.slots))
