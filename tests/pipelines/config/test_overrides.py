"""Overrides: what a change replaces, extends or makes void; the outcome is checked again."""

from __future__ import annotations

import pytest

from pipelines.config import settings
from pipelines.config.overrides import changed, override
from pipelines.config.sections.distill import StopConfig
from pipelines.config.sections.midtrain import MidtrainConfig
from pipelines.config.sections.training import LoraConfig, OptimizerConfig
from pipelines.knowledge import passage_teaching
from recovery.errors import InputError

TEXT = settings.preset_text("microworld")


def test_a_length_in_steps_replaces_one_in_epochs_and_the_other_way_round() -> None:
    read_six_times = MidtrainConfig(epochs=6, optimizer=OptimizerConfig(learning_rate=1e-3))
    in_steps = override(read_six_times, {"steps": 3})
    assert (in_steps.steps, in_steps.epochs) == (3, None)
    assert override(in_steps, {"epochs": 6.0, "steps": None}) == read_six_times
    with pytest.raises(InputError, match="either steps or epochs"):
        override(read_six_times, {"steps": 3, "epochs": 6.0})


def test_override_replaces_what_is_given_and_checks_again() -> None:
    section = settings.parse(TEXT, "recover.yaml").distill
    assert override(section, {"steps": 3, "method": None}).steps == 3
    assert override(section, {"steps": None}) == section
    with pytest.raises(InputError, match=r"steps: .*not 0$"):
        override(section, {"steps": 0})


def preset(**changes: object) -> settings.Config:
    """The microworld's settings, keys written with two underscores for a dot."""
    found = settings.parse(settings.preset_text("microworld"), "preset")
    return changed(found, {name.replace("__", "."): value for name, value in changes.items()})


def test_another_method_drops_the_dials_of_the_one_before() -> None:
    config = preset(distill__dials={"signal": "forward_kl"})
    assert config.distill.dials == {"signal": "forward_kl", "minibatches": 10, "epochs": 2}
    assert changed(config, {}) == changed(config, {"distill.method": "opd"}) == config
    assert changed(config, {"distill.method": "sft"}).distill.dials == {
        "minibatches": 10,
        "epochs": 2,
    }
    typed = {"distill.method": "gkd", "distill.dials": {"beta": "0.1", "epochs": "1"}}
    found = changed(config, typed).distill
    assert (found.method, found.dials) == ("gkd", {"minibatches": 10, "epochs": "1", "beta": "0.1"})


def test_midtraining_on_text_drops_the_dials_of_passages() -> None:
    config = preset(midtrain__method="passage", midtrain__dials={"states": "data"})
    assert changed(config, {}) == changed(config, {"midtrain.method": "passage"}) == config
    on_text = changed(config, {"midtrain.method": "text"}).midtrain
    assert (on_text.method, on_text.dials) == ("text", {})
    passage_teaching.check(on_text, None)
    typed = {"midtrain.method": "text", "midtrain.dials": {"states": "student"}}
    assert changed(config, typed).midtrain.dials == {"states": "student"}  # is refused, as it was typed


def test_a_change_names_its_setting_and_is_checked() -> None:
    assert preset(midtrain__optimizer__learning_rate=0.5).midtrain.optimizer.learning_rate == 0.5
    assert preset(distill__lora={"rank": 4}).distill.lora == LoraConfig(rank=4)
    again = changed(preset(distill__lora={"rank": 4, "targets": ["q"]}), {"distill.lora": {"rank": 8}})
    assert again.distill.lora == LoraConfig(rank=8, targets=["q"])
    assert changed(again, {"distill.lora": None}).distill.lora is None
    with pytest.raises(InputError, match=r"^midtrain\.steps: .*, not 0$"):
        preset(midtrain__steps=0)
    with pytest.raises(InputError, match="there is no such setting"):
        preset(midtrain__stepz=1)


def test_of_steps_and_epochs_the_one_given_replaces_the_other() -> None:
    found = preset(midtrain__epochs=2.0).midtrain
    assert (found.steps, found.epochs) == (None, 2.0)
    with pytest.raises(InputError, match="give either steps or epochs"):
        preset(midtrain__epochs=2.0, midtrain__steps=2)


def test_a_mapping_extends_the_sections_within_sections_too() -> None:
    real = settings.parse(settings.preset_text("real"), "preset")
    assert real.distill.optimizer.schedule == "constant"
    found = changed(real, {"distill": {"optimizer": {"learning_rate": 5e-5}, "dials": {"epochs": 2}}})
    optimizer = real.distill.optimizer.model_copy(update={"learning_rate": 5e-5})
    dials = {**real.distill.dials, "epochs": 2}
    assert found.distill == real.distill.model_copy(update={"optimizer": optimizer, "dials": dials})
    in_steps = preset(midtrain={"steps": 2}).midtrain
    assert (in_steps.steps, in_steps.epochs) == (2, None)
    args = {"today": {"day": 1}, "a.b": 2}
    assert preset(model={"template_args": args}).model.template_args == args
    with pytest.raises(InputError, match=r"^distill\.stepz: there is no such setting"):
        preset(distill={"stepz": 3})


def test_a_section_that_is_absent_is_made_for_a_setting_within_it() -> None:
    assert preset(distill__stop__margin=0.1).distill.stop == StopConfig(margin=0.1)
    assert preset(distill__stop={}).distill.stop == StopConfig()
    assert preset(midtrain__lora="auto").midtrain.lora == "auto"
    in_place_of_auto = changed(preset(midtrain__lora="auto"), {"midtrain.lora.rank": 4})
    assert in_place_of_auto.midtrain.lora == LoraConfig(rank=4)
    assert preset(distill={"lora": None, "stop": {"every": 5}}).distill.stop == StopConfig(every=5)
