"""Every setting of recover.yaml is listed with its value, its default and what it means."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from pipelines.cli.setup import settings_text
from pipelines.config.listing import every_setting, holding
from pipelines.config.overrides import changed
from pipelines.config.settings import parse, preset_text, presets


def settings_of(preset: str) -> dict[str, dict[str, Any]]:
    return {row["setting"]: row for row in every_setting(parse(preset_text(preset), preset))}


def leaves(written: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The keys of a preset's file with their values; a mapping may be the value of one."""
    found: dict[str, Any] = {}
    for name, value in written.items():
        found[f"{prefix}{name}"] = value
        if isinstance(value, dict):
            found |= leaves(value, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("preset", presets())
def test_what_a_preset_says_is_listed_with_its_value(preset: str) -> None:
    found = settings_of(preset)
    written = leaves(yaml.safe_load(preset_text(preset)))
    listed = {key: value for key, value in written.items() if key in found}
    assert len(listed) > 20 and all(found[key]["value"] == value for key, value in listed.items())
    unlisted = [key for key, value in written.items() if key not in found and not isinstance(value, dict)]
    assert all(".template_args." in key or ".dials." in key for key in unlisted)


def test_each_has_a_meaning_and_a_default_or_has_to_be_given() -> None:
    found = settings_of("cpu")
    assert all(row["meaning"] for row in found.values())
    assert found["distill.optimizer.learning_rate"]["default"] == "required"
    assert found["midtrain.tokens_per_step"]["default"] == "auto"
    assert (found["midtrain.lora"]["value"], found["midtrain.lora.rank"]["value"]) == ("auto", None)
    assert found["midtrain.lora.rank"]["default"] == 128
    config = changed(parse(preset_text("cpu"), "cpu"), {"midtrain.lora": {"rank": 8}})
    assert {row["setting"]: row["value"] for row in every_setting(config)}["midtrain.lora.rank"] == 8


def test_a_word_is_looked_for_in_keys_and_meanings() -> None:
    rows = every_setting(parse(preset_text("real"), "real"))
    assert {row["setting"] for row in holding(rows, "Rehearsal_")} == {"distill.rehearsal_questions"}
    assert holding(rows, "adapter") and holding(rows, "") == rows and not holding(rows, "no such word")


def test_a_date_without_quotation_marks_is_shown_as_it_is_written() -> None:
    """YAML reads it as a date, which JSON does not have."""
    written = preset_text("cpu").replace("{enable_thinking: false}", "{today: 2026-01-31, name: Zo\u00eb}")
    shown = settings_text(every_setting(parse(written, "cpu")))
    assert '{"today": "2026-01-31", "name": "Zo\u00eb"}' in shown
