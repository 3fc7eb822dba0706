"""The Python surface: the same calls, settings and results as the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipelines
from db.reads import queries
from pipelines import Home
from pipelines.cli import main
from pipelines.cli.options import Session, finite
from pipelines.job_from_options.train import distill_job
from recovery.errors import InputError
from tests.support import tiny
from tests.support.small_cycles import make_home, settle

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
AS_IT_IS = {"distill.merge": 0.0, "distill.rehearsal": 0.0}
LAZY = "import sys, pipelines; pipelines.Home; print(*sys.modules)"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home of a tiny model, with settings for the shortest of runs."""
    with make_home(tmp_path) as workspace:
        settle(workspace, margin=0.4, learning_rate=1e-4)
    with Home.open(tmp_path / "home", quiet=True) as opened:
        yield opened


def recorded_settings(home: Home, result: dict[str, Any]) -> dict[str, Any]:
    """The settings that a stage ran with."""
    made_by = home.show(result["checkpoint"])["run_id"]
    settings: dict[str, Any] = home.show(made_by)["config"]["settings"]
    return settings


def test_what_a_command_refuses_a_call_refuses(home: Home, docs: Path) -> None:
    """A blank folder was the current one, and -1 cycles kept none."""
    for call in (home.midtrain, home.cycle):
        with pytest.raises(InputError, match="docs: is blank: give a path"):
            call("")
        with pytest.raises(InputError, match="augment: is blank: give a path"):
            call(docs, augment=" ")
    with pytest.raises(InputError, match="cycles=-1: give 0 or more"):
        home.prune(cycles=-1, remove=True)
    for settings in ({"distill.rehearsal": 0.5}, {"distill": {"merge": 0.5}}):
        with pytest.raises(InputError, match="has no effect with recover_with='merge': leave it out"):
            home.cycle(docs, recover_with="merge", settings=settings)


def test_a_model_in_the_users_own_folder_may_be_named_by_a_tilde(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tiny.save(tmp_path / "other", seed=3)
    named, absolute = (home.workspace.checkpoint(place) for place in ("~/other", f"{tmp_path}/other"))
    assert named == absolute
    own = home.workspace.checkpoint("base").id
    assert home.workspace.resolve(f"~/home/checkpoints/{own}") == own


def test_stages_run_with_the_settings_of_the_call(home: Home, docs: Path) -> None:
    taught = home.midtrain(str(docs), settings={"midtrain.steps": 2})
    back = home.distill(settings={**AS_IT_IS, "distill.steps": 3, "distill.optimizer.weight_decay": 0.5})
    scores = home.evaluate(suites="knowledge", settings={"eval.limit": 5})
    assert recorded_settings(home, taught)["steps"] == 2
    assert recorded_settings(home, back)["steps"] == 3
    assert recorded_settings(home, back)["optimizer"]["weight_decay"] == 0.5
    assert home.show(back["checkpoint"])["parent_id"] == taught["checkpoint"]
    assert home.show("current")["id"] == back["checkpoint"] == scores["checkpoint"]
    assert {suite: row["n"] for suite, row in scores["scores"].items()} == {"knowledge": 5}


@pytest.mark.parametrize(("folder", "named"), [(".", "home"), ("home", "."), ("home/corpus", "..")])
def test_relative_paths_of_a_home_that_is_named_from_within_start_from_the_folder_it_lies_in(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, named: str
) -> None:
    settings = tmp_path / "home" / "recover.yaml"
    asked = re.sub("^  ifeval: .*$", "  ifeval: home/asked.jsonl", settings.read_text(), flags=re.MULTILINE)
    settings.write_text(asked)
    (tmp_path / "home" / "corpus").mkdir()
    (tmp_path / "home" / "asked.jsonl").touch()
    home.close()
    monkeypatch.chdir(tmp_path / folder)
    wanted = str(tmp_path / "home" / "asked.jsonl")
    with Home.open(named, quiet=True) as opened:
        assert opened.workspace.config.eval.ifeval == wanted
    with Session(home=named, quiet=True).workspace() as ws:
        assert ws.config.eval.ifeval == wanted


def test_a_link_to_a_home_stays_as_it_was_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "home")
    home.close()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Session(home="link").place == Path("link")
    with Home.open("link", quiet=True) as opened:
        assert opened.workspace.home == tmp_path / "elsewhere" / "link"


def test_files_beside_the_documents_of_a_distillation_are_its_inputs(home: Home, docs: Path) -> None:
    job = distill_job(home.workspace, "base", "base", docs=docs)
    assert job.prompts == str(docs.parent / "prompts.jsonl")
    assert job.evaluation.probes == str(docs.parent / "probes.jsonl")


@pytest.mark.slow
def test_results_are_those_that_the_commands_print(
    home: Home, docs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: str) -> Any:
        place = str(home.workspace.home)
        monkeypatch.setattr(sys, "argv", ["recover", "--home", place, "--json", "-q", *words])
        main()
        return json.loads(capsys.readouterr().out)

    def as_json(result: dict[str, Any]) -> Any:
        return json.loads(json.dumps(finite(result), default=str))

    assert as_json(home.cycle(docs, suites="ifeval", settings=AS_IT_IS)) == printed("show", "cycle:1")
    monkeypatch.chdir(docs.parent)
    files = {"eval.limit": 4, "eval.ifeval": Path("ifeval.jsonl")}
    by_call = as_json(home.evaluate("base", suites="ifeval", settings=files))
    by_command = printed("eval", "base", "--suite", "ifeval", "--limit", "4", "--ifeval", "ifeval.jsonl")
    assert by_call.keys() == by_command.keys()
    assert by_call["scores"] == by_command["scores"]
    newest = queries.runs(home.workspace.tracker.db, kind="eval", limit=2)
    assert newest[0]["config"] == newest[1]["config"]


