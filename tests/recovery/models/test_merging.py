"""Merged weights against numbers worked by hand and against transformers; a sweep's points and front."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from db.reads import queries
from pipelines.config.jobs import MergeJob, SweepJob
from pipelines.config.overrides import override
from pipelines.distill import distill
from pipelines.machine.init_home import initialise
from pipelines.merge import merge
from pipelines.runs.workspace import Workspace
from pipelines.sweep import pareto, sweep
from recovery.errors import InputError
from recovery.forward.hidden_states import is_adapter
from recovery.models import merging
from recovery.models.adapter_deltas import Experts, LowRank
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import ModelSpec, load
from recovery.models.merging import StoredWeights, arc_shares, merge_weights
from recovery.models.saving import save
from recovery.models.task_vectors import Residual
from tests.support import stages, tiny
from tests.support.stages import PRESET
from tests.support.weight_reads import watched_reads

STUDENT = {"a": torch.tensor([[3.0, 0.0], [0.0, 0.0]]), "b": torch.tensor([1.0]), "n": torch.tensor([7])}
OTHER = {"a": torch.tensor([[0.0, 3.0], [0.0, 0.0]]), "b": torch.tensor([3.0]), "n": torch.tensor([9])}
ORIGIN = {"a": torch.tensor([[0.0, 1.0], [0.0, 0.0]]), "b": torch.tensor([2.0]), "n": torch.tensor([9])}


def stored(directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    save_file(tensors, directory / "model.safetensors")
    return directory


def merged(tmp_path: Path, weight: float, kind: str) -> dict[str, torch.Tensor]:
    parts = [stored(tmp_path / n, t) for n, t in (("s", STUDENT), ("o", OTHER), ("from", ORIGIN))]
    (tmp_path / "made").mkdir()
    residual = Residual(parts[2]) if kind == "residual" else None
    merge_weights(parts[0], parts[1], tmp_path / "made", weight, kind, residual=residual)
    assert (tmp_path / "made" / "config.json").read_text() == "{}"
    return load_file(tmp_path / "made" / "model.safetensors")


@pytest.mark.parametrize(
    ("kind", "weight", "first_row", "b"),
    [
        ("linear", 0.25, [2.25, 0.75], 1.5),
        ("slerp", 0.5, [3 / math.sqrt(2), 3 / math.sqrt(2)], 2.0),  # a right angle; b is parallel: linear
        ("slerp", 1 / 3, [3 * math.cos(math.pi / 6), 1.5], 1 + 2 / 3),
        ("residual", 0.5, [3.0, 1.0], 1.5),
    ],
)
def test_each_kind_by_hand(
    kind: str, weight: float, first_row: list[float], b: float, tmp_path: Path
) -> None:
    made = merged(tmp_path, weight, kind)
    torch.testing.assert_close(made["a"], torch.tensor([first_row, [0.0, 0.0]]))
    torch.testing.assert_close(made["b"], torch.tensor([b]))
    assert made["n"].tolist() == [7]  # what is no fraction stays the student's


@given(*[st.floats(low, high, allow_subnormal=False) for low, high in ((-1, 1), (0.1, 9), (0.1, 9), (0, 1))])
def test_the_arc_keeps_the_ends_and_the_length_of_unit_tensors(
    cosine: float, one: float, other: float, weight: float
) -> None:
    assert arc_shares(cosine * one * other, one**2, other**2, 0.0) == pytest.approx((1, 0))
    assert arc_shares(cosine * one * other, one**2, other**2, 1.0) == pytest.approx((0, 1))
    a, b = arc_shares(cosine, 1.0, 1.0, weight)
    if cosine > -0.99:
        assert a * a + b * b + 2 * a * b * cosine == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("kind", ["linear", "slerp"])
def test_rows_at_a_time_change_nothing(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tiny.save(tmp_path / "one"), tiny.save(tmp_path / "other", seed=1)
    for name, chunk in (("whole", 2**24), ("rows", 100)):
        monkeypatch.setattr(merging, "CHUNK", chunk)
        (tmp_path / name).mkdir()
        merge_weights(one, other, tmp_path / name, 0.3, kind)
    whole, rows = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "rows"))
    for name, tensor in whole.items():
        torch.testing.assert_close(tensor, rows[name])


def test_memory_is_a_few_chunks_however_large_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "CHUNK", 1000)
    sizes = watched_reads(monkeypatch)
    one, other = tiny.save(tmp_path / "one"), tiny.save(tmp_path / "other", seed=1)
    (tmp_path / "made").mkdir()
    merge_weights(one, other, tmp_path / "made", 0.3, "slerp")
    assert max(sizes) <= 1000 and sum(sizes) > 10_000


def test_shards_and_their_index_are_kept(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    tiny.model(0).save_pretrained(one, max_shard_size="20KB")
    tiny.tokenizer().save_pretrained(one)
    tiny.save(other, seed=1)
    (tmp_path / "made").mkdir()
    merge_weights(one, other, tmp_path / "made", 1.0)
    assert len(list((tmp_path / "made").glob("*.safetensors"))) > 1
    made, wanted = load(ModelSpec(str(tmp_path / "made"))).model, load(ModelSpec(str(other))).model
    for name, tensor in wanted.state_dict().items():
        torch.testing.assert_close(made.state_dict()[name], tensor)


def test_an_adapter_counts_with_its_base(tmp_path: Path) -> None:
    base, other = tiny.save(tmp_path / "base"), tiny.save(tmp_path / "other", seed=1)
    chat = add_lora(load(ModelSpec(str(base))), LoraSpec(rank=2, alpha=6))
    with torch.no_grad():
        for parameter in chat.model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    save(chat, tmp_path / "adapter")
    (tmp_path / "made").mkdir()
    merge_weights(tmp_path / "adapter", other, tmp_path / "made", 0.25)
    wanted, theirs = chat.model.merge_and_unload(), load(ModelSpec(str(other))).model
    made = load(ModelSpec(str(tmp_path / "made")))
    for name, parameter in made.model.named_parameters():
        expected = 0.75 * wanted.get_parameter(name) + 0.25 * theirs.get_parameter(name)
        torch.testing.assert_close(parameter, expected)


@pytest.mark.parametrize("adapter", [False, True])
def test_a_merged_model_keeps_its_templates_by_name(tmp_path: Path, adapter: bool) -> None:
    named = {"default": tiny.TEMPLATE, "tool_use": f"{{# tools #}}{tiny.TEMPLATE}"}
    student = base = tiny.save(tmp_path / "base")
    tiny.tokenizer(chat_template=named).save_pretrained(base)
    (base / "chat_template.json").write_text("{}")  # a processor's, refused beside templates by name
    if adapter:  # on a model as published, which lists them in one file
        templates = [{"name": name, "template": template} for name, template in named.items()]
        settings = json.loads((base / "tokenizer_config.json").read_text())
        (base / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": templates}))
        (base / "chat_template.jinja").unlink()
        shutil.rmtree(base / "additional_chat_templates")
        student = tmp_path / "adapter"
        save(add_lora(load(ModelSpec(str(base))), LoraSpec(rank=2)), student)
    (tmp_path / "made").mkdir()
    merge_weights(student, base, tmp_path / "made", 0.0)
    assert load(ModelSpec(str(tmp_path / "made"))).tokenizer.chat_template == named
    assert not (tmp_path / "made" / "chat_template.json").exists()


def test_an_adapter_on_a_tensor_that_the_base_stores_quantised_is_refused(tmp_path: Path) -> None:
    base = tiny.save(tmp_path / "base")
    save(add_lora(load(ModelSpec(str(base))), LoraSpec(rank=2)), tmp_path / "adapter")
    tensors = load_file(base / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[f"{name}_blocks"] = tensors.pop(name).to(torch.uint8)  # as GPT-OSS stores its experts
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=rf"its adapter changes {name}, which .*base does not store"):
        merge_weights(tmp_path / "adapter", tmp_path / "adapter", tmp_path, 0.5)


@pytest.mark.parametrize("inputs_last", [True, False])
def test_only_the_experts_that_are_asked_for_are_computed(
    inputs_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    a_RI, b_OR = torch.randn(3 * 2, 5), torch.randn(4, 2 * 3)  # three experts of rank two
    experts = Experts(LowRank(a_RI, b_OR, 0.5), 3, inputs_last)
    by_hand = torch.stack([0.5 * b_OR[:, e::3] @ a_RI[2 * e : 2 * e + 2] for e in range(3)])
    whole = by_hand if inputs_last else by_hand.mT
    made: list[int] = []
    einsum = torch.einsum

    def counted(*given: Any) -> torch.Tensor:
        found: torch.Tensor = einsum(*given)
        made.append(len(found))
        return found

    monkeypatch.setattr(torch, "einsum", counted)
    for rows in (slice(None), slice(0, 1), slice(1, 3)):
        torch.testing.assert_close(experts.rows(rows), whole[rows])
    assert made == [3, 1, 2]


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_head_alone_can_be_mixed(tmp_path: Path, tied: bool) -> None:
    one = tiny.save(tmp_path / "one", tie_word_embeddings=tied)
    other = tiny.save(tmp_path / "other", seed=1, tie_word_embeddings=tied)
    (tmp_path / "made").mkdir()
    merge_weights(one, other, tmp_path / "made", 0.75, "embeddings")
    made, mine, theirs = (
        dict(load(ModelSpec(str(path))).model.named_parameters()) for path in (tmp_path / "made", one, other)
    )
    ends = {"model.embed_tokens.weight"} | (set() if tied else {"lm_head.weight"})
    assert ends < made.keys()
    for name, parameter in made.items():
        mixed = 0.25 * mine[name] + 0.75 * theirs[name]
        torch.testing.assert_close(parameter, mixed if name in ends else mine[name])


def test_the_number_of_tokens_may_be_left_to_the_models_class(tmp_path: Path) -> None:
    """As in the published files of Gemma 3, whose vocabulary is its class's default."""
    one = tiny.save(tmp_path / "one")
    settings = json.loads((one / "config.json").read_text())
    default = type(AutoConfig.from_pretrained(one))().vocab_size
    del settings["vocab_size"]
    (one / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=f"no matrix has a row for each of the {default} tokens"):
        merging.token_matrices(StoredWeights(one))


