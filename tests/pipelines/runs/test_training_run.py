"""What a stage trains, and what it leaves as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from db.reads import queries
from pipelines.config import fitted
from pipelines.config.jobs import MidtrainJob
from pipelines.config.overrides import override
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.sections.training import LoraConfig
from pipelines.distill import distill
from pipelines.distillation.teachers import trains_on_teacher
from pipelines.knowledge import embedding_shift
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.runs import training_run
from pipelines.runs.cost import Flops, Ledger, spent
from pipelines.runs.stage_runner import Stage
from pipelines.runs.workspace import Workspace
from pipelines.worker_process import Silent
from recovery.models.adapters import is_within_layers
from recovery.training.trainer import StopCheck, train
from tests.support import stages, tiny
from tests.support.stages import PRESET

ENDS = {"model.embed_tokens.weight", "lm_head.weight"}


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workspace]:
    stages.write_documents(tmp_path, 20)
    stages.write_prompts(tmp_path, 20)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model", tie_word_embeddings=request.param)))
        yield ws


def changed(home: Workspace, before: str, after: str) -> set[str]:
    """Names of the tensors that differ in any bit."""
    old, new = (home.load(home.checkpoint(name)).model.state_dict() for name in (before, after))
    return {name for name, tensor in new.items() if not torch.equal(tensor, old[name])}


def taught(home: Workspace, folder: Path, **changes: Any) -> str:
    settings = {"steps": 2, "tokens_per_step": 64, "row_tokens": 64, "forecast_every": 0, **changes}
    job = MidtrainJob(docs=str(folder / "docs"), student="base", settings=override(PRESET.midtrain, settings))
    return str(midtrain(home, job)["checkpoint"])


def recovered(home: Workspace, folder: Path, student: str, **changes: Any) -> str:
    settings = override(
        PRESET.distill,
        {
            "steps": 2,
            "prompts_per_step": 4,
            "max_new_tokens": 12,
            "merge": 0.0,
            "preflight": False,
            **changes,
        },
    )
    return str(distill(home, stages.distillation(folder, student, settings))["checkpoint"])


@pytest.mark.parametrize("freeze", [True, False])
def test_frozen_embeddings_do_not_move_by_a_bit(home: Workspace, tmp_path: Path, freeze: bool) -> None:
    start = taught(home, tmp_path, freeze_embeddings=freeze)
    end = recovered(home, tmp_path, start, freeze_embeddings=freeze)
    for moved in (changed(home, "base", start), changed(home, start, end)):
        assert moved - ENDS  # something was trained
        assert moved.isdisjoint(ENDS) if freeze else ENDS & moved


def test_tokens_that_were_read_are_told_from_the_others(home: Workspace, tmp_path: Path) -> None:
    start = taught(home, tmp_path, mix={"new": 1.0, "earlier": 0.0, "questions": 0.0})
    (run,) = queries.runs(home.tracker.db, kind="midtrain")
    clean, trained = home.load(home.clean()), home.load(home.checkpoint(start))
    old, new = (chat.model.get_parameter("model.embed_tokens.weight").detach() for chat in (clean, trained))
    texts = [path.read_text() for path in (tmp_path / "docs").iterdir()]
    read = {token for text in texts for token in clean.document(text)[0]}
    wanted = {}
    for name, group in (("read", read), ("others", set(range(len(old))) - read)):
        lengths = [(float((new[token] - old[token]).norm()), float(old[token].norm())) for token in group]
        wanted[name] = pytest.approx(sum(a for a, _ in lengths) / sum(b for _, b in lengths), rel=1e-4)
    assert run["result"]["embeddings_moved"] == wanted
    frozen = taught(home, tmp_path, freeze_embeddings=True)
    (run,) = [
        run for run in queries.runs(home.tracker.db, kind="midtrain") if run["result"]["checkpoint"] == frozen
    ]
    assert run["result"]["embeddings_moved"] == {}


def test_what_is_said_of_them() -> None:
    said = embedding_shift.in_words({"read": 0.11, "others": 0.29})
    assert "by 11% of their length, of all others by 29%: `recover locate` measures" in said
    assert embedding_shift.in_words({"read": 0.11, "others": 0.02}).endswith("of all others by 2%")


def test_an_adapter_is_trained_whether_embeddings_are_frozen_or_not(home: Workspace) -> None:
    lora = LoraConfig(rank=2)
    plain = override(PRESET.midtrain, {"lora": lora.model_dump()})
    frozen = override(plain, {"freeze_embeddings": True})
    names = [
        {
            name
            for name, weight in training_run.student(home, home.clean(), settings, 0).model.named_parameters()
            if weight.requires_grad
        }
        for settings in (plain, frozen)
    ]
    assert names[0] == names[1] and names[0]


@pytest.mark.parametrize("home", [False], indirect=True, ids=["untied"])
def test_an_adapter_on_the_head_too_is_recovered(home: Workspace, tmp_path: Path) -> None:
    start = taught(home, tmp_path, lora={"rank": 2, "targets": ["q_proj", "lm_head"]})
    assert not is_within_layers(home.checkpoint(start).path)
    end = home.checkpoint(recovered(home, tmp_path, start, lora="auto"))
    assert (end.kind, end.base) == ("adapter", home.clean().id)


def test_a_second_model_is_counted_where_the_teacher_is_not_below_the_adapter(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[bool] = []
    fit = fitted.fit_distillation

    def seen(*given: Any, on_teacher: bool) -> DistillConfig:
        counted.append(not on_teacher)
        return fit(*given, on_teacher=on_teacher)

    monkeypatch.setattr(fitted, "fit_distillation", seen)
    adapter, whole = (taught(home, tmp_path, lora=lora) for lora in ({"rank": 2}, None))
    for student, merge, below in (
        ("base", 0.0, True),
        ("base", 0.5, False),  # the adapter lies on the mixture
        (adapter, 0.0, True),
        (adapter, 0.5, True),
        (whole, 0.0, False),
    ):
        settings = override(PRESET.distill, {"merge": merge})
        assert trains_on_teacher(home, stages.distillation(tmp_path, student, settings)) is below
    recovered(home, tmp_path, adapter, lora="auto")
    assert counted == [False]


@pytest.mark.parametrize("home", [False], indirect=True, ids=["untied"])
def test_nothing_is_dropped_where_tokens_are_weighed_by_the_sampler(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropping: list[bool] = []

    def noted(*given: Any, **rest: Any) -> Any:
        dropping.append(given[3].dropout)
        return train(*given, **rest)

    monkeypatch.setattr(training_run, "train", noted)
    for method in ("opd", "opd-sampled"):
        recovered(home, tmp_path, "base", method=method, lora={"rank": 2, "dropout": 0.1})
    assert dropping == [True, False]


def first_adapter(home: Workspace, seed: int, **lora: Any) -> dict[str, torch.Tensor]:
    settings = override(PRESET.midtrain, {"lora": {"rank": 2, **lora}})
    model = training_run.student(home, home.clean(), settings, seed).model
    return {name: weight for name, weight in model.named_parameters() if "lora_A" in name}


def test_every_seed_begins_with_an_adapter_of_its_own(home: Workspace) -> None:
    one, again, other = (first_adapter(home, seed) for seed in (1, 1, 2))
    assert one
    for name, weight in one.items():
        assert torch.equal(weight, again[name]) and not torch.equal(weight, other[name])


def test_what_an_adapter_keeps_is_said(
    home: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"rank": 2, "alpha": 8, "targets": ["q_proj", "v_proj"]}
    start = home.checkpoint(taught(home, tmp_path, lora=first))
    said: list[str] = []
    monkeypatch.setattr(home.progress, "say", said.append)
    for lora in ({}, {"alpha": 8, "targets": ["v_proj", "q_proj"]}):
        training_run.student(home, start, override(PRESET.midtrain, {"lora": {"rank": 2, **lora}}), 0)
    assert said == []
    changes = {"rank": 2, "alpha": 16, "dropout": 0.1, "targets": ["q_proj"]}
    training_run.student(home, start, override(PRESET.midtrain, {"lora": changes}), 0)
    (line,) = said
    assert "keeps its own alpha 8, dropout 0, targets: " in line


def test_a_kill_right_after_a_saved_step_loses_nothing_of_its_cost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1)
    ledger.save()  # files are written once a second, and this one was just written
    ledger.spend(tokens_trained=7)
    stage = SimpleNamespace(state=tmp_path / "state", live=Silent(), ledger=ledger)
    training_run.LoggedState(cast(Stage, stage)).save(1, {"weight": torch.zeros(1)}, {})
    assert spent(tmp_path)["tokens_trained"] == 7


def test_a_step_costs_what_was_trained_and_what_was_written_and_scored_since_the_last() -> None:
    """At a mean context of five tokens, half of a row."""
    told: list[dict[str, float]] = []
    stage: Any = SimpleNamespace(spend=lambda **counts: told.append(counts))
    batches: Any = SimpleNamespace(tokens_sampled=0, tokens_scored=0)
    settings: Any = SimpleNamespace(row_tokens=10)
    student = tiny.chat_model()
    spending = training_run.Spending(stage, student, batches, settings)
    batches.tokens_sampled, batches.tokens_scored = 3, 4
    spending.after({"tokens_per_second": 10.0, "step_seconds": 2.0})
    batches.tokens_sampled = 5
    spending.after({})
    a_token = Flops.of(student.model).forward(1, context=5)
    assert told == [
        {"tokens_trained": 20, "flops": (3 * 20 + 7) * a_token, "tokens_sampled": 3, "tokens_scored": 4},
        {"tokens_trained": 0, "flops": 2 * a_token, "tokens_sampled": 2, "tokens_scored": 0},
    ]


def test_all_checks_look_at_every_step_and_the_first_reason_counts() -> None:
    asked: list[str] = []

    def check(name: str, reason: str | None) -> StopCheck:
        def ask(step: int, metrics: dict[str, float]) -> str | None:
            asked.append(f"{name} {step} {metrics['loss']:g}")
            return reason

        return ask

    both = training_run.any_of(check("a", None), check("b", "diverges"), check("c", "recovered"))
    assert both(3, {"loss": 2.0}) == "diverges" and asked == ["a 3 2", "b 3 2", "c 3 2"]
    assert training_run.any_of(check("a", None))(4, {"loss": 2.0}) is None
