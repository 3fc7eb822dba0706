"""recover.yaml: shipped presets parse, every field is documented, every error is one line that says where."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from pipelines.cli import setting_options
from pipelines.config import settings
from recovery.errors import InputError
from recovery.methods.table import with_dials

TEXT = settings.preset_text("microworld")


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A model and every model that its fields hold."""
    yield model
    for field in model.model_fields.values():
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from sections(kind)


@pytest.mark.parametrize("name", settings.presets())
def test_every_shipped_preset_parses_and_names_a_method_that_exists(name: str) -> None:
    found = settings.parse(settings.preset_text(name), name)
    assert with_dials(found.distill.method, found.distill.dials).name == found.distill.method
    assert found.model.path
    assert found.midtrain.mix.new > 0


def test_the_presets_of_a_real_model_and_of_the_microworld_are_shipped() -> None:
    assert {"microworld", "real"} <= set(settings.presets())
    real = settings.parse(settings.preset_text("real"), "real")
    assert (real.distill.prompts_per_step, real.distill.samples_per_prompt) == (64, 4)
    assert real.eval.ifeval == "google/IFEval"
    assert not real.model.trust_remote_code


@pytest.mark.parametrize("section", dict.fromkeys(sections(settings.Config)), ids=lambda s: s.__name__)
def test_every_field_is_documented_where_it_is_declared(section: type[BaseModel]) -> None:
    assert section.__doc__
    undocumented = [name for name, field in section.model_fields.items() if not field.description]
    assert not undocumented


@pytest.mark.parametrize("section", dict.fromkeys(sections(settings.Config)), ids=lambda s: s.__name__)
def test_every_number_has_a_limit(section: type[BaseModel]) -> None:
    unlimited = [
        name
        for name, field in section.model_fields.items()
        if name != "seed"
        and {int, float} & {field.annotation, *getattr(field.annotation, "__args__", ())}
        and not field.metadata
    ]
    assert not unlimited


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (r"(steps|epochs): [\d.]+", "steps: 0", r"midtrain\.steps: .*greater than or equal to 1, not 0$"),
        (r"(steps|epochs): [\d.]+", "steps: many", r"midtrain\.steps: .*not 'many'$"),
        (r"(steps|epochs): [\d.]+", "epochs: 2\n  steps: 5", r"midtrain: give either steps or epochs$"),
        (r"learning_rate: \S+?,", "learning_rate: 0,", r"midtrain\.optimizer\.learning_rate: .*0, not 0$"),
        (r"learning_rate: \S+?,", "learning_rate: .inf,", r"midtrain\.optimizer\.learning_rate: .*finite"),
        (r"learning_rate: \S+?,", "learning_rate: .nan,", r"midtrain\.optimizer\.learning_rate: "),
        (r"learning_rate: \S+?, ", "", r"midtrain\.optimizer\.learning_rate: Field required"),
        (r"mix: .*", "mix: {new: 0.5, earlier: 0.1}", r"midtrain\.mix: the shares add up to 0.6, not to 1$"),
        (r"method: \w+", "methd: opd", r"distill\.methd: there is no such setting"),
        (r"dtype: \w+", "dtype: int8", r"model\.dtype: .*'bfloat16', not 'int8'$"),
        (r"path: .*", "path: ''", r"model\.path: .*at least 1 character"),
        (r"seed: .*", "seed: one", r"seed: .*not 'one'$"),
        (r"(?s).*", "", r"settings: .*valid dictionary"),
        (r"(?s).*", "- a list", r"settings: .*valid dictionary"),
        (r"(?s).*", "model: [", r"is not YAML"),
        (r"(?s).*", "model: !!python/object:os.system {}", r"is not YAML"),
        (r"(?s).*", "model: 2026-99-99", r"is not YAML"),
        (r"(?s).*", "[" * 5000, r"is not YAML"),
    ],
)
def test_a_wrong_setting_is_one_line_that_says_where(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        settings.parse(re.sub(old, new, TEXT, count=1), "recover.yaml")
    assert str(refused.value).startswith("recover.yaml")
    assert "\n" not in str(refused.value)


def test_reading_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `recover init` first"):
        settings.read(tmp_path / "recover.yaml")
    (tmp_path / "recover.yaml").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(InputError, match="not text in UTF-8"):
        settings.read(tmp_path / "recover.yaml")


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"choose one of .*microworld"):
        settings.preset_text("../config")


def test_settings_survive_a_trip_through_json() -> None:
    found = settings.parse(TEXT, "recover.yaml")
    assert settings.Config.model_validate_json(found.model_dump_json()) == found
    assert settings.parse(yaml.safe_dump(found.model_dump()), "again") == found


