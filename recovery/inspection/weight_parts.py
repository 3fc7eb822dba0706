"""Divide a model's weights into embeddings, head, norms and groups of layers; measure how far each moved."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from recovery.errors import InputError
from recovery.models.merging import StoredWeights, inner_products, require_same, token_matrices

EMBEDDINGS, HEAD, NORMS, OTHER = "embeddings", "head", "norms", "other"
_LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.")
_NORM = re.compile(r"norm|(?:^|\.)ln_?\w*\.", re.IGNORECASE)
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.")


@dataclass(frozen=True)
class Part:
    """Some tensors of a model, and how far they are from those of another."""

    name: str
    tensors: frozenset[str]
    weights: int
    moved: float  # |student - other| / |other|


def parts(student: Path, other: Path, groups: int, trust_remote_code: bool = False) -> list[Part]:
    """Return the parts of two models of one architecture, with the layers in at most `groups` groups.

    A tensor that only one of them stores is in no part.
    """
    if groups < 1:
        raise InputError(f"groups={groups}: give at least one group of layers")
    mine, theirs = (StoredWeights(path, trust_remote_code) for path in (student, other))
    require_same(mine, theirs)
    shared = [name for name in mine.slots if name in theirs.slots]
    named = names(shared, _ends(mine), groups)
    return [
        Part(name, tensors, _count(mine, tensors), _distance(mine, theirs, tensors))
        for name, tensors in named.items()
    ]


def names(tensors: Iterable[str], ends: Mapping[str, str], groups: int) -> dict[str, frozenset[str]]:
    """Assign each tensor to its part, in the order in which a token passes through them.

    `ends` names the part of each matrix with a row for each token: embeddings or head.
    """
    tensors = list(tensors)
    group_of = _groups(sorted({layer for name in tensors if (layer := _layer(name)) is not None}), groups)
    order = (EMBEDDINGS, *group_of.values(), NORMS, HEAD, OTHER)
    found: dict[str, set[str]] = {part: set() for part in order}
    for name in tensors:
        found[_part(name, ends, group_of)].add(name)
    return {part: frozenset(inside) for part, inside in found.items() if inside}


def _groups(layers: list[int], groups: int) -> dict[int, str]:
    """Return the name of each layer's group: `layers 0-3`, or `layer 4` of one alone."""
    size = math.ceil(len(layers) / groups)
    found: dict[int, str] = {}
    for start in range(0, len(layers), size or 1):
        inside = layers[start : start + size]
        name = f"layer {inside[0]}" if len(inside) == 1 else f"layers {inside[0]}-{inside[-1]}"
        found |= dict.fromkeys(inside, name)
    return found


def _ends(model: StoredWeights) -> dict[str, str]:
    """Return the part of each matrix of tokens; a head that is tied to the embeddings belongs to them."""
    config = json.loads((model.base / "config.json").read_text(encoding="utf-8"))
    tied = bool(config.get("tie_word_embeddings"))
    found = token_matrices(model)
    return {name: HEAD if _HEAD.search(name) and not tied else EMBEDDINGS for name in found}


def _part(name: str, ends: Mapping[str, str], group_of: Mapping[int, str]) -> str:
    layer = _layer(name)
    if name in ends:
        return ends[name]
    if _NORM.search(name):
        return NORMS
    return OTHER if layer is None else group_of[layer]


def _layer(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found[1]) if found else None


def _count(model: StoredWeights, tensors: Iterable[str]) -> int:
    return sum(math.prod(model.slots[name].shape) for name in tensors)


def _distance(mine: StoredWeights, theirs: StoredWeights, tensors: Iterable[str]) -> float:
    square = length = 0.0
    for name in tensors:
        dot, square_a, square_b = inner_products(mine, theirs, name)
        square += max(0.0, square_a - 2 * dot + square_b)
        length += square_b
    return math.sqrt(square / length) if length else 0.0
