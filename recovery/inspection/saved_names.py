"""Foresee, by names alone, whether a model can be merged once it is trained.

Merging pairs tensors by their names in the files. A trained model is saved under the names that transformers
gives: with a prefix where the files had none, and unpacked where they were packed in 4 bits.
"""

from __future__ import annotations

from pathlib import Path

from recovery.errors import InputError
from recovery.models.adapter_deltas import skeleton
from recovery.models.hub import explained
from recovery.models.merging import TIED, StoredWeights, mergeable
from recovery.models.saving import checkpoint_tensors, left_out

BLOCKS, SCALES = "_blocks", "_scales"  # end the names of the two tensors that MXFP4 makes of one


def require_mergeable_once_trained(
    student: Path, clean: Path, *, adapter: bool, trust_remote_code: bool = False
) -> None:
    """Refuse a whole model that surely cannot be merged with `clean`, now or once it is trained: all of it,
    or a fresh `adapter` on its linear layers."""
    mine, theirs = mergeable((student, clean), trust_remote_code)
    try:
        saved = saved_names(mine)
    except InputError:  # it cannot be built without its numbers, so nothing is sure
        return
    stored = set((mine if adapter else theirs).slots)
    renamed = saved - stored
    if renamed and not (adapter and saved & (stored - TIED)):
        raise InputError(
            f"merge: once trained, the model is saved with {min(renamed)}, a name that the files it came in "
            "lack, so the two cannot be merged: recover by a method (`recover methods`), or make a home with "
            "a copy of the model that transformers has saved"
        )


def saved_names(model: StoredWeights) -> set[str]:
    """Return the names that saving a whole trained model writes; where some are packed now, those alone."""
    blocks = {name.removesuffix(BLOCKS) for name in model.slots if name.endswith(BLOCKS)}
    packed = {name for name in blocks if name + SCALES in model.slots}
    if packed:
        return packed
    with explained(str(model.base), "model"):
        empty = skeleton(model.base, model.trust_remote_code)
        return set(checkpoint_tensors(empty)) - left_out(empty)
