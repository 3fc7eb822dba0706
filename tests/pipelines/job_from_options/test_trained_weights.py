"""Weights that a stage could not train are refused before any stage begins."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from db.reads import queries
from pipelines.config.fitted import Machine
from pipelines.config.overrides import changed
from pipelines.config.sections.training import LoraConfig
from pipelines.config.settings import CONFIG_NAME, Config
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job, retrieval_job
from pipelines.job_from_options.pilot import pilot_job
from pipelines.job_from_options.train import distill_job, merge_job, midtrain_job
from pipelines.job_from_options.trained_weights import _require_modules, require_sampled
from pipelines.merge import merge
from pipelines.runs.workspace import Workspace
from recovery.command_line import command
from recovery.errors import InputError
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import ModelSpec, load
from recovery.models.saving import save
from tests.support import families, tiny
from tests.support.small_cycles import turned


def test_ranks_that_recovery_could_not_train_are_refused_before_the_cycle(ws: Workspace, docs: Path) -> None:
    ranks: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": {"rank": 4}}
    with pytest.raises(InputError, match=r"distill\.lora: the adapter to train will be of rank 2"):
        cycle_job(ws, docs, changes=ranks)
    cycle_job(ws, docs, changes=ranks | {"distill.lora": {"rank": 2}})


def test_a_rank_that_follows_from_the_memory_counts(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"midtrain.lora": "auto", "distill.lora": {"rank": 4}}
    cycle_job(ws, docs, changes=changes)  # all weights are trained
    monkeypatch.setattr("pipelines.machine.fitting.this_machine", lambda model: Machine(1.0))
    with pytest.raises(InputError, match=r"distill\.lora: the adapter to train will be of rank 128"):
        cycle_job(ws, docs, changes=changes)


@pytest.mark.parametrize("stage", ["midtrain", "distill"])
def test_modules_that_the_model_does_not_have_are_refused(ws: Workspace, docs: Path, stage: str) -> None:
    with pytest.raises(InputError, match=rf"{stage}\.lora: .*q_project"):
        cycle_job(ws, docs, changes={f"{stage}.lora": {"rank": 2, "targets": ["q_project"]}})
    cycle_job(ws, docs, changes={f"{stage}.lora": {"rank": 2, "targets": ["q_proj"]}})
    with pytest.raises(InputError, match=r"midtrain\.lora: .*q_project"):
        midtrain_job(ws, docs, changes={"midtrain.lora": {"rank": 2, "targets": ["q_project"]}})


def test_dropout_on_experts_is_refused_before_any_stage(ws: Workspace, docs: Path, tmp_path: Path) -> None:
    """It was when midtraining, or recovery behind it, loaded its model."""
    model = families.save(families.named("GPT-OSS"), tmp_path / "experts")
    student: Any = SimpleNamespace(path=model, base=None)
    with pytest.raises(InputError, match=r"lora\.dropout does not work on experts"):
        _require_modules(student, "distill", LoraConfig(rank=2, dropout=0.1))
    _require_modules(student, "distill", LoraConfig(rank=2))
    dropping = {"rank": 2, "dropout": 0.1}
    cycle_job(ws, docs, changes={"midtrain.lora": dropping, "distill.lora": dropping})  # on no experts


@pytest.mark.parametrize("sampler", ["vllm", "server", "http://127.0.0.1:9"])
def test_an_adapter_on_routed_experts_is_sampled_in_this_process(
    ws: Workspace, tmp_path: Path, sampler: str
) -> None:
    """vLLM, which takes adapters on linear layers alone, refused its files after midtraining."""
    model = families.save(families.named("Qwen 3 MoE"), tmp_path / "experts")
    student: Any = SimpleNamespace(path=model, base=None)

    def check(where: str, student: Any = student, **lora: Any) -> None:
        changes = {"distill.sampler": where, "eval.sampler": where, "midtrain.lora": None, **lora}
        require_sampled(
            ws, student, changed(ws.config, changes), ["midtrain", "distill"], ["distill", "eval"]
        )

    adapter: dict[str, Any] = {"distill.lora": {"rank": 2}}
    with pytest.raises(
        InputError, match=r"^distill\.sampler: .*\[q_proj.*distill\.sampler and eval\.sampler"
    ):
        check(sampler, **adapter)
    check("inprocess", **adapter)
    check(sampler, **{"distill.lora": None})
    check(sampler, **{"distill.lora": {"rank": 2, "targets": ["q_proj"]}})
    named = {"rank": 2, "targets": ["q_proj", "gate_proj", "up_proj", "down_proj"]}
    with pytest.raises(
        InputError, match=r"^distill\.sampler: .*routed experts"
    ):  # these are the experts' names
        check(sampler, **{"distill.lora": named})
    check(sampler, ws.clean(), **adapter)  # no experts
    there = tmp_path / "adapter"
    save(add_lora(load(ModelSpec(str(model))), LoraSpec(rank=2)), there)
    with pytest.raises(InputError, match=r"^distill\.sampler: .*merge it first"):
        check(sampler, SimpleNamespace(path=there, base="experts"))
    experts = load(ModelSpec(str(model), lora=LoraSpec(rank=2)))
    trained = ws.publish(experts, parent=ws.clean(), run_id=None, config={}).id
    with pytest.raises(InputError, match=r"^eval\.sampler: .*merge it first"):
        eval_job(ws, trained, changes={"eval.sampler": sampler})


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_an_adapter_on_the_embeddings_or_the_head_is_sampled_in_this_process(
    ws: Workspace, module: str
) -> None:
    """vLLM left its tensors out without a word, and the canary blamed other things at the second step."""
    lora = {"rank": 2, "targets": ["q_proj", module]}
    with pytest.raises(
        InputError, match=r"^distill\.sampler: .*the embeddings or the head: set lora\.targets"
    ):
        require_sampled(ws, ws.clean(), _sampled_apart(ws, lora), ["distill"], ["distill"])
    adapters = [
        ws.publish(
            load(ModelSpec(str(ws.clean().path), lora=LoraSpec(rank=2, targets=targets))),
            parent=ws.clean(),
            run_id=None,
            config={},
        )
        for targets in (("q_proj",), ("q_proj", module))
    ]
    plain, beyond = (ws.checkpoint(adapter.id) for adapter in adapters)
    settings = _sampled_apart(ws, None)
    require_sampled(ws, plain, settings, ["distill"], ["distill"])
    with pytest.raises(InputError, match=r"^distill\.sampler: .* or the head: merge it first"):
        require_sampled(ws, beyond, settings, ["distill"], ["distill"])


def _sampled_apart(ws: Workspace, lora: Any, where: str = "server") -> Config:
    """The home's settings with this adapter in recovery alone, and both samplers there."""
    changes = {"distill.sampler": where, "eval.sampler": where, "midtrain.lora": None, "distill.lora": lora}
    return changed(ws.config, changes)