def test_a_model_whose_embeddings_cannot_be_told_is_refused(tmp_path: Path) -> None:
    one = tiny.save(tmp_path / "one")
    settings = json.loads((one / "config.json").read_text())
    (one / "config.json").write_text(json.dumps(settings | {"vocab_size": 7}))
    with pytest.raises(InputError, match="no matrix has a row for each of the 7 tokens"):
        merge_weights(one, one, tmp_path, 0.5, "embeddings")


def with_tensors(folder: Path, **further: torch.Tensor) -> Path:
    """Add tensors to a model's file, as published files hold some that loading ignores."""
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | further, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize("kind", ["linear", "slerp", "residual", "embeddings"])
def test_tensors_that_loading_ignores_stay_the_students(kind: str, tmp_path: Path) -> None:
    clean = with_tensors(tiny.save(tmp_path / "clean"), **{"mtp.x": torch.ones(3)})
    chat = load(ModelSpec(str(clean)))
    with torch.no_grad():
        for parameter in chat.model.parameters():
            parameter.mul_(2)
    trained = tmp_path / "trained"
    save(chat, trained)
    for student, other in ((trained, clean), (clean, trained)):
        target = tmp_path / f"{student.name}-made"
        target.mkdir()
        residual = Residual(student) if kind == "residual" else None
        merge_weights(student, other, target, 0.25, kind, residual=residual)
        made, mine, theirs = (load_file(at / "model.safetensors") for at in (target, student, other))
        assert made.keys() == mine.keys()
        assert made.get("mtp.x", torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
        name = "model.embed_tokens.weight"
        torch.testing.assert_close(made[name], 0.75 * mine[name] + 0.25 * theirs[name])
        load(ModelSpec(str(target)))


def test_tensors_that_loading_reads_must_be_in_both_models(tmp_path: Path) -> None:
    plain, deeper = tiny.save(tmp_path / "plain"), tiny.save(tmp_path / "deeper", num_hidden_layers=3)
    clean = with_tensors(tiny.save(tmp_path / "clean"), **{"mtp.x": torch.ones(3)})
    for student, other in ((clean, deeper), (deeper, clean)):
        with pytest.raises(InputError, match=r"different tensors, as model\.layers\.2\.input_layernorm\.w"):
            merge_weights(student, other, tmp_path, 0.5)
    head = load_file(plain / "model.safetensors")["model.embed_tokens.weight"].clone()
    twice = with_tensors(tiny.save(tmp_path / "twice"), **{"lm_head.weight": head})
    with pytest.raises(InputError, match=r"different tensors, as lm_head\.weight"):
        merge_weights(twice, plain, tmp_path, 0.5)  # the copy would no longer be one
    (tmp_path / "made").mkdir()
    merge_weights(plain, twice, tmp_path / "made", 0.5)


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    one, wide = tiny.save(tmp_path / "one"), tiny.save(tmp_path / "wide", hidden_size=48)
    with pytest.raises(InputError, match=r"different tensors, as model\.embed_tokens\.weight"):
        merge_weights(one, wide, tmp_path, 0.5)
    with pytest.raises(InputError, match="residual"):
        merge_weights(one, one, tmp_path, 0.5, "residual")
    save(add_lora(load(ModelSpec(str(one))), LoraSpec(rank=2)), tmp_path / "adapter")
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    with pytest.raises(InputError, match="only plain LoRA adapters can be merged, not use_dora"):
        merge_weights(tmp_path / "adapter", one, tmp_path, 0.5)
    nameless = settings | {"base_model_name_or_path": None}  # as peft writes where a model has no name
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(nameless))
    with pytest.raises(InputError, match="names no base model"):
        merge_weights(tmp_path / "adapter", one, tmp_path, 0.5)


