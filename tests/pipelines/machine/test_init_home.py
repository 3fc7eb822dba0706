"""What `recover init` writes into a home: the preset, and the pinned date of templates that write one."""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest
import yaml
from transformers.utils import chat_template_utils

from pipelines.config.settings import parse, preset_text
from pipelines.home import Home
from pipelines.machine import init_home, pinned_settings
from pipelines.machine.init_home import _preset, initialise
from pipelines.machine.pinned_settings import with_template_arg
from pipelines.runs.progress import Progress
from pipelines.runs.unmade_home import left_as_found
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import tiny
from tests.support.chat_families import CHATML

DATED = "{{ 'Today is ' + strftime_now('%d %B %Y') + '\n' }}" + tiny.TEMPLATE
USER = {"role": "user", "content": "a"}


def save(directory: Path, template: str) -> str:
    tiny.save(directory)
    tiny.tokenizer(chat_template=template).save_pretrained(directory)
    return str(directory)


@pytest.mark.parametrize("preset", ["real", "cpu", "microworld"])
def test_a_template_s_date_is_pinned_in_the_home(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(tmp_path / "model", DATED)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=model, preset=preset)
    today = datetime.date.today()

    class Midnight(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Self:
            return cls(2031, 5, 6, tzinfo=tz)

    monkeypatch.setattr(chat_template_utils, "datetime", Midnight)
    with Workspace.open(tmp_path / "home") as ws:  # as a resumed run opens it, on another day
        chat = ws.load(ws.clean())
        assert chat.text(chat.prompt_ids([USER])).startswith(f"Today is {today:%d %B %Y}\n")
        assert chat.encoder.date == today.isoformat() == ws.config.model.template_args["today"]
        chat.template_args.pop("today")
        del chat.encoder
        assert "06 May 2031" in chat.text(chat.prompt_ids([USER]))  # what the pin protects from
        initialise(ws, model=model)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("./missing", "{here}/missing: no such model directory"),
        ("modle.gguf", "{here}/modle.gguf: no such file: check the path"),
        ("notes.bin", "{here}/notes.bin: a file: give a model's directory, a GGUF file or a hub id"),
        ("", "--model: give a model's directory"),
    ],
)
def test_a_model_that_is_not_there_is_named_as_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "notes.bin").write_text("no model")
    monkeypatch.chdir(here)
    with Workspace.open(tmp_path / "home") as ws, pytest.raises(InputError) as refused:
        initialise(ws, model=model)
    assert str(refused.value).startswith(said.format(here=here))
    assert not (tmp_path / "home" / "recover.yaml").exists()


@pytest.mark.parametrize("there", [None, [], ["recover.yaml", "notes.txt"]])
def test_a_home_that_could_not_be_set_up_is_left_as_it_was(tmp_path: Path, there: list[str] | None) -> None:
    """A database and empty folders remained, also of a home named by mistake."""
    home = tmp_path / "new" / "home"
    if there is not None:
        home.mkdir(parents=True)
    for name in there or []:
        (home / name).write_text(preset_text("microworld") if name == "recover.yaml" else "mine")
    with pytest.raises(InputError, match=r"no such model directory|already names the model"):
        Home.init(home, tmp_path / "missing", quiet=True)
    assert (tmp_path / "new").exists() is (there is not None)
    if there is not None:
        assert sorted(path.name for path in home.iterdir()) == sorted(there)


def test_a_named_database_is_left_as_it_was_where_a_home_could_not_be_set_up(tmp_path: Path) -> None:
    home, database = tmp_path / "home", tmp_path / "records.db"
    for _ in range(2):  # a second attempt begins as the first one did
        with pytest.raises(InputError, match="no such model directory"):
            Home.init(home, tmp_path / "missing", db=str(database), quiet=True)
        assert not list(tmp_path.iterdir())
    Workspace.open(home, str(database)).close()
    with pytest.raises(InputError, match="no such model directory"):
        Home.init(home, tmp_path / "missing", db=str(database), quiet=True)
    assert database.exists()  # it was there before


