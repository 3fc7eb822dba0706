"""What a trained model's names make impossible is foreseen from the files that it came in."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from recovery.errors import InputError
from recovery.inspection.saved_names import require_mergeable_once_trained, saved_names
from recovery.models.adapters import LoraSpec
from recovery.models.loading import ModelSpec, load
from recovery.models.merging import StoredWeights, mergeable
from recovery.models.saving import save
from tests.support import families, tiny
from tests.support.families import FAMILIES, Family

FAST = [family for family in FAMILIES if family.fast]


def refuses(check: Callable[[], object]) -> bool:
    try:
        check()
    except InputError:
        return True
    return False


@pytest.mark.parametrize("family", FAST, ids=lambda family: family.name)
def test_what_is_foreseen_is_what_saving_and_merging_do(family: Family, tmp_path: Path) -> None:
    source = families.save(family, tmp_path / "model")
    save(load(ModelSpec(str(source))), tmp_path / "saved")
    assert saved_names(StoredWeights(source)) == set(StoredWeights(tmp_path / "saved").slots)
    foreseen = partial(require_mergeable_once_trained, source, source, adapter=False)
    assert refuses(foreseen) is refuses(lambda: mergeable((tmp_path / "saved", source)))


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=2)])
def test_a_model_whose_names_get_a_prefix_is_refused_before_it_is_trained(
    lora: LoraSpec | None, tmp_path: Path
) -> None:
    clean = tiny.unprefixed(tiny.save(tmp_path / "clean"))
    with pytest.raises(InputError, match=r"saved with model\.embed_tokens\.weight, a name that the files"):
        require_mergeable_once_trained(clean, clean, adapter=lora is not None)
    save(load(ModelSpec(str(clean), lora=lora)), tmp_path / "trained")
    with pytest.raises(InputError, match=r"merge: .*model\."):
        mergeable((tmp_path / "trained", clean))


@pytest.mark.parametrize("adapter", [False, True])
def test_weights_that_are_packed_in_4_bits_are_saved_unpacked(adapter: bool, tmp_path: Path) -> None:
    clean = tiny.save(tmp_path / "clean")
    require_mergeable_once_trained(clean, clean, adapter=adapter)
    tensors = load_file(clean / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    packed = tensors.pop(name).to(torch.uint8)
    tensors |= {f"{name}_blocks": packed, f"{name}_scales": packed.clone()}
    save_file(tensors, clean / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=rf"saved with {name}, a name that the files"):
        require_mergeable_once_trained(clean, clean, adapter=adapter)


def test_a_model_that_is_not_known_well_enough_is_let_through(tmp_path: Path) -> None:
    clean = tiny.unprefixed(tiny.save(tmp_path / "clean"))
    (clean / "config.json").write_text(json.dumps({"model_type": "of_its_own"}))
    require_mergeable_once_trained(clean, clean, adapter=False)
