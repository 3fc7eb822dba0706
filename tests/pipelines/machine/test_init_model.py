"""What `init` takes as the clean model, and where it looks for it later."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipelines.config import settings as config
from pipelines.job_from_options import distill_job, midtrain_job
from pipelines.machine.init_home import initialise
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError, RecoverError
from recovery.models import loading
from recovery.models.loading import LoraSpec, ModelSpec
from tests.support import families, tiny


def refused(home: Path, model: Path) -> str:
    with Workspace.open(home) as ws, pytest.raises(InputError) as caught:
        initialise(ws, model=str(model))
    assert "\n" not in str(caught.value)
    assert not (home / config.CONFIG_NAME).exists()
    return str(caught.value)


def test_an_adapter_is_no_clean_model(tmp_path: Path) -> None:
    base = tiny.save(tmp_path / "base")
    loading.save(loading.load(ModelSpec(str(base), lora=LoraSpec(rank=2))), tmp_path / "adapter")
    assert "an adapter, not a whole model: merge it" in refused(tmp_path / "home", tmp_path / "adapter")


@pytest.mark.parametrize(
    ("family", "reason"),
    [("Mamba 2", "decoding with a KV cache fails"), ("Falcon, alibi", "sampled from another distribution")],
)
def test_a_family_that_cannot_be_sampled_is_refused_by_name(tmp_path: Path, family: str, reason: str) -> None:
    model = families.save(families.named(family), tmp_path / "model")
    said = refused(tmp_path / "home", model)
    assert f"models of type {families.named(family).model_type} are not supported: " in said
    assert reason in said


def test_a_moved_model_is_found_by_its_new_place(tmp_path: Path) -> None:
    model = tiny.save(tmp_path / "model")
    with Workspace.open(tmp_path / "home") as ws:
        first = initialise(ws, model=str(model))
    model.rename(tmp_path / "elsewhere")
    with Workspace.open(tmp_path / "home") as ws, pytest.raises(RecoverError, match=r"set model\.path"):
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
        chat = loading.add_lora(ws.load(ws.clean()), LoraSpec(rank=8))
        student = ws.publish(chat, parent=ws.clean(), run_id=None, config={}).id
        for rank in (0, 4, 64):
            lora = {"rank": rank} if rank else None
            said = re.escape("the student is an adapter of rank 8")
            with pytest.raises(InputError, match=said):
                midtrain_job(ws, tmp_path / "docs", student, changes={"midtrain.lora": lora})
            with pytest.raises(InputError, match=said):
                distill_job(ws, "base", student, changes={"distill.lora": lora})
        midtrain_job(ws, tmp_path / "docs", student, changes={"midtrain.lora": {"rank": 8}})