def test_a_new_database_that_another_home_has_taken_meanwhile_stays(tmp_path: Path) -> None:
    database = str(tmp_path / "records.db")

    def fail() -> None:
        with left_as_found(tmp_path / "home", database):
            Home.init(tmp_path / "other", str(tiny.save(tmp_path / "model")), db=database, quiet=True).close()
            raise InputError("failed")

    with pytest.raises(InputError, match="failed"):
        fail()
    assert Path(database).exists()


def test_what_another_process_has_put_into_a_new_home_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def fail() -> None:
        with left_as_found(home, None), Workspace.open(home) as ws:
            (ws.home / "recover.yaml").write_text("model: other")
            raise InputError("failed")

    with pytest.raises(InputError, match="failed"):
        fail()
    assert {"recover.db", "recover.yaml"} <= {path.name for path in home.iterdir()}


def test_a_new_database_that_another_process_has_open_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def fail() -> None:
        with left_as_found(home, None), Workspace.open(home):
            others.append(Workspace.open(home))
            raise InputError("failed")

    others: list[Workspace] = []
    with pytest.raises(InputError, match="failed"):
        fail()
    assert {"recover.db", "recover.db-wal"} <= {path.name for path in home.iterdir()}
    others[0].close()


def test_what_lies_beside_a_database_that_was_there_stays(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Workspace.open(home).close()
    lock = home / "recover.db-lock"
    lock.unlink()

    def fail() -> None:
        with left_as_found(home, None):
            lock.touch()  # as a process that writes does
            raise InputError("failed")

    with pytest.raises(InputError, match="failed"):
        fail()
    assert lock.exists()


def test_settings_that_are_written_anew_pin_what_the_first_ones_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is registered already then: prompts followed the clock from there on."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipelines.machine.product_speed.is_faster_in_bfloat16", lambda: True)
    monkeypatch.setattr(pinned_settings, "SMALL_MODEL", 0)
    model = save(tmp_path / "model", DATED)
    settings = tmp_path / "home" / "recover.yaml"
    for _ in range(2):
        with Workspace.open(tmp_path / "home") as ws:
            initialise(ws, model=model, preset="cpu")
            assert ws.config.model.dtype == "bfloat16"
            assert ws.config.model.template_args["today"] == datetime.date.today().isoformat()
        settings.rename(f"{settings}.old")


def test_a_date_that_the_settings_name_stays(tmp_path: Path) -> None:
    model = save(tmp_path / "model", DATED)
    with Workspace.open(tmp_path / "home") as ws:
        args = '{today: "2026-01-31"}'
        text = (Path(__file__).parents[3] / "pipelines/config/presets/microworld.yaml").read_text()
        text = text.replace("path: microworld", f"path: {model}\n  template_args: {args}")
        (ws.home / "recover.yaml").write_text(text)
        initialise(ws)
        assert ws.config.model.template_args == {"today": "2026-01-31"}


def test_a_template_without_a_date_pins_none(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=save(tmp_path / "model", tiny.TEMPLATE), preset="microworld")
        assert "today" not in (ws.home / "recover.yaml").read_text()


@pytest.mark.parametrize(
    "settings",
    [
        "model:\n  path: x\n  dtype: auto\n",
        "model:\n  path: x\n  template_args: {a: 1}  # why\n",
        "model:\n  path: x\n  template_args: {}\n",
        "model:\n  template_args:\n    a: 1\n    b: {c: 2}\n  path: x\n",
    ],
)
def test_an_entry_is_added_to_template_args_however_they_are_written(settings: str) -> None:
    before = yaml.safe_load(settings)["model"]
    after = yaml.safe_load(with_template_arg(settings, 'today: "2026-01-31"'))["model"]
    assert after.pop("template_args") == before.pop("template_args", {}) | {"today": "2026-01-31"}
    assert after == before