# ---- at the start of a distillation


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Workspace]:
    stages.write_prompts(tmp_path, 8)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        yield ws


def distilled(home: Workspace, folder: Path, student: str, **changes: Any) -> str:
    """A step of no size: what comes out is what training began with."""
    still = override(PRESET.distill.optimizer, {"learning_rate": 1e-12})
    settings = override(
        PRESET.distill,
        {
            "steps": 1,
            "prompts_per_step": 2,
            "max_new_tokens": 4,
            "optimizer": still,
            "preflight": False,
            "merge_of": "all",
            **changes,
        },
    )
    return str(distill(home, stages.distillation(folder, student, settings))["checkpoint"])


def test_a_distillation_begins_between_student_and_teacher(home: Workspace, tmp_path: Path) -> None:
    other = home.load(home.clean())
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(torch.randn_like(parameter))
    student = home.publish(other, parent=home.clean(), run_id=None, config={})
    kinds = {"all": "linear", "embeddings": "embeddings"}
    for share, of in ((0.0, "all"), (0.25, "all"), (1.0, "embeddings")):
        found = home.checkpoint(distilled(home, tmp_path, student.id, merge=share, merge_of=of))
        (tmp_path / f"file-{share}").mkdir()
        merge_weights(student.path, home.clean().path, tmp_path / f"file-{share}", share, kinds[of])
        wanted = load(ModelSpec(str(tmp_path / f"file-{share}"))).model
        for name, parameter in home.load(found).model.named_parameters():
            torch.testing.assert_close(parameter, wanted.get_parameter(name), rtol=1e-6, atol=1e-9)