def test_override_replaces_what_is_given_and_checks_again() -> None:
    section = settings.parse(TEXT, "recover.yaml").distill
    assert settings.override(section, {"steps": 3, "method": None}).steps == 3
    assert settings.override(section, {"steps": None}) == section
    with pytest.raises(InputError, match=r"steps: .*not 0$"):
        settings.override(section, {"steps": 0})


def preset(**changes: object) -> settings.Config:
    """The microworld's settings, keys written with two underscores for a dot."""
    found = settings.parse(settings.preset_text("microworld"), "preset")
    return settings.changed(found, {name.replace("__", "."): value for name, value in changes.items()})


def test_another_method_drops_the_dials_of_the_one_before() -> None:
    config = preset(distill__dials={"signal": "forward_kl"})
    assert config.distill.dials == {"signal": "forward_kl", "minibatches": 10, "epochs": 2}
    assert settings.changed(config, {}) == settings.changed(config, {"distill.method": "opd"}) == config
    assert settings.changed(config, {"distill.method": "sft"}).distill.dials == {
        "minibatches": 10,
        "epochs": 2,
    }
    typed = {"distill.method": "gkd", "distill.dials": {"beta": "0.1", "epochs": "1"}}
    found = settings.changed(config, typed).distill
    assert (found.method, found.dials) == ("gkd", {"minibatches": 10, "epochs": "1", "beta": "0.1"})


def test_a_change_names_its_setting_and_is_checked() -> None:
    assert preset(midtrain__optimizer__learning_rate=0.5).midtrain.optimizer.learning_rate == 0.5
    assert preset(distill__lora={"rank": 4}).distill.lora == settings.LoraConfig(rank=4)
    again = settings.changed(
        preset(distill__lora={"rank": 4, "targets": ["q"]}), {"distill.lora": {"rank": 8}}
    )
    assert again.distill.lora == settings.LoraConfig(rank=8, targets=["q"])
    assert settings.changed(again, {"distill.lora": None}).distill.lora is None
    with pytest.raises(InputError, match=r"^midtrain\.steps: .*, not 0$"):
        preset(midtrain__steps=0)
    with pytest.raises(InputError, match="there is no such setting"):
        preset(midtrain__stepz=1)


def test_of_steps_and_epochs_the_one_given_replaces_the_other() -> None:
    found = preset(midtrain__epochs=2.0).midtrain
    assert (found.steps, found.epochs) == (None, 2.0)
    with pytest.raises(InputError, match="give either steps or epochs"):
        preset(midtrain__epochs=2.0, midtrain__steps=2)


def test_settings_cannot_be_changed_in_place() -> None:
    found = settings.parse(TEXT, "recover.yaml")
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 3


def test_no_torch_is_needed_to_read_settings() -> None:
    read = "import sys, pipelines.config.settings as c; c.parse(c.preset_text('real'), 'real')"
    code = f"{read}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_paths_are_seen_from_a_folder_and_names_are_none(tmp_path: Path) -> None:
    for name in ("model", "microworld"):
        (tmp_path / name).mkdir()
    text = settings.preset_text("microworld")
    found = settings.anchored(settings.parse(text, "recover.yaml"), tmp_path)
    assert (found.model.path, found.distill.prompts) == ("microworld", "microworld")
    changes = {"model.path": "model", "distill.reward": "rewards/mine.py:score"}
    assert settings.anchored_changes(changes, tmp_path) == {
        "model.path": str(tmp_path / "model"),
        "distill.reward": f"{tmp_path / 'rewards/mine.py'}:score",
    }
    others = {"model.path": "owner/name", "distill.reward": "package.module:score"}
    assert settings.anchored_changes(others, tmp_path) == others


def test_a_typed_reward_is_seen_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert setting_options.reward_source("mine.py:score") == f"{tmp_path / 'mine.py'}:score"
    assert setting_options.reward_source("exact") == "exact"


@pytest.mark.parametrize("key", settings.FILES)
@pytest.mark.parametrize("value", ["data.jsonl", "../data.jsonl", "./later"])
def test_every_path_is_seen_from_the_folder_of_the_home(key: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").touch()
    folder = tmp_path / "project"
    folder.mkdir()
    assert settings.anchored_changes({key: value}, folder) == {key: str(folder / value)}


def test_a_folder_that_is_made_later_is_seen_from_there_too(tmp_path: Path) -> None:
    found = settings.parse(TEXT + "\nengine: {exchange: weights}\n", "recover.yaml")
    assert settings.anchored(found, tmp_path).engine.exchange == str(tmp_path / "weights")


def test_a_reward_file_is_seen_from_the_folder_of_the_home(tmp_path: Path) -> None:
    changes = {"distill.reward": "judge.py:score"}
    assert settings.anchored_changes(changes, tmp_path) == {"distill.reward": f"{tmp_path}/judge.py:score"}