def test_a_model_s_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is typed is seen from the current folder, one in recover.yaml from the home's."""
    tiny.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with Workspace.open(tmp_path / "home") as ws:
        assert initialise(ws, model="model", preset="microworld")["model"] == str(tmp_path / "model")
    path = tmp_path / "home" / "recover.yaml"
    path.write_text(path.read_text().replace(json.dumps(str(tmp_path / "model")), "model"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with Workspace.open(tmp_path / "home") as ws:
        assert ws.config.model.path == str(tmp_path / "model")
        assert ws.load(ws.clean()).stop_ids


@pytest.mark.parametrize(
    "model", ["/models/\U0001f999 7B", "/models/B\u00e4r", "/models/a\u2028b\x7f", f"/{'a b/' * 60}c"]
)
def test_a_model_s_path_may_hold_any_character(tmp_path: Path, model: str) -> None:
    """Of one beyond U+FFFF two halves were written, which are read as two characters."""
    path = tmp_path / "recover.yaml"
    init_home._write_settings(path, model, model, "microworld")
    found = parse(path.read_text(encoding="utf-8"), "").model
    assert (found.path, found.revision) == (model, model)


@pytest.mark.slow
def test_a_preset_for_settings_that_exist_says_how_to_write_them_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(tiny.save(tmp_path / "a model"))
    with Workspace.open(tmp_path / "home", progress=Progress()) as ws:
        base = initialise(ws, model=model, preset="cpu")["base"]
        assert "is kept" not in capsys.readouterr().err
        initialise(ws, preset="microworld")
        (said,) = [line for line in capsys.readouterr().err.splitlines() if "is kept" in line]
        before = ws.config
    assert parse((tmp_path / "home" / "recover.yaml").read_text(), "") == before
    command = said.split("anew: ")[1]
    python = shlex.quote(sys.executable)
    (tmp_path / "recover").write_text(f'#!/bin/sh\nexec {python} -m pipelines.cli "$@"\n')
    (tmp_path / "recover").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    subprocess.run(command, shell=True, check=True, timeout=120)
    with Workspace.open(tmp_path / "home") as ws:
        assert ws.clean().id == base
        assert ws.config.model.path == model and ws.config.distill != before.distill


def test_another_revision_for_settings_that_exist_is_refused(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws)
        with pytest.raises(
            InputError, match=r"already names the revision None, not 'v2': use another --home$"
        ):
            initialise(ws, revision="v2")


def test_settings_whose_model_is_not_registered_may_be_edited(tmp_path: Path) -> None:
    """Once it is, the edit would be refused too."""
    with Workspace.open(tmp_path / "home") as ws:
        (ws.home / "recover.yaml").write_text(preset_text("microworld"))
        with pytest.raises(InputError, match=r"already names the model .*: use another --home, or edit it$"):
            initialise(ws, model="owner/name")


@pytest.mark.parametrize("preset", ["real", "cpu"])
def test_a_preset_for_other_models_than_the_tiny_one_asks_for_the_model(tmp_path: Path, preset: str) -> None:
    with Workspace.open(tmp_path / "home") as ws:
        with pytest.raises(
            InputError, match=f"^--preset {preset}: name the model that it is for, as in --mo"
        ):
            initialise(ws, preset=preset)
        assert not (ws.home / "recover.yaml").exists()
        assert initialise(ws, preset="microworld")["model"] == "microworld"


@pytest.mark.parametrize(("gpu", "samples"), [(True, 4), (False, 1)])
def test_without_a_gpu_a_real_model_gets_sizes_for_a_cpu(
    gpu: bool, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    assert _preset("some/model") == ("real" if gpu else "cpu") and _preset("microworld") == "microworld"
    chosen = parse(preset_text(_preset("some/model")), "preset")
    assert chosen.distill.samples_per_prompt == samples


@pytest.mark.parametrize("few", [1, 5e8])
def test_a_small_model_on_a_gpu_is_told_of_the_smaller_preset(
    few: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init_home, "_preset", lambda _: "real")
    monkeypatch.setattr(init_home, "FEW_WEIGHTS", few)
    said: list[str] = []
    with Workspace.open(tmp_path / "home") as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        initialise(ws, model=str(tiny.save(tmp_path / "model")))
    assert any("`--preset cpu`" in line for line in said) == (few > 1)


def test_the_presets_for_real_models_differ_in_sizes_alone() -> None:
    real, cpu = (parse(preset_text(name), name).model_dump() for name in ("real", "cpu"))
    assert real["midtrain"]["mix"] == cpu["midtrain"]["mix"]
    for same in ("method", "prompts", "lora", "overlap", "rehearsal"):
        assert real["distill"][same] == cpu["distill"][same]
    assert real["eval"]["ifeval"] == cpu["eval"]["ifeval"]


@pytest.mark.parametrize("preset", ["real", "cpu"])
def test_a_large_model_is_bfloat16_where_the_processor_multiplies_it_faster(
    preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipelines.machine.product_speed.is_faster_in_bfloat16", lambda: True)
    tiny.save(tmp_path / "model")
    written = {}
    for name, threshold in {"small": 2**26, "large": 0}.items():
        monkeypatch.setattr(pinned_settings, "SMALL_MODEL", threshold)
        with Workspace.open(tmp_path / name) as ws:
            initialise(ws, model=str(tmp_path / "model"), preset=preset)
            written[name] = ws.config.model.dtype
            assert str(ws.load(ws.clean()).model.dtype).endswith({"small": "32", "large": "16"}[name])
    assert written == {"small": "auto", "large": "bfloat16"}


def test_other_processors_keep_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("pipelines.machine.product_speed.is_faster_in_bfloat16", lambda: False)
    monkeypatch.setattr(pinned_settings, "SMALL_MODEL", 0)
    tiny.save(tmp_path / "model")
    assert not pinned_settings.gains_by_bfloat16(tmp_path / "model")


def test_settings_do_not_stay_behind_an_attempt_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would refuse another model at the next attempt, whatever ended this one."""
    model = str(tiny.save(tmp_path / "model"))
    with Workspace.open(tmp_path / "home") as ws, monkeypatch.context() as patched:
        patched.setattr("recovery.models.hub.locate", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            initialise(ws, model="microworld")
    with Workspace.open(tmp_path / "home") as ws:
        assert initialise(ws, model=model)["model"] == model


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_home_whose_first_init_was_killed_asks_for_another_one(tmp_path: Path) -> None:
    """As while the model is fetched, which may take an hour: the settings are there by then."""
    with Workspace.open(tmp_path / "home") as ws:
        (ws.home / "recover.yaml").write_text(preset_text("microworld"))
        for name in ("base", "current"):
            first = re.escape(f"{ws.home} is not initialised: run `recover --home {ws.home} init` first")
            with pytest.raises(InputError, match=first):
                ws.checkpoint(name)
        initialise(ws)
        assert ws.checkpoint("current") == ws.clean()


def test_an_interruption_between_the_two_aliases_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(tiny.save(tmp_path / "model"))
    with Workspace.open(tmp_path / "home") as ws:
        set_alias, named = ws.tracker.set_alias, list[str]()

        def killed_after_one(name: str, checkpoint_id: str) -> None:
            if named:
                raise KeyboardInterrupt
            named.append(name)
            set_alias(name, checkpoint_id)

        monkeypatch.setattr(ws.tracker, "set_alias", killed_after_one)
        with pytest.raises(KeyboardInterrupt):
            initialise(ws, model=model)
    with Workspace.open(tmp_path / "home") as ws:
        initialise(ws, model=model)
        assert ws.checkpoint("current") == ws.checkpoint("base")


OPENS = CHATML + "{% if add_generation_prompt %}{{ '<think>\n' }}{% endif %}"


@pytest.mark.parametrize(
    ("template", "preset", "thinks"),
    [
        (OPENS, "cpu", True),
        (OPENS, "microworld", False),  # which switches nothing off
        (tiny.TEMPLATE, "cpu", False),
        (CHATML, "cpu", False),
    ],
)
def test_a_template_that_thinks_whatever_the_preset_says_is_named(
    template: str, preset: str, thinks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with Workspace.open(tmp_path / "home") as ws:
        monkeypatch.setattr(ws.progress, "say", said.append)
        initialise(ws, model=save(tmp_path / "model", template), preset=preset)
    assert any("does not know enable_thinking" in line for line in said) == thinks
