"""Parts of a model: every tensor is in one of them, and their distances are those worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from recovery.errors import InputError
from recovery.inspection.weight_parts import names, parts
from recovery.models.merging import put_back
from tests.support import tiny

LLAMA = [
    "model.embed_tokens.weight",
    *(f"model.layers.{n}.self_attn.q_proj.{kind}" for n in range(5) for kind in ("weight", "bias")),
    *(f"model.layers.{n}.input_layernorm.weight" for n in range(5)),
    "model.norm.weight",
    "lm_head.weight",
]
ENDS = {"model.embed_tokens.weight": "embeddings", "lm_head.weight": "head"}


def test_layers_are_grouped_and_norms_stand_apart() -> None:
    found = names(LLAMA, ENDS, groups=2)
    assert list(found) == ["embeddings", "layers 0-2", "layers 3-4", "norms", "head"]
    assert len(found["layers 0-2"]) == 6 and len(found["norms"]) == 6
    assert sorted(name for inside in found.values() for name in inside) == sorted(LLAMA)


@pytest.mark.parametrize(("groups", "expected"), [(1, 1), (3, 3), (5, 5), (64, 5)])
def test_there_are_at_most_so_many_groups(groups: int, expected: int) -> None:
    found = names(LLAMA, ENDS, groups)
    assert len([name for name in found if name.startswith("layer")]) == expected


def test_another_architectures_names() -> None:
    tensors = ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight"]
    tensors += ["transformer.h.0.mlp.c_fc.bias", "transformer.ln_f.weight"]
    found = names(tensors, {"transformer.wte.weight": "embeddings"}, groups=4)
    assert {name: len(inside) for name, inside in found.items()} == {
        "embeddings": 1,
        "layer 0": 1,
        "norms": 2,
        "other": 1,
    }


def moved(folder: Path, name: str, factor: float) -> Path:
    """Scale one tensor of a saved model."""
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: tensors[name] * factor}, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_distances_and_counts(tmp_path: Path) -> None:
    clean = tiny.save(tmp_path / "clean", tie_word_embeddings=False)
    student = moved(tiny.save(tmp_path / "student", tie_word_embeddings=False), "lm_head.weight", 1.5)
    found = {part.name: part for part in parts(student, clean, groups=2)}
    assert list(found) == ["embeddings", "layer 0", "layer 1", "norms", "head"]
    assert found["head"].moved == pytest.approx(0.5)
    assert found["head"].weights == 259 * 32
    assert [part.name for part in found.values() if part.moved] == ["head"]
    whole = sum(tensor.numel() for tensor in load_file(clean / "model.safetensors").values())
    assert sum(part.weights for part in found.values()) == whole


def test_a_tied_head_belongs_to_the_embeddings(tmp_path: Path) -> None:
    clean = tiny.save(tmp_path / "clean")
    assert "head" not in {part.name for part in parts(clean, clean, groups=1)}


def test_parts_put_back_are_the_clean_ones(tmp_path: Path) -> None:
    clean, student = tiny.save(tmp_path / "clean"), tiny.save(tmp_path / "student", seed=1)
    (layer,) = [part for part in parts(student, clean, groups=2) if part.name == "layer 1"]
    target = tmp_path / "mixed"
    target.mkdir()
    put_back(student, clean, target, layer.tensors)
    mixed, theirs, mine = (load_file(place / "model.safetensors") for place in (target, clean, student))
    for name, tensor in mixed.items():
        assert torch.equal(tensor, (theirs if name in layer.tensors else mine)[name])
    assert (target / "config.json").read_text() == (student / "config.json").read_text()


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    clean, wider = tiny.save(tmp_path / "clean"), tiny.save(tmp_path / "wider", intermediate_size=96)
    with pytest.raises(InputError, match="one architecture"):
        parts(clean, wider, groups=1)


def test_tensors_that_loading_ignores_are_in_no_part(tmp_path: Path) -> None:
    clean, trained = tiny.save(tmp_path / "clean"), tiny.save(tmp_path / "trained", seed=1)
    tensors = load_file(clean / "model.safetensors")
    save_file(tensors | {"mtp.x": torch.ones(3)}, clean / "model.safetensors", {"format": "pt"})
    for student, other in ((trained, clean), (clean, trained)):
        found = {name for part in parts(student, other, groups=2) for name in part.tensors}
        assert found == tensors.keys()
        target = tmp_path / f"{student.name}-mixed"
        target.mkdir()
        put_back(student, other, target, found)
        mixed, mine, theirs = (load_file(place / "model.safetensors") for place in (target, student, other))
        assert mixed.keys() == mine.keys()
        assert all(torch.equal(mixed[name], theirs[name]) for name in found)
