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

from evals import verdict
from pipelines.config import settings
from pipelines.config.sections.eval import EvalConfig
from pipelines.config.sections.midtrain import Mix, ReadingConfig
from pipelines.corpus.reading.formats import Limits
from recovery.errors import InputError

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
    assert found.distill.resolved_method().name == found.distill.method
    assert found.model.path
    assert found.midtrain.mix.new > 0


def test_margins_and_limits_that_no_settings_name_are_those_of_what_uses_them() -> None:
    assert EvalConfig().margins() == verdict.margins_by_axis(None)
    assert ReadingConfig().limits == Limits()


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
        (
            r"dtype: (\w+)(?s:(.*))distill:",
            r"dtype: \1\n  quantize: nf4\2distill:\n  sampler: server",
            r"recover.yaml: settings: model\.quantize and distill\.sampler exclude each other: .*inprocess",
        ),
        (
            r"dtype: (\w+)(?s:(.*))\neval:",
            r"dtype: \1\n  quantize: nf4\2\neval:\n  sampler: server",
            r"recover.yaml: settings: model\.quantize and eval\.sampler exclude each other: .*inprocess",
        ),
        (r"path: .*", "path: ''", r"model\.path: .*at least 1 character"),
        (r"prompts: microworld", "prompts: ''", r"distill\.prompts: .*at least 1 character"),
        (r"ifeval: microworld", "ifeval: ''", r"eval\.ifeval: .*at least 1 character"),
        (
            r"further_prompts: 0",
            "further_prompts: ''",
            r"eval\.further_prompts: a number of prompts or a file",
        ),
        (r"seed: .*", "seed: one", r"seed: .*not 'one'$"),
        (r"seed: .*", f"seed: {10**20}", r"seed: .*less than or equal to 4294967295, not 10+$"),
        (r"(?s).*", "", r"settings: .*valid dictionary"),
        (r"(?s).*", "- a list", r"settings: .*valid dictionary"),
        (r"$", "\neval:\n  limit: 5\n", r": line \d+, column 1: `eval` stands there a second time: put its "),
        (r"dtype: (.*)", r"dtype: \1\n  dtype: \1", r"column 3: `dtype` stands there a second time"),
        (r"(?s).*", "model: [", r"is not YAML: line 1, column 9: expected .* but found '<stream end>'$"),
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


def test_a_blank_names_nothing() -> None:
    """It named the folder that the home lies in; a blank context was what the teacher saw."""
    distill = "pairs: ''\n  context: ' '\n  reward: ''\n  stop: {probe: ''}"
    text = TEXT.replace("\ndistill:\n", f"\ndistill:\n  {distill}\n")
    text = text.replace("\neval:\n", "\neval:\n  probes: ''\n  tasks: ''\n")
    found = settings.parse(f"{text}\nengine: {{exchange: ''}}\n", "recover.yaml")
    assert found.distill.stop is not None
    named = (found.distill.pairs, found.distill.context, found.distill.reward, found.distill.stop.probe)
    assert {*named, found.eval.probes, found.eval.tasks, found.engine.exchange} == {None}


def test_reading_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `recover init` first"):
        settings.read(tmp_path / "recover.yaml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="folder: Is a directory: make it a file"):
        settings.read(tmp_path / "folder")
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


def test_settings_cannot_be_changed_in_place() -> None:
    found = settings.parse(TEXT, "recover.yaml")
    with pytest.raises(ValueError, match="frozen"):
        found.seed = 3


def test_no_torch_is_needed_to_read_settings() -> None:
    read = "import sys, pipelines.config.settings as c; c.parse(c.preset_text('real'), 'real')"
    code = f"{read}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_mix_without_earlier_documents_adds_up_as_well() -> None:
    """0.2 / (1 - 0.8) is more than 1."""
    for earlier in range(1, 100):
        mix = Mix(new=(100 - earlier) / 100, earlier=earlier / 100)
        assert mix.at_first == Mix(new=1.0)
    assert Mix(new=0.3, questions=0.3, earlier=0.15, chat=0.25).at_first.chat == pytest.approx(0.25 / 0.85)
    assert Mix(new=0.4, chat=0.4, augmented=0.2).without("augmented") == Mix(new=0.5, chat=0.5)
