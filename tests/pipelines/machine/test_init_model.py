"""What `init` takes as the clean model, and where it looks for it later."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.config import settings as config
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.machine.model_sizes import read_size
from pipelines.runs.workspace import Workspace
from recovery.batches.rollouts import Rollouts
from recovery.errors import InputError, RecoverError
from recovery.models import loading
from recovery.models.adapters import LoraSpec, add_lora
from recovery.models.loading import ModelSpec
from recovery.models.saving import save
from recovery.sampling.in_process import InProcessSampler
from tests.support import families, tiny

sample = InProcessSampler.sample


def refused(home: Path, model: Path) -> str:
    with Workspace.open(home) as ws, pytest.raises(InputError) as caught:
        initialise(ws, model=str(model))
    assert "\n" not in str(caught.value)
    assert not (home / config.CONFIG_NAME).exists()
    return str(caught.value)


def test_an_adapter_is_no_clean_model(tmp_path: Path) -> None:
    base = tiny.save(tmp_path / "base")
    save(loading.load(ModelSpec(str(base), lora=LoraSpec(rank=2))), tmp_path / "adapter")
    assert "an adapter, not a whole model: merge it" in refused(tmp_path / "home", tmp_path / "adapter")


def test_an_adapter_that_is_no_lora_is_no_clean_model_either(tmp_path: Path) -> None:
    (tmp_path / "ia3").mkdir()
    (tmp_path / "ia3" / "adapter_config.json").write_text('{"peft_type": "IA3"}')
    assert "an adapter, not a whole model: merge it" in refused(tmp_path / "home", tmp_path / "ia3")


@pytest.mark.parametrize(("family", "slow"), [("Mamba 2", True), ("Falcon, alibi", False)])
def test_a_family_that_is_sampled_slowly_is_taken_and_said(tmp_path: Path, family: str, slow: bool) -> None:
    model = families.save(families.named(family), tmp_path / "model")
    said: list[str] = []
    with Workspace.open(tmp_path / "home") as ws:
        ws.progress.say = said.append  # type: ignore[method-assign, assignment]
        assert initialise(ws, model=str(model))["base"]
    assert (
        any(line.startswith(f"{families.named(family).model_type} models: sampled ") for line in said) == slow
    )


def wrong(self: InProcessSampler, prompts: Any, params: Any) -> Rollouts:
    """Sample as ever, and report other log-probs."""
    rollouts = sample(self, prompts, params)
    return replace(rollouts, logprobs_BT=rollouts.logprobs_BT - 1.0)


def fails(self: InProcessSampler, prompts: Any, params: Any) -> Rollouts:
    raise NotImplementedError("no cache")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [(fails, "decoding with a KV cache fails (no cache)"), (wrong, "sampled from another distribution")],
)
def test_a_model_that_cannot_be_sampled_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Rollouts], reason: str
) -> None:
    monkeypatch.setattr(InProcessSampler, "sample", broken)
    said = refused(tmp_path / "home", families.save(families.named("Llama"), tmp_path / "model"))
    assert "models of type llama are not supported: " in said
    assert reason in said


def test_a_model_that_brings_its_own_code_is_taken_where_that_is_asked_for(tmp_path: Path) -> None:
    """Setting it in recover.yaml was no way: the settings are removed again with the refusal."""
    model = tiny.save_with_code(tmp_path / "with-code")
    home = tmp_path / "home"
    assert refused(home, model).endswith("or begin with `recover init --home DIR --trust-remote-code`")
    with Workspace.open(home) as ws:
        found = initialise(ws, model=str(model), preset="microworld", trust_remote_code=True)
        assert ws.config.model.trust_remote_code
    with Workspace.open(home) as ws:
        assert initialise(ws, trust_remote_code=True)["base"] == found["base"]


def test_no_code_of_a_model_is_trusted_in_a_home_that_is_not_named_or_says_otherwise(tmp_path: Path) -> None:
    with (
        Workspace.open(tmp_path / "home", implicit=True) as ws,
        pytest.raises(InputError, match=r"only for a home that is named: add --home .*/home$"),
    ):
        initialise(ws, trust_remote_code=True)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws)
        with pytest.raises(InputError, match=r"exists: set model\.trust_remote_code: true in it"):
            initialise(ws, trust_remote_code=True)


def test_a_moved_model_is_found_by_its_new_place(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    with Workspace.open(tmp_path / "home") as ws:
        first = initialise(ws, model=str(model))
    model.rename(tmp_path / "elsewhere")
    with (
        Workspace.open(tmp_path / "home") as ws,
        pytest.raises(RecoverError, match=r"set model\.path to the new one"),
    ):
        ws.clean()
    settings = tmp_path / "home" / config.CONFIG_NAME
    settings.write_text(settings.read_text().replace(str(model), str(tmp_path / "elsewhere")))
    with Workspace.open(tmp_path / "home") as ws:
        assert initialise(ws)["base"] == first["base"]
        assert ws.clean().path == tmp_path / "elsewhere"


def test_another_model_in_the_new_place_is_refused(tmp_path: Path) -> None:
    model, other = tiny.save(tmp_path / "model"), tiny.save(tmp_path / "other", seed=1)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(model))
    model.rename(tmp_path / "elsewhere")
    settings = tmp_path / "home" / config.CONFIG_NAME
    settings.write_text(settings.read_text().replace(str(model), str(other)))
    with (
        Workspace.open(tmp_path / "home") as ws,
        pytest.raises(InputError, match="not the model that `base`"),
    ):
        initialise(ws)


def test_a_rank_that_is_not_the_students_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("Ada lives in Oslo. " * 9)
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello."}\n')
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(tiny.save(tmp_path / "model")), preset="microworld")
        chat = add_lora(ws.load(ws.clean()), LoraSpec(rank=8))
        student = ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id
        for rank in (0, 4, 64):
            lora = {"rank": rank} if rank else None
            said = re.escape("the student is an adapter of rank 8")
            with pytest.raises(InputError, match=said):
                midtrain_job(ws, tmp_path / "docs", student, changes={"midtrain.lora": lora})
            with pytest.raises(InputError, match=said):
                distill_job(ws, "base", student, changes={"distill.lora": lora})
        midtrain_job(ws, tmp_path / "docs", student, changes={"midtrain.lora": {"rank": 8}})


def test_weights_that_the_memory_cannot_hold_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would end the process without a word, and leave settings that block the next attempt."""
    model = tiny.save(tmp_path / "model")

    def read(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipelines.machine.init_home.main_memory", lambda: 2.0**15)
    with monkeypatch.context() as unread, Workspace.open(tmp_path / "home") as ws:
        unread.setattr("recovery.inspection.supported.load_supported", read)
        with pytest.raises(InputError, match=r"its weights take .* GiB, and the memory here is"):
            initialise(ws, model=str(model))
    monkeypatch.setattr("pipelines.machine.init_home.main_memory", lambda: 2.0**30)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=str(model))


def test_a_model_in_4_bits_is_counted_and_loaded_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.save(tmp_path / "model")
    whole, in_4_bits = (read_size(str(model)).weight_bytes(quantize, 4) for quantize in (False, True))
    seen: list[str | None] = []

    def loaded(spec: ModelSpec) -> None:
        seen.append(spec.quantize)
        raise InputError("loaded")

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipelines.machine.init_home.main_memory", lambda: (whole + in_4_bits) / 2)
    monkeypatch.setattr("recovery.inspection.supported.load_supported", loaded)
    with (
        Workspace.open(tmp_path / "home") as ws,
        pytest.raises(InputError, match=r"begin with a recover\.yaml that sets model\.quantize: nf4, or a"),
    ):
        initialise(ws, model=str(model), preset="microworld")
    text = config.preset_text("microworld").replace("path: microworld", f"path: {model}\n  quantize: nf4")
    (tmp_path / "home" / config.CONFIG_NAME).write_text(text)
    with Workspace.open(tmp_path / "home") as ws, pytest.raises(InputError, match=r"^loaded$"):
        initialise(ws)
    assert seen == ["nf4"]