def test_recovery_goes_on_with_the_modules_of_midtrainings_adapter(ws: Workspace, tmp_path: Path) -> None:
    """Its own ones, all linear layers where none are named, were refused for their experts."""
    model = families.save(families.named("Qwen 3 MoE"), tmp_path / "experts")
    student: Any = SimpleNamespace(path=model, base=None)
    settings = _sampled_apart(ws, {"rank": 2})
    attention = changed(settings, {"midtrain.lora": {"rank": 2, "targets": ["q_proj"]}})
    require_sampled(ws, student, attention, ["midtrain", "distill"], ["distill"])
    with pytest.raises(InputError, match="routed experts"):
        require_sampled(ws, student, settings, ["midtrain", "distill"], ["distill"])


def test_whole_weights_that_are_stored_in_four_bits_are_sampled_in_this_process(
    ws: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM started with GPT-OSS as published, in MXFP4, and failed at the first bfloat16 weight."""
    clean, unpacked = ws.clean(), families.save(families.named("GPT-OSS"), tmp_path / "unpacked")
    lora = load(ModelSpec(str(clean.path), lora=LoraSpec(rank=2)))
    adapter = ws.checkpoint(ws.publish(lora, parent=clean, run_id=None, config={}).id)
    stored: Any = SimpleNamespace(id="published", path=_in_mxfp4(unpacked, tmp_path / "stored"), base=None)
    monkeypatch.setattr(Workspace, "clean", lambda _: stored)
    cycle = ["midtrain", "distill"], ["distill", "eval"]
    alone: tuple[list[str], list[str]] = [], ["eval"]
    for stages, samplers in (alone, (["distill"], ["distill"]), (["midtrain"], ["eval"]), cycle):
        why = rf"^{samplers[0]}\.sampler: vLLM holds published in MXFP4, .* in bfloat16, or set {samplers[0]}"
        with pytest.raises(InputError, match=why):
            require_sampled(ws, stored, _sampled_apart(ws, None), stages, samplers)
        require_sampled(ws, stored, _sampled_apart(ws, None, "inprocess"), stages, samplers)
    attention = _sampled_apart(ws, {"rank": 2, "targets": ["q_proj"]})
    require_sampled(ws, stored, attention, ["distill"], ["distill"])  # the adapter alone is sent
    require_sampled(ws, stored, _sampled_apart(ws, None), ["midtrain", "distill"], ["distill"])
    require_sampled(ws, adapter, _sampled_apart(ws, None), [], ["eval"])
    midtrained: Any = SimpleNamespace(id="midtrained", path=unpacked, base=None)
    require_sampled(ws, midtrained, _sampled_apart(ws, None), [], ["eval"])
    with pytest.raises(InputError, match=r"^eval\.sampler: vLLM holds published in MXFP4"):
        retrieval_job(ws, adapter.id, None, 3, changes={"eval.sampler": "server"})


def _in_mxfp4(source: Path, target: Path) -> Path:
    """Copy a model, and say in its config.json that its weights are in MXFP4, as GPT-OSS is published."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (target / "config.json").write_text(json.dumps(config))
    return target


def test_an_adapter_on_another_model_than_the_clean_one_is_not_mixed_with_it(
    ws: Workspace, docs: Path
) -> None:
    changes: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": "auto", "distill.merge": 0.5}
    cycle_job(ws, docs, changes=changes)
    student = turned(ws, docs, suites="ifeval")["checkpoints"]["midtrained"]
    with pytest.raises(InputError, match=r"distill\.merge: .*another model than the clean one"):
        cycle_job(ws, docs, student=student, changes=changes)
    cycle_job(ws, docs, student=student, changes=changes | {"distill.merge": 0.0})
    unread = changes | {"distill.lora": {"rank": 2, "targets": ["q_project"]}, "distill.merge": 0.0}
    cycle_job(ws, docs, changes=unread)  # recovery keeps the modules of midtraining's adapter
    cycle_job(ws, docs, student=student, recover_with="merge", changes=changes)
    assert len([run for run in queries.runs(ws.tracker.db) if run["kind"] == "cycle"]) == 1


def test_an_adapter_that_goes_on_in_place_of_all_weights_is_said(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = add_lora(ws.load(ws.clean()), LoraSpec(rank=2))
    adapter = ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def about_lora(build: Callable[..., Any], student: str, **changes: Any) -> list[str]:
        said.clear()
        build(ws, docs, student=student, changes=changes)
        return [line for line in said if line.startswith("  lora")]

    builds: tuple[Callable[..., Any], ...] = (midtrain_job, cycle_job)
    for build in builds:
        (line,) = about_lora(build, adapter)
        assert "midtrain.lora is null, but the student's adapter goes on" in line
        assert f"`{command(ws.home, 'merge', '--student', adapter, '--weight', '0')}`" in line
        assert about_lora(build, "base") == []
        assert about_lora(build, adapter, **{"midtrain.lora": "auto"}) == []


def test_an_adapter_from_elsewhere_is_trained_once_it_is_merged(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    """What was trained on it named the adapter as its base, and could not be loaded after hours."""
    lora = str(tmp_path / "lora")
    save(add_lora(ws.load(ws.clean()), LoraSpec(rank=2)), Path(lora))
    builds: tuple[Callable[[], object], ...] = (
        lambda: cycle_job(ws, docs, student=lora),
        lambda: midtrain_job(ws, docs, lora),
        lambda: distill_job(ws, "base", lora, docs=docs),
        lambda: pilot_job(ws, docs, 50.0, student=lora),
    )
    for build in builds:
        with pytest.raises(InputError, match=r"has not trained: merge it first \(`recover .*--weight 0`\)"):
            build()
    merged = merge(ws, merge_job(ws, 0.0, student=lora))["checkpoint"]
    assert midtrain_job(ws, docs, merged).student == merged


def names_another(ws: Workspace, before: str, after: str) -> None:
    """Edit the model in recover.yaml."""
    path = ws.home / CONFIG_NAME
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    vars(ws).pop("config", None)


def refused_by_every_training(ws: Workspace, docs: Path, said: str) -> None:
    for build in (
        lambda: cycle_job(ws, docs),
        lambda: midtrain_job(ws, docs),
        lambda: distill_job(ws, "base", "base", docs=docs),
        lambda: pilot_job(ws, docs, 50.0),
    ):
        with pytest.raises(InputError, match=said):
            build()


def test_another_model_than_the_registered_one_is_not_trained_without_a_word(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    model, other = ws.config.model.path, tiny.save(tmp_path / "other", seed=1)
    names_another(ws, f'"{model}"', f'"{other}"')
    named = rf"names model\.path {re.escape(str(other))}, but this home was made with {re.escape(model)}:"
    refused_by_every_training(ws, docs, named)
    moved = shutil.copytree(model, tmp_path / "moved")
    names_another(ws, f'"{other}"', f'"{moved}"')
    cycle_job(ws, docs)  # the same model, in another place


def test_another_revision_than_the_registered_one_is_not_trained_without_a_word(
    ws: Workspace, docs: Path
) -> None:
    model = ws.config.model.path
    names_another(ws, f'path: "{model}"', f'path: "{model}"\n  revision: v2')
    refused_by_every_training(ws, docs, r"names model\.revision v2, but this home was made with none:")
