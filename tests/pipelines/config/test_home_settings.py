"""A home that was only found in the current folder runs no code, by its settings or by what it recorded."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from db.errors import BadRequest
from pipelines import demo
from pipelines.config.home_settings import of_home
from pipelines.config.jobs import DistillJob
from pipelines.config.overrides import changed
from pipelines.config.sections.distill import DistillConfig
from pipelines.config.settings import CONFIG_NAME, parse, preset_text
from pipelines.machine.fitting import fitted_once
from pipelines.machine.init_home import initialise
from pipelines.resume import resume
from pipelines.runs.home_database import refuse_elsewhere
from pipelines.runs.stage_runner import run_stage
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

PRESET = parse(preset_text("microworld"), "preset")
REWARD = "builtins:exec"  # called as exec(answer, row)
ASKS = (
    ("model.trust_remote_code", True),
    ("distill.reward", REWARD),
    ("distill.reward", "mine.py:score"),
    ("eval.tasks", "tasks"),
    ("engine.arguments", {"trust-remote-code": True}),
    ("engine.arguments", {"trust_remote_code": True}),
    ("engine.arguments", {"block-size": 32, "tool-parser-plugin": "mine.py"}),
    ("engine.arguments", {"hf-overrides": '{"auto_map": {"AutoConfig": "mine.C"}}'}),
)


def home_with(folder: Path, key: str, value: Any) -> Path:
    """A home with one setting that differs from the preset's."""
    section, _, name = key.partition(".")
    data = yaml.safe_load(preset_text("microworld"))
    data.setdefault(section, {})[name] = value
    home = folder / ".recover"
    home.mkdir()
    (home / CONFIG_NAME).write_text(yaml.safe_dump(data))
    return home


@pytest.mark.parametrize(("key", "value"), ASKS)
def test_a_home_that_was_only_found_runs_no_code(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "tasks" / "inner").mkdir(parents=True)
    (tmp_path / "tasks" / "inner" / "one.yaml").write_text("task: one\nprocess_docs: !function mine.docs\n")
    home = home_with(tmp_path, key, value)
    assert of_home(home, implicit=False)
    with pytest.raises(InputError, match=r"asks to run .*, and this home was not named") as refused:
        of_home(home, implicit=True)
    assert key in str(refused.value) and str(refused.value).endswith(f"give --home {home}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("distill.reward", "exact"),
        ("eval.tasks", "tasks"),
        ("engine.arguments", {"enable-prefix-caching": False, "block-size": 32}),
    ],
)
def test_what_runs_no_code_needs_no_named_home(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "gsm8k.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    assert of_home(home_with(tmp_path, key, value), implicit=True)


@pytest.mark.parametrize(
    "name",
    [
        "trust-remote",
        "trust_rem",
        "hos",
        "no-trust-remote",
        "middlewar",
        "middleware=mine.Code",
        "--host",
        "a b",
    ],
)
def test_an_argument_is_given_by_its_full_name(tmp_path: Path, name: str) -> None:
    """vLLM completes a shortened name, and takes what follows an equals sign as a value."""
    with pytest.raises(InputError, match=r"engine.arguments.*(is short for|is no argument's name)"):
        of_home(home_with(tmp_path, "engine.arguments", {name: True}), implicit=False)


@pytest.mark.parametrize("key", ["distill.sampler", "distill.teacher_engine", "eval.sampler"])
def test_a_home_that_was_only_found_sends_nothing_to_another_machine(tmp_path: Path, key: str) -> None:
    here, there = "http://127.0.0.1:8000", "http://127.0.0.1@gpu.example:8000"
    home = home_with(tmp_path, key, f"{here},{there}")
    assert of_home(home, implicit=False)
    with pytest.raises(
        InputError, match=r"asks to send texts, and the key .*, and this home was not named"
    ) as refused:
        of_home(home, implicit=True)
    assert str(refused.value).startswith(str(home / CONFIG_NAME)) and f"give --home {home}" in str(
        refused.value
    )
    path = home / CONFIG_NAME
    path.write_text(path.read_text().replace(f",{there}", ",http://[::1]:8001,http://localhost:8002"))
    assert of_home(home, implicit=True)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("postgresql://me@db.example/recover", "db.example"),
        ("postgresql://127.0.0.1/recover?host=db.example", "db.example"),
        ("postgresql:///recover?hostaddr=192.0.2.1", "192.0.2.1"),
        ("postgresql:///recover?service=theirs", "service theirs"),
        ("postgresql:///recover?service=localhost&servicefile=/tmp/s", "service localhost"),
    ],
)
def test_a_home_that_was_only_found_opens_no_database_of_another_machine(
    tmp_path: Path, url: str, server: str
) -> None:
    (tmp_path / "database.url").write_text(f"{url}\n")
    said = f"names a database on {server}, and this home was not named: check it, then give --home {tmp_path}"
    with pytest.raises(InputError, match=re.escape(said)):
        Workspace.open(tmp_path, create=False, implicit=True)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///recover",
        "postgresql:///r?host=localhost:5432",
        "postgresql://localhost/r?host=/run/postgresql",
        "own.db",
    ],
)
def test_a_database_of_this_machine_needs_no_named_home(tmp_path: Path, url: str) -> None:
    (tmp_path / "database.url").write_text(f"{url}\n")
    refuse_elsewhere(tmp_path)