def with_adapter(home: Workspace, parent: str) -> str:
    chat = add_lora(home.load(home.checkpoint(parent)), LoraSpec(rank=2))
    with torch.no_grad():
        for name, parameter in chat.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.5)
    below = home.checkpoint(parent)
    return home.publish(chat, parent=below, run_id=None, config={}).id


def test_an_adapter_on_the_teacher_begins_with_less_of_itself(home: Workspace, tmp_path: Path) -> None:
    student = with_adapter(home, "base")
    found = home.load(home.checkpoint(distilled(home, tmp_path, student, merge=0.2))).model
    assert is_adapter(found)
    halves = [parameter for name, parameter in found.named_parameters() if "lora_B" in name]
    assert halves
    for one in halves:
        torch.testing.assert_close(one.detach(), torch.full_like(one, 0.4))


def test_a_fresh_adapter_stands_on_the_mixture(home: Workspace, tmp_path: Path) -> None:
    other = home.load(home.clean())
    with torch.no_grad():
        other.model.get_parameter("model.norm.weight").mul_(3.0)
    student = home.publish(other, parent=home.clean(), run_id=None, config={}).id
    found = home.checkpoint(distilled(home, tmp_path, student, merge=0.5, lora={"rank": 2}))
    below = home.checkpoint(str(found.base))
    assert (found.kind, below.parent) == ("adapter", student)
    norm = home.load(below).model.get_parameter("model.norm.weight")
    torch.testing.assert_close(norm.detach(), torch.full((32,), 2.0))
    with pytest.raises(InputError, match="an adapter on another model than the teacher"):
        distilled(home, tmp_path, with_adapter(home, student), merge=0.5)