@pytest.mark.parametrize("key", ["distil.steps", "distill.step", "steps", "distill.steps.more", "seed.steps"])
def test_an_unknown_setting_is_refused_before_anything_runs(home: Home, docs: Path, key: str) -> None:
    with pytest.raises(InputError, match="there is no such setting"):
        home.cycle(docs, settings={key: 1})


@pytest.mark.parametrize("settings", [{"model.dtype": "bfloat16"}, {"engine": {"max_length": 512}}])
def test_a_section_of_the_whole_home_is_not_set_by_a_call(
    home: Home, docs: Path, settings: dict[str, Any]
) -> None:
    """It was taken, and had no effect."""
    for call in (home.cycle, home.midtrain):
        with pytest.raises(InputError, match=r"^(model\.dtype|engine): .* set it in recover\.yaml$"):
            call(docs, settings=settings)
    with pytest.raises(InputError, match=r"set it in recover\.yaml$"):
        home.evaluate(settings=settings)


@pytest.mark.parametrize("lora", ["auto", {}, None])
def test_an_adapter_is_given_as_in_recover_yaml(home: Home, docs: Path, lora: object) -> None:
    taught = home.midtrain(docs, settings={"midtrain.lora": lora, "midtrain.steps": 1})
    assert (home.show(taught["checkpoint"])["kind"] == "adapter") == (lora == {})


def test_unknown_tasks_are_refused_as_by_the_command(home: Home) -> None:
    with pytest.raises(InputError, match="mmlo"):
        home.evaluate(suites="mmlo")
    assert queries.runs(home.workspace.tracker.db, kind="eval") == []


def test_a_home_is_opened_only_where_one_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not initialised"):
        Home.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_home_stays_where_it_was_opened_and_a_tilde_is_the_folder_of_the_user(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "user" / "empty"
    empty.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(empty.parent))
    monkeypatch.chdir(tmp_path)
    with Home.open("home", quiet=True) as same:
        monkeypatch.chdir(empty)
        assert same.workspace.home == home.workspace.home
        with pytest.raises(InputError, match=f"^{re.escape(str(empty))}.* no readable document"):
            same.midtrain("~/empty", settings={"midtrain.steps": 1})


def test_init_makes_a_home_once(tmp_path: Path) -> None:
    with Home.init(tmp_path / "home", quiet=True) as first:
        base = first.show("base")["id"]
    with Home.init(tmp_path / "home", quiet=True) as again:
        assert again.show("base")["id"] == base
    with pytest.raises(InputError, match="already names the model"):
        Home.init(tmp_path / "home", "Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("blank", ["", " "])
def test_a_home_of_blank_values_is_neither_made_nor_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    """A blank path was the current folder, a blank model the shipped one."""
    monkeypatch.chdir(tmp_path)
    for call in (Home.init, Home.open):
        with pytest.raises(InputError, match="path: is blank: give a path"):
            call(blank, quiet=True)
        with pytest.raises(InputError, match="db: is blank: give it a value, or leave it out"):
            call("home", db=blank, quiet=True)
    with pytest.raises(InputError, match="model: is blank: give it a value, or leave it out"):
        Home.init("home", blank, quiet=True)
    with pytest.raises(InputError, match="preset: is blank"):
        Home.init("home", preset=blank, quiet=True)
    with pytest.raises(InputError, match="revision: is blank"):
        Home.init("home", revision=blank, quiet=True)
    assert not list(tmp_path.iterdir())


def test_the_package_names_home_and_loads_no_heavy_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"torch", "transformers", "sqlalchemy"}.isdisjoint(done.stdout.split())
    with pytest.raises(AttributeError, match="no attribute 'House'"):
        pipelines.House  # noqa: B018


def run_example(source: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_the_ten_line_example_of_the_page_runs(tmp_path: Path) -> None:
    printed = run_example(EXAMPLES[0], tmp_path)
    assert [line.split()[0] for line in printed.splitlines()] == [
        "ifeval",
        "knowledge",
        "retention",
        "rejected",
    ]


@pytest.mark.slow
def test_the_example_of_the_core_alone_runs(tmp_path: Path) -> None:
    steps, tokens = run_example(EXAMPLES[1], tmp_path).split()
    assert steps == "2"
    assert int(tokens) > 0


class Killed(BaseException):
    """The end of a process that can do nothing about it."""


def test_a_kill_right_after_a_distillation_has_moved_current(
    home: Home, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is done is never resumed, so nothing may be left to do after that."""
    home.midtrain(docs, settings={"midtrain.steps": 1})
    tracker = home.workspace.tracker
    finish_run, results = tracker.finish_run, list[dict[str, Any]]()

    def killed_after(run_id: str, result: dict[str, Any], **rest: Any) -> None:
        finish_run(run_id, result, **rest)
        results.append(result)
        raise Killed

    monkeypatch.setattr(tracker, "finish_run", killed_after)
    with pytest.raises(Killed):
        home.distill(settings={**AS_IT_IS, "distill.steps": 1})
    assert home.show("current")["id"] == results[-1]["checkpoint"]