def test_a_password_with_an_at_sign_is_not_shown_as_the_host(tmp_path: Path) -> None:
    (tmp_path / "database.url").write_text("postgresql://ann:with@hunter2@127.0.0.1/recover\n")
    with pytest.raises(BadRequest, match="write %40 for @ in the password") as refused:
        refuse_elsewhere(tmp_path)
    assert "hunter2" not in str(refused.value)


def test_a_recorded_run_of_a_home_that_was_only_found_runs_no_code(tmp_path: Path) -> None:
    """Its settings lie in the home's database, not in recover.yaml."""

    def interrupt(_: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    settings = changed(PRESET, {"distill.reward": REWARD})
    job = DistillJob(
        student="base",
        teacher="base",
        prompts="microworld",
        settings=settings.distill,
        evaluation=settings.eval,
    )
    with Workspace.open(tmp_path / ".recover") as ws:
        initialise(ws)
        with pytest.raises(KeyboardInterrupt):
            run_stage(ws, "distill", interrupt, config=job.model_dump(), key="k")
    with (
        Workspace.open(tmp_path / ".recover", implicit=True) as ws,
        pytest.raises(InputError, match=rf"run distill-\S+ asks to run {REWARD} \(distill.reward\)"),
    ):
        resume(ws)


def test_a_demo_that_was_only_found_goes_on_with_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = changed(PRESET, {"distill.reward": REWARD})
    named = {"docs": "d", "student": "s", "clean": "s", "prompts": "microworld", "suites": ["knowledge"]}
    row = {"id": "cycle-1", "config": {**named, "settings": settings.model_dump()}}
    monkeypatch.setattr("db.reads.queries.run_of_key", lambda *_, **__: row)
    ws: Any = SimpleNamespace(tracker=SimpleNamespace(db=None), implicit=True, home=Path(".recover"))
    stage: Any = SimpleNamespace(id="demo-1")
    with pytest.raises(InputError, match="run cycle-1 asks to run"):
        demo._begun(ws, stage, "cycle:1")
    ws.implicit = False
    assert demo._begun(ws, stage, "cycle:1")


def test_fitted_settings_that_were_kept_run_no_other_code_than_the_run_s_own(tmp_path: Path) -> None:
    mine = PRESET.distill
    kept = {**mine.model_dump(mode="json"), "reward": REWARD}

    def fit(settings: DistillConfig, *_: object) -> DistillConfig:
        return settings

    stage: Any = SimpleNamespace(workspace=None, directory=tmp_path, once=lambda *_: kept)
    with pytest.raises(InputError, match="asks to run other code than its run does"):
        fitted_once(stage, "base", mine, fit)
    assert fitted_once(stage, "base", changed(PRESET, {"distill.reward": REWARD}).distill, fit)


@pytest.mark.parametrize("given", ["inprocess", "http://gpu.example:8000"])
def test_fitted_settings_that_were_kept_name_no_other_server_than_the_run_s_own(
    tmp_path: Path, given: str
) -> None:
    mine = changed(PRESET, {"distill.sampler": given}).distill
    kept = {**mine.model_dump(mode="json"), "teacher_engine": "http://another.example:8000"}
    stage: Any = SimpleNamespace(workspace=None, directory=tmp_path, once=lambda *_: kept)
    with pytest.raises(InputError, match="names another server than its run does"):
        fitted_once(stage, "base", mine, lambda settings, *_: settings)


def test_a_resumed_run_takes_its_files_as_they_are_named_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its home may have been moved; only what was fitted is as it was at the first start."""
    kept: list[dict[str, Any]] = []

    def once(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if not kept:
            kept.append(make())
        return kept[0]

    def fit(settings: DistillConfig, *_: object) -> DistillConfig:
        return settings.model_copy(update={"microbatch_tokens": 512 * (1 + len(kept))})

    monkeypatch.setattr("pipelines.machine.fitting.fitted_here", lambda _, __, settings, fit: fit(settings))
    ws: Any = SimpleNamespace(checkpoint=lambda name: name)
    stage: Any = SimpleNamespace(workspace=ws, directory=tmp_path, once=once)
    for place in ("old/pairs.jsonl", "new/pairs.jsonl"):
        taken = fitted_once(stage, "base", changed(PRESET, {"distill.pairs": place}).distill, fit)
        assert (taken.pairs, taken.microbatch_tokens) == (place, 512)