def test_a_teacher_of_another_shape_cannot_be_mixed_in(home: Workspace, tmp_path: Path) -> None:
    wide = home.store.reference(tiny.save(tmp_path / "wide", hidden_size=48))
    home.record(wide, None)
    with pytest.raises(InputError, match="different tensors"):
        distilled(home, tmp_path, wide.id, merge=0.5)


# ---- the sweep


def test_the_front_holds_what_no_other_beats() -> None:
    points = [[0.1, 0.9], [0.5, 0.9], [0.9, 0.1], [0.5, 0.5], [0.9, 0.1]]
    assert pareto(points) == [False, True, True, False, True]
    assert pareto([[0.4, None], [0.9, None]]) == [False, True]
    assert pareto([[None, None], [None, None]]) == [None, None]  # as where families alone were asked


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_front_is_never_empty_and_beats_the_rest(points: list[tuple[int, int]]) -> None:
    on = pareto([[float(a), float(b)] for a, b in points])
    front = [point for point, kept in zip(points, on, strict=True) if kept]
    assert front
    for point, kept in zip(points, on, strict=True):
        assert kept or any(a >= point[0] and b >= point[1] for a, b in front)


def test_a_sweep_records_every_point(tmp_path: Path) -> None:
    probes = tmp_path / "probes.jsonl"
    row = {"id": "1", "suite": "knowledge", "kind": "direct", "prompt": "Where is Ada?", "answer": "Rome"}
    probes.write_text(json.dumps(row))
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        other = ws.load(ws.clean())
        with torch.no_grad():
            other.model.get_parameter("model.norm.weight").mul_(1.5)
        student = ws.publish(other, parent=ws.clean(), run_id=None, config={})
        sizes = {"probe_max_new_tokens": 4, "max_new_tokens": 4, "limit": 2}
        measured = override(ws.config.eval, {"probes": str(probes), **sizes})
        job = SweepJob(
            student=student.id,
            other=ws.clean().id,
            weights=(0.25, 0.2500001, 0.5),
            suites=("knowledge", "json"),
            settings=measured,
        )
        found = sweep(ws, job, key="k")
        assert all(point["json"] is not None for point in found["points"])
        assert [point["weight"] for point in found["points"]] == [0.0, 0.25, 0.2500001, 0.5, 1.0]
        assert found["points"][0]["checkpoint"] == student.id
        assert len({point["checkpoint"] for point in found["points"]}) == 5  # close shares are not one
        half = ws.load(ws.checkpoint(found["points"][3]["checkpoint"]))
        torch.testing.assert_close(
            half.model.get_parameter("model.norm.weight"), torch.full((32,), 1.25), check_dtype=False
        )
        kinds = [row["kind"] for row in queries.runs(ws.tracker.db)]
        assert sorted(kinds) == ["eval"] * 5 + ["merge"] * 3 + ["sweep"]
        assert sweep(ws, job, key="k") == found  # done: nothing is repeated
        alone = MergeJob(student=student.id, other="base", weight=0.5)
        assert merge(ws, alone)["checkpoint"] == found["points"][3]["checkpoint"]  # addressed by content


def test_a_sweep_of_embeddings_mixes_them_alone_at_weight_one(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
        chat = ws.load(ws.clean())
        with torch.no_grad():
            for name in ("model.norm.weight", "model.embed_tokens.weight"):
                chat.model.get_parameter(name).mul_(1.5)
        ends = {"student": ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id}
        ends |= {"other": ws.clean().id, "kind": "embeddings"}
        job = SweepJob.model_validate(ends | {"weights": (0.5,), "suites": (), "settings": ws.config.eval})
        points = sweep(ws, job, key="k")["points"]
        assert [point["weight"] for point in points] == [0.0, 0.5, 1.0]
        alone = MergeJob.model_validate(ends | {"weight": 1.0})
        assert points[2]["checkpoint"] == merge(ws, alone)["checkpoint"] != ends["other"]
        whole, clean = (ws.load(ws.checkpoint(name)).model for name in (points[2]["checkpoint"], "base"))
        for name, share in (("model.norm.weight", 1.5), ("model.embed_tokens.weight", 1.0)):
            torch.testing.assert_close(whole.get_parameter(name), share * clean.get_parameter(name))
