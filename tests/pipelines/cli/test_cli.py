"""The command line as scripts meet it: one JSON document, or one line of error and nothing half-written."""

from __future__ import annotations

import json
import logging
import re
import resource
import sqlite3
import subprocess
import sys
import warnings
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from db.reads import changes
from db.schema import DEFAULT_PROJECT
from db.writes.tracker import Tracker
from pipelines.cli.commands import COMMANDS, cli
from pipelines.cli.cycles import demo_story
from pipelines.cli.setting_options import SettingOption
from pipelines.config import settings
from pipelines.runs.workspace import Workspace
from pipelines.writing.self_prompts import GOES_ON
from recovery import command_line
from recovery.methods import method
from tests.support import tiny
from tests.support.commands import (
    QUESTION,
    Recover,
    Said,
    jsonl,
    make_small,
    make_world,
    run_quietly,
)
from tests.support.present import present
from tests.support.self_written import writes_questions

LAZY = """import sys
from pipelines.cli.commands import cli
cli.main(["--help"], standalone_mode=False)
print(*sys.modules)"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, world: Path) -> Path:
    """A home in which a tiny model was taught, distilled and measured."""
    root = tmp_path_factory.mktemp("home")
    home = root / "home"
    run_quietly("-q", "--home", home, "init", "--model", tiny.save(root / "model"), "--preset", "microworld")
    make_small(home / "recover.yaml")
    run_quietly("-q", "--home", home, "midtrain", "--docs", world)
    run_quietly("-q", "--home", home, "distill", "--set", "epochs=1")
    run_quietly("-q", "--home", home, "eval")
    return home


@pytest.fixture
def fresh(tmp_path: Path, home: Path) -> Path:
    """A home with the same model and settings where nothing has happened yet."""
    (tmp_path / "fresh").mkdir()
    text = (home / "recover.yaml").read_text()
    (tmp_path / "fresh" / "recover.yaml").write_text(text)
    run_quietly("-q", "--home", tmp_path / "fresh", "init")
    return tmp_path / "fresh"


# --help ----------------------------------------------------------------------------------------------------


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    seconds, modules = quickest_of_three(LAZY)
    click_alone, _ = quickest_of_three("import click")
    assert seconds < 6 * click_alone  # PyTorch alone takes more, on a machine of any speed
    heavy = {"torch", "transformers", "sqlalchemy", "lm_eval", "numpy", "pydantic", "peft", "datasets"}
    assert not modules & heavy


def quickest_of_three(code: str) -> tuple[float, set[str]]:
    """Processor time of an interpreter of its own, however busy the machine is, and what it printed."""

    def run() -> tuple[float, set[str]]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, set(done.stdout.split())

    return min((run() for _ in range(3)), key=lambda found: found[0])


@pytest.mark.slow
def test_a_misspelled_suite_is_refused_before_lm_eval_is_loaded(home: Path) -> None:
    words = ["--home", str(home), "eval", "--suite", "ifevl"]
    code = f"from pipelines.cli.commands import cli\ntry:\n cli.main({words}, standalone_mode=False)\n"
    code += "except Exception as error:\n print(error)\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said, modules = done.stdout.splitlines()
    assert "did you mean ifeval?" in said
    assert not {"lm_eval", "torch"} & set(modules.split())  # its index takes ten seconds


def test_help_lists_every_command(recover: Recover) -> None:
    said = recover("--help")
    assert (said.code, said.err) == (0, "")
    assert all(re.search(rf"^  {name} ", said.out, re.MULTILINE) for name in COMMANDS)


def test_help_begins_with_the_commands_of_a_first_cycle_in_their_order(recover: Recover) -> None:
    lines = recover("--help").out.splitlines()
    path = ["init", "corpus", "probes", "cycle", "verdict", "dashboard"]
    assert [line.split()[1] for line in lines if line.startswith("  recover ")] == path
    first = lines.index("From documents to a verdict, in this order:")
    assert [line.split()[0] for line in lines[first + 1 : first + 7]] == path


def command_of(name: str) -> click.Command:
    return present(cli.get_command(click.Context(cli), name))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_says_what_it_is(name: str) -> None:
    command = command_of(name)
    assert command.help
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert not [option.opts for option in options if not option.help]


def test_every_setting_option_names_a_setting() -> None:
    data = settings.parse(settings.preset_text("real"), "preset").model_dump()
    options = [option for name in COMMANDS for option in command_of(name).params]
    keys = {option.key for option in options if isinstance(option, SettingOption)}
    assert len(keys) > 20
    for key in keys:
        *sections, name = key.split(".")
        assert name in reduce(lambda section, part: section[part], sections, data), key


def test_version(recover: Recover) -> None:
    assert re.fullmatch(r"recover, version \d+\.\d+\.\d+\n", recover("--version").out)


# JSON ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--json --home HOME ls checkpoints", "ls checkpoints --home HOME --json"])
def test_shared_options_stand_before_or_after_the_command(recover: Recover, home: Path, words: str) -> None:
    said = recover(*[home if word == "HOME" else word for word in words.split()])
    assert (said.code, said.err) == (0, "")
    assert [row["kind"] for row in said.json] == ["reference", "full", "full"]


def test_home_from_the_environment_gives_way_to_what_is_typed(
    recover: Recover, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECOVER_HOME", str(home))
    assert len(recover("ls", "checkpoints", "--json").json) == 3
    monkeypatch.setenv("RECOVER_HOME", str(tmp_path / "other"))
    assert len(recover("--home", home, "ls", "checkpoints", "--json").json) == 3
    assert len(recover("ls", "checkpoints", "--json", "--home", home).json) == 3
    assert not (tmp_path / "other").exists()


def test_methods_are_a_list_of_rows(recover: Recover) -> None:
    said = recover("methods", "--json")
    rows = {row["name"]: row for row in said.json}
    assert {"opd", "opd-sampled", "sft"} <= set(rows)
    assert {"name", "states", "signal", "teacher", "context", "rails", "source"} <= set(rows["opd"])
    assert rows["opd"]["dials"] == {} and rows["asft"]["dials"] == {
        "anchor_beta": 0.1,
        "anchor_kl": "forward",
    }
    lines = recover("methods").out.splitlines()
    (row,) = (line.split() for line in lines if line.startswith("opd-sampled "))
    assert row[1:7] == ["student", "sampled_reverse_kl", "base", "none", "ratio_clip=0.2", "epochs=2"]


def test_methods_end_with_every_dial_and_what_it_does(recover: Recover) -> None:
    _, dials = recover("methods").out.split("\n\n")
    found = {line.split()[0]: " ".join(line.split()[1:]) for line in dials.splitlines()[1:]}
    assert found["ema"] == "0.95 decay of the moving-average teacher at each step"
    assert found["ratio_clip"].startswith("none PPO: ") and found["signal"].startswith("by row training")
    assert found["tail"] == "bucket topk: mass outside the k entries (bucket, renormalise)"
    assert set(found) == set(method.dials())


def test_one_method_is_shown_with_what_its_dials_mean(recover: Recover) -> None:
    lines = recover("methods", "opd-near").out.splitlines()
    assert lines[0] == "opd-near: opd towards a teacher within kl_budget of the student"
    assert lines[1] == "source: cf. arXiv 2609.24646"
    assert lines[2].startswith("of it opd-near keeps opd; adds a teacher")
    assert [line.split()[:2] for line in lines[3:-1]] == [
        ["dial", "value"],
        ["states", "student"],
        ["signal", "reverse_kl"],
        ["teacher", "base"],
        ["context", "none"],
        ["kl_budget", "0.1"],
    ]
    assert lines[8].endswith("most KL(teacher||student): a teacher further away is moved towards the student")
    assert [row["name"] for row in recover("methods", "opd-near", "--json").json] == ["opd-near"]


@pytest.mark.parametrize("words", ["methods opdd", "distill --method opdd", "cycle --docs . --method opdd"])
def test_an_unknown_method_is_refused_before_there_is_a_home(
    recover: Recover, tmp_path: Path, words: str
) -> None:
    said = recover("--home", tmp_path / "none", *words.split())
    assert (said.code, said.error) == (
        2,
        "Error: no method is called 'opdd' (did you mean 'opd'?): see `recover methods`",
    )


def test_init_says_that_the_model_is_the_shipped_one(recover: Recover, tmp_path: Path) -> None:
    lines = recover("-q", "--home", tmp_path / "home", "init").out.splitlines()
    assert lines[1].startswith("this is the shipped tiny model, for trying out (`recover demo`): for one of")
    assert lines[2].startswith("next: ")


def test_cycles_are_listed_with_their_date_and_documents(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "recover.db"
    with Tracker(database) as tracker:
        for config in ({"docs": "/srv/wiki/project/february"}, {}):
            tracker.record_cycle(tracker.start_run("cycle", key=str(config), config=config).id)
    first, second = recover("--db", database, "ls", "--json").json
    assert (first["docs"], second["docs"]) == ("/srv/wiki/project/february", None)
    head, *rows, _ = (line.split() for line in recover("--db", database, "ls").out.splitlines())
    assert head[:3] == ["cycle", "date", "documents"]
    assert [row[:3] for row in rows] == [
        ["1", first["started_at"][:10], "…/project/february"],
        ["2", second["started_at"][:10], "-"],
    ]


def test_the_evaluated_checkpoint_is_named_with_its_aliases(
    recover: Recover, home: Path, world: Path
) -> None:
    first = recover("--home", home, "ls", "checkpoints", "--json").json[0]
    assert "base" in first["aliases"]
    names = ", ".join(first["aliases"])
    said = recover("--home", home, "eval", first["id"], "--ifeval", world.parent / "ifeval.jsonl")
    assert f"  checkpoint   {first['id']} ({names})" in said.err
    assert re.search(rf"{first['id']} +{names} +reference", recover("--home", home, "ls", "checkpoints").out)


def test_eval_prints_what_scripts_rely_on(recover: Recover, home: Path, world: Path) -> None:
    asked = ["--suite", "ifeval", "--ifeval", world.parent / "ifeval.jsonl"]
    said = recover("-q", "--home", home, "eval", "base", "--json", *asked)
    assert (said.code, said.err) == (0, "")
    score = said.json["scores"]["ifeval"]
    assert {
        "score",
        "n",
        "interval",
        "by_instruction",
        "prompt_level_strict_acc",
        "prompt_level_loose_acc",
        "inst_level_strict_acc",
        "inst_level_loose_acc",
    } <= set(score)
    assert score["n"] == 4
    assert list(said.json["scores"]) == ["ifeval"]


def test_eval_asks_what_lies_beside_the_documents(home: Path) -> None:
    with sqlite3.connect(home / "recover.db") as database:
        suites = {row[0] for row in database.execute("SELECT suite FROM scores")}
    assert suites == {"ifeval", "knowledge", "retention"}


def test_responses_are_scored_without_a_model_or_a_home(
    recover: Recover, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": QUESTION.format(n=n), "response": "a, b" if n else "ab"} for n in range(4)]
    jsonl(tmp_path / "responses.jsonl", rows)
    asked = world.parent / "ifeval.jsonl"
    said = recover("eval", "--responses", "responses.jsonl", "--ifeval", asked, "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json["scores"]["ifeval"]["score"] == 0.25
    assert [path.name for path in tmp_path.iterdir()] == ["responses.jsonl"]
    jsonl(tmp_path / "responses.jsonl", [*rows, {"prompt": "Something else?", "response": "x"}])
    said = recover("eval", "--responses", "responses.jsonl", "--ifeval", asked)
    assert "note: ifeval: responses to 1 prompt not among those asked were left out" in said.out.splitlines()


def test_compare_pairs_two_checkpoints_on_the_same_prompts(recover: Recover, home: Path, world: Path) -> None:
    recover("-q", "--home", home, "eval", "base", "--ifeval", world.parent / "ifeval.jsonl")
    said = recover("--home", home, "compare", "base", "current", "--json")
    assert said.code == 0
    assert {"a_score", "b_score", "difference", "interval", "gained", "lost", "p_mcnemar"} <= set(said.json)
    assert said.json["n"] == 4
    assert said.json["suites"][0]["suite"] == "ifeval"
    assert "same 4 prompts" in recover("--home", home, "compare", "base", "current").out
    counts = recover("--home", home, "flips", "base", "current", "--suite", "ifeval", "--json").json["counts"]
    assert [(row["n"], row["gained"], row["lost"]) for row in counts] == [
        (4, said.json["gained"], said.json["lost"])
    ]
    assert recover("--home", home, "flips").out == "nothing yet\n"
    for option in ("lost", "gained"):
        said = recover("--home", home, "flips", f"--{option}")
        assert said.code == 2 and f"--{option} lists items: name cycle:N" in said.error
    ignored = recover("--home", home, "flips", "--limit", 3)
    assert ignored.code == 2 and "--limit has no effect with all cycles" in ignored.error


@pytest.fixture
def no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has no home, as a checkout has one after `make demo`."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("no_home")
def test_a_cycle_that_broke_off_or_went_silent_says_so(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "recover.db"
    with Tracker(database) as tracker:
        runs = [tracker.start_run("cycle", key=key).id for key in ("broken", "silent")]
        tracker.record_cycle(runs[0], status="failed")
        tracker.fail_run(runs[0], "NonFiniteLoss: step 2: lower the rate, not hf_abcdefghijklmnopqrstuv")
        tracker.record_cycle(runs[1])
    broken = recover("--db", database, "show", "cycle:1").out
    assert (
        "NonFiniteLoss: step 2" in broken
        and f"recover --db {database} resume {runs[0]}" in broken
        and "hf_abc" not in broken
    )
    assert "stalled" not in recover("--db", database, "ls").out
    monkeypatch.setattr(changes, "STALLED_SECONDS", -1.0)
    for words in (["ls"], ["ls", "runs"], ["show", runs[1]], ["show", "cycle:2"]):
        assert re.search(
            r"running, stalled since \d{4}-\d\d-\d\d \d\d:\d\d UTC", recover("--db", database, *words).out
        )
    rows = recover("--db", database, "ls", "--json").json
    assert [(row["status"], row["stalled"]) for row in rows] == [("failed", False), ("running", True)]


@pytest.mark.usefixtures("no_home")
def test_an_interrupted_cycle_is_stopped_and_says_how_to_go_on(recover: Recover, tmp_path: Path) -> None:
    database = tmp_path / "recover.db"
    with Tracker(database) as tracker:
        run = tracker.start_run("cycle", key="interrupted").id
        tracker.record_cycle(run)
        tracker.stop_run(run, "interrupted")
    onward = f"recover --db {database} resume {run}"
    shown = recover("--db", database, "show", "cycle:1").out
    assert shown.startswith("cycle 1: stopped\nreason     interrupted\n") and onward in shown
    listed = recover("--db", database, "ls").out
    assert "stopped" in listed and "running" not in listed
    verdict = recover("--db", database, "verdict", "1")
    assert verdict.code == 3
    assert f"it is stopped; `{onward}` goes on with it" in verdict.err
    document = recover("--db", database, "verdict", "1", "--json")
    assert (document.code, document.err) == (3, verdict.err)
    assert document.json == {"cycle": 1, "status": "stopped", "verdict": None}


def test_another_database_is_looked_at_without_the_home_of_the_current_folder(
    recover: Recover, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "other.db"
    with Tracker(database) as tracker:
        tracker.record_cycle(tracker.start_run("cycle", key="one").id)
    (tmp_path / ".recover").symlink_to(fresh)
    monkeypatch.chdir(tmp_path)
    refused = recover("--db", database, "show", "cycle:1")
    assert (
        refused.code == 2
        and "to look at it alone, give --home with a folder that is no home" in refused.error
    )
    assert recover("--db", database, "--home", tmp_path / "none", "show", "cycle:1").code == 0


@pytest.mark.usefixtures("no_home")
def test_the_verdict_of_a_cycle_of_which_nothing_was_judged_is_a_document_too(
    recover: Recover, tmp_path: Path
) -> None:
    database = tmp_path / "recover.db"
    with Tracker(database) as tracker:
        run = tracker.start_run("cycle", key="one").id
        tracker.record_cycle(run, status="rejected")
        tracker.finish_run(run)
    said = recover("--db", database, "--json", "verdict", "1")
    assert (said.code, said.json) == (3, {"cycle": 1, "status": "rejected", "verdict": None})
    assert "no axis was judged" in said.error
    assert recover("--db", database, "verdict", "1").out == ""


def test_what_verdict_and_demo_say_to_type_names_the_home(recover: Recover, tmp_path: Path) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    with Tracker(home / "recover.db") as tracker:
        run = tracker.start_run("cycle").id
        tracker.record_cycle(run)
        tracker.stop_run(run, "interrupted")
    said = recover("--home", home, "verdict", "1")
    assert f"`recover --home '{home}' resume {run}` goes on with it" in said.err
    named = partial(command_line.command, home, database="other.db")
    assert demo_story([], named).endswith(f": recover --home '{home}' --db other.db dashboard")


def test_show_finds_runs_aliases_and_the_beginning_of_an_id(recover: Recover, home: Path) -> None:
    runs = recover("--home", home, "ls", "runs", "--json").json
    run = next(row for row in runs if row["kind"] == "distill")
    shown = recover("--home", home, "show", run["id"], "--json").json
    assert (shown["status"], shown["config"]["settings"]["steps"]) == ("done", 2)
    assert {"python", "torch"} <= set(shown["versions"])
    current = recover("--home", home, "show", "current", "--json").json
    assert recover("--home", home, "show", current["id"][:8], "--json").json == current
    assert current["id"] == run["result"]["checkpoint"]


def test_query_and_export_give_rows(recover: Recover, home: Path, tmp_path: Path) -> None:
    counts = "SELECT kind, count(*) AS n FROM runs GROUP BY kind"
    found = recover("--home", home, "query", counts, "--json").json
    assert {row["kind"]: row["n"] for row in found}["midtrain"] == 1
    lines = recover("--home", home, "export", "checkpoints").out.splitlines()
    assert lines[0].startswith('"id","path","kind"')
    assert len(lines) == 4
    assert recover("--home", home, "export", "runs", "--format", "json").json
    assert recover("--home", home, "export", "runs", "--json").json
    assert recover("--home", home, "export", "aliases", "--format", "csv").out.startswith('"')
    table = tmp_path / "aliases.csv"
    assert recover("--home", home, "export", "aliases", "--out", table, "--json").json == {"file": str(table)}
    assert table.read_text().startswith('"')
    for name, words in (("a.JSON", ""), ("b.jsonl", "--format json")):
        recover("--home", home, "export", "aliases", "--out", tmp_path / name, *words.split())
        assert json.loads((tmp_path / name).read_text())
    recover("--home", home, "export", "aliases", "--out", tmp_path / "plain")
    assert (tmp_path / "plain").read_text() == table.read_text()


def test_distill_is_repeatable_and_merge_mixes(recover: Recover, home: Path) -> None:
    again = recover("-q", "--home", home, "distill", "--json").json["checkpoint"]
    assert again == recover("--home", home, "show", "current", "--json").json["id"]
    merged = recover("-q", "--home", home, "merge", "--weight", 0.5)
    assert merged.code == 0
    row = recover("--home", home, "show", merged.out.strip(), "--json").json
    assert (row["kind"], row["config"]["weight"]) == ("full", 0.5)


def test_an_adapter_is_trained_measured_and_merged(recover: Recover, fresh: Path, world: Path) -> None:
    taught = recover("-q", "--home", fresh, "midtrain", "--docs", world, "--lora", 2).out.strip()
    row = recover("--home", fresh, "show", taught, "--json").json
    base = recover("--home", fresh, "show", "base", "--json").json["id"]
    assert (row["kind"], row["base_id"], row["parent_id"]) == ("adapter", base, base)
    distilled = recover("-q", "--home", fresh, "distill", "--json").json["checkpoint"]
    row = recover("--home", fresh, "show", distilled, "--json").json
    assert (row["kind"], row["base_id"], row["parent_id"]) == ("adapter", base, taught)
    assert recover("-q", "--home", fresh, "eval", "--suite", "ifeval").code == 0
    merged = recover("-q", "--home", fresh, "merge", "--weight", 0.3, "--json").json["checkpoint"]
    assert recover("--home", fresh, "show", merged, "--json").json["kind"] == "full"


def test_a_finished_training_keeps_no_state(home: Path) -> None:
    assert list((home / "runs").glob("*/documents.jsonl"))
    assert not list((home / "runs").glob("*/state"))


def test_files_named_from_here_are_found_from_anywhere(
    recover: Recover, fresh: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world.parent)
    for words in (
        ("midtrain", "--docs", "docs"),
        ("distill", "--prompts", "prompts.jsonl"),
        ("eval", "--ifeval", "ifeval.jsonl", "--probes", "probes.jsonl", "--suite", "ifeval"),
    ):
        assert recover("-q", "--home", fresh, *words).code == 0
    runs = {run["kind"]: run["config"] for run in recover("--home", fresh, "ls", "runs", "--json").json}
    assert runs["midtrain"]["docs"] == str(world.parent / "docs")
    assert runs["distill"]["prompts"] == str(world.parent / "prompts.jsonl")
    for config in runs.values():
        named = [word for word in re.findall(r'"([^"]+)"', json.dumps(config)) if ".jsonl" in word]
        assert named
        assert all(word.startswith("/") for word in named)


def test_a_model_directory_serves_as_a_checkpoint(
    recover: Recover, home: Path, world: Path, tmp_path: Path
) -> None:
    other = tiny.save(tmp_path / "other", seed=5)
    said = recover("-q", "--home", home, "distill", "--teacher", other, "--json")
    assert said.code == 0
    rows = recover("--home", home, "ls", "checkpoints", "--json").json
    assert str(other) in [row["path"] for row in rows]


# A cycle, and going on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", ["", '{"prompt": "Sing.", "instruction_id_list": ["no:such"], "kwargs": [{}]}\n']
)
def test_a_cycle_that_could_not_ask_its_prompts_is_not_begun(
    recover: Recover, fresh: Path, world: Path, tmp_path: Path, written: str
) -> None:
    path = tmp_path / "asked.jsonl"
    path.write_text(written)
    said = recover("--home", fresh, "cycle", "--docs", world, "--ifeval", path)
    assert said.code == 2 and said.error.startswith(f"Error: {path}")
    assert recover("--home", fresh, "ls", "cycles", "--json").json == []


def test_a_cycle_that_is_interrupted_before_it_is_a_run_names_the_same_command(
    recover: Recover, fresh: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes_questions(monkeypatch, batches=0)
    said = recover("-q", "--home", fresh, "cycle", "--docs", world, "--prompts", "self")
    assert (said.code, said.err.strip()) == (130, f"interrupted: {GOES_ON}")
    assert recover("--home", fresh, "ls", "runs", "--json").json == []


def test_a_rejected_cycle_prints_its_record_and_exits_with_3(
    recover: Recover, fresh: Path, world: Path
) -> None:
    said = recover("-q", "--home", fresh, "cycle", "--docs", world, "--json")
    assert said.code == 3  # four prompts cannot show anything
    assert re.fullmatch(
        r"Error: cycle 1 is rejected: too few questions: ask new questions, without training "
        r"\(about [\d,]+ on behaviour, .*docs/evaluation.md.*\); "
        f"`recover --home {re.escape(str(fresh))} review cycle:1 --approve` takes its model all the same",
        said.error,
    )
    assert "updates" not in said.error  # which were not asked for
    row = said.json
    assert row == recover("--home", fresh, "show", "cycle:1", "--json").json
    assert row["cost"]["tokens_trained"] > 0
    assert set(row["scores"]) == {"ifeval", "knowledge", "retention"}
    assert row["verdict"]["behaviour"] == "underpowered"
    assert row["verdict"]["margin"] == 0.03
    verdict = recover("--home", fresh, "verdict", 1, "--json")
    assert (verdict.code, verdict.json["behaviour"]) == (3, "underpowered")
    assert recover("--home", fresh, "verdict", "cycle:1", "--json").json == verdict.json
    shown = recover("--home", fresh, "show", "cycle:1").out
    assert re.search(r"^behaviour +underpowered \(.*margin 3, about \d+ prompts would decide\)$", shown, re.M)
    assert verdict.error == said.error
    assert recover("--home", fresh, "show", "current", "--json").json["id"] == row["checkpoints"]["clean"]
    reviewed = recover("--home", fresh, "review", "cycle:1", "--approve", "--note", "it is only a test")
    assert reviewed.code == 0
    approved = recover("--home", fresh, "show", "current", "--json").json["id"]
    assert approved == row["checkpoints"]["recovered"]
    assert reviewed.out == f"review 1 of cycle 1: approve; `current` is {approved}\n"
    listed = recover("--home", fresh, "ls").out
    assert re.search(r"^1 .*/docs +rejected: too few questions +approve ", listed, re.M)
    verdict = recover("--home", fresh, "verdict", 1)
    assert verdict.code == 3 and verdict.err.endswith(": a review has approved it all the same\n")
    for shown in (verdict.out, recover("--home", fresh, "show", "cycle:1").out):
        assert re.search(r"^review +approve, by .+: it is only a test$", shown, re.M)
    recover("--home", fresh, "review", 1, "--needs-work", "--reviewer", "Ada")
    verdict = recover("--home", fresh, "verdict", 1)
    assert verdict.err == said.err and "\nreview     needs-work, by Ada\n" in verdict.out


@pytest.mark.parametrize(("statuses", "code"), [(["accepted"] * 2, 0), (["accepted", "rejected"], 3)])
def test_a_demo_exits_with_3_if_any_cycle_was_rejected(
    recover: Recover,
    fresh: Path,
    world: Path,
    monkeypatch: pytest.MonkeyPatch,
    statuses: list[str],
    code: int,
) -> None:
    recover("-q", "--home", fresh, "cycle", "--docs", world)
    row = recover("--home", fresh, "show", "cycle:1", "--json").json
    told = {"cycles": [row | {"cycle": n, "status": status} for n, status in enumerate(statuses, 1)]}
    monkeypatch.setattr("pipelines.demo.demo", lambda *_, **__: told)
    said = recover("--home", fresh, "demo", "--json")
    assert said.code == code
    assert [one["status"] for one in said.json["cycles"]] == statuses
    wanted = "Error: cycle 2 is rejected: too few questions: "
    assert said.err == "" if code == 0 else said.error.startswith(wanted)


@pytest.mark.slow
def test_a_second_cycle_replays_the_first_and_asks_for_what_it_taught(
    recover: Recover, fresh: Path, world: Path, tmp_path: Path
) -> None:
    recover("-q", "--home", fresh, "cycle", "--docs", world)
    recover("--home", fresh, "review", 1, "--approve")
    said = recover("-q", "--home", fresh, "cycle", "--docs", make_world(tmp_path / "second"), "--json")
    assert [row["cycle"] for row in said.json["knowledge_by_cycle"]] == [1]
    runs = recover("--home", fresh, "ls", "runs", "--json").json
    mixes = [row["result"]["mix"] for row in runs if row["kind"] == "midtrain"]
    first = {"new", "questions"}
    assert [set(mix) for mix in mixes] == [first, first | {"earlier", "earlier questions"}]


@pytest.fixture
def cut_off(recover: Recover, monkeypatch: pytest.MonkeyPatch) -> Recover:
    """Run a command that Ctrl-C ends at the first step of the stage that it names first."""
    from pipelines.runs import stage_runner

    step = stage_runner.Stage.step

    def run(label: str, *words: Any) -> Said:
        def cut(self: stage_runner.Stage, *args: Any, **kwargs: Any) -> None:
            step(self, *args, **kwargs)
            if self.label == label:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(stage_runner.Stage, "step", cut)
            return recover(*words)

    return run


def test_resume_goes_on_with_the_same_numbers(
    recover: Recover,
    home: Path,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    whole = recover("--home", home, "ls", "checkpoints", "--json").json
    said = cut_off("midtrain", "-q", "--home", fresh, "midtrain", "--docs", world)
    [run] = recover("--home", fresh, "ls", "runs", "--json").json
    onward = f"recover --home {fresh} resume {run['id']}"
    assert (said.code, said.err.strip()) == (130, f"interrupted: go on with `{onward}`")
    resumed = recover("-q", "--home", fresh, "resume", "--json")
    assert resumed.code == 0
    assert resumed.json["checkpoint"] == whole[1]["id"]  # content-addressed: the very same bytes
    assert recover("--home", fresh, "resume").code == 2


def test_a_resumed_distillation_becomes_current_too(
    recover: Recover,
    home: Path,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    recover("-q", "--home", fresh, "midtrain", "--docs", world)
    assert cut_off("distill", "-q", "--home", fresh, "distill", "--set", "epochs=1").code == 130
    found = recover("-q", "--home", fresh, "resume", "--json").json["checkpoint"]
    assert found == recover("--home", fresh, "show", "current", "--json").json["id"]
    assert found == recover("--home", home, "ls", "checkpoints", "--json").json[2]["id"]


def test_a_resumed_distillation_leaves_current_where_a_later_one_moved_it(
    recover: Recover,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    recover("-q", "--home", fresh, "midtrain", "--docs", world)
    assert cut_off("distill", "-q", "--home", fresh, "distill", "--set", "epochs=1").code == 130
    later = recover("-q", "--home", fresh, "distill", "--set", "epochs=2", "--json").json["checkpoint"]
    said = recover("--home", fresh, "resume", "--json")
    assert said.json["checkpoint"] != later
    assert f"`--student {said.json['checkpoint']}` names this run's model" in said.err
    assert later == recover("--home", fresh, "show", "current", "--json").json["id"]


def test_resume_prefers_what_was_cut_off_to_what_was_refused(
    recover: Recover,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    cut_off("midtrain", "-q", "--home", fresh, "midtrain", "--docs", world)
    assert recover("--home", fresh, "eval", "--suite", "ifeval", "--ifeval", "missing").code == 2
    assert recover("-q", "--home", fresh, "resume", "--json").json["documents"] == 2


def test_a_resumed_run_prints_what_its_command_would(
    recover: Recover,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    asked = ("eval", "--suite", "ifeval", "--ifeval", world.parent / "ifeval.jsonl")
    cut_off("midtrain", "-q", "--home", fresh, "midtrain", "--docs", world)
    resumed = recover("-q", "--home", fresh, "resume")
    trained = recover("--home", fresh, "ls", "checkpoints", "--json").json[-1]["id"]
    assert (resumed.code, resumed.out.strip()) == (0, trained)
    said = recover("-q", "--home", fresh, *asked)
    measured = recover("--home", fresh, "ls", "runs", "--json").json[-1]["id"]
    assert recover("-q", "--home", fresh, "resume", measured).out == said.out
    assert "ifeval" in said.out


def test_a_named_cycle_is_gone_on_with_by_its_own_command(
    recover: Recover,
    fresh: Path,
    world: Path,
    cut_off: Recover,
) -> None:
    """A scheduler starts the same job again, also where it was ended before it had begun its cycle."""
    begun = ("-q", "--home", fresh, "cycle", "--docs", world)
    named = (*begun, "--name", "first", "--json")
    for words in (begun, named):
        assert cut_off("midtrain", *words).code == 130
    found = recover(*named)
    assert (found.code, found.json["cycle"], found.json["status"]) == (3, 2, "rejected")
    assert recover(*named).json == found.json
    runs = recover("--home", fresh, "ls", "runs", "--json").json
    assert [run["status"] for run in runs if run["kind"] == "cycle"] == ["stopped", "done"]


def test_a_name_is_of_the_documents_that_its_cycle_began_with(
    recover: Recover, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.cycle._work", interrupt)
    february, march = (make_world(tmp_path / name) for name in ("february", "march"))

    (link := tmp_path / "link").symlink_to(february)

    def begin(docs: Path) -> Said:
        return recover("--home", fresh, "cycle", "--docs", docs, "--name", "first")

    assert begin(february).code == 130
    other = begin(march)
    said = f"has begun with the documents in {february}, not {march}: give another --name"
    assert (other.code, other.error) == (2, f"Error: --name first: a cycle of this name {said}")
    [run] = recover("--home", fresh, "ls", "runs", "--json").json
    onward = begin(link)
    anew = f"another --name, or run `recover --home {fresh} prune --run {run['id']} --yes` first"
    assert onward.code == 130 and f"the cycle of {february} goes on as it began" in onward.err
    assert anew in onward.err
    february.parent.rename(tmp_path / "archived")
    assert begin(february).code == 130
    with Workspace.open(fresh) as ws:
        number = ws.tracker.record_cycle(run["id"], status="accepted")
        ws.tracker.finish_run(run["id"], {"cycle": number, "status": "accepted"})
    found = begin(february)
    assert found.code == 0 and found.out.startswith("cycle 1: accepted")
    assert f"--name first: cycle 1 of {february} is done: nothing is run" in found.err
    missing = recover("--home", fresh, "cycle", "--docs", february, "--name", "second")
    assert missing.code == 2 and str(february) in missing.error


def test_resume_with_nothing_to_resume(recover: Recover, fresh: Path) -> None:
    said = recover("--home", fresh, "resume")
    assert (said.code, said.out) == (2, "")
    assert said.error == f"Error: no run was interrupted: `recover --home {fresh} ls runs` lists every run"


SWAPPED = {
    "prompts": "prompts.jsonl",
    "IFEval prompts": "ifeval.jsonl",
}


@pytest.fixture
def cut_cycle(recover: Recover, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The world of a cycle that was killed after the midtrained evaluation."""
    world = make_world(tmp_path / "swapped")
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.cycle.distill", interrupt)
        assert recover("-q", "--home", fresh, "cycle", "--docs", world).code == 130
    return world.parent


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_cycle_whose_inputs_were_swapped_is_refused_by_name(
    recover: Recover, fresh: Path, cut_cycle: Path
) -> None:
    for name, file in SWAPPED.items():
        path = cut_cycle / file
        before = path.read_text()
        path.write_text(before.replace("lines", "easy lines").replace("words", "things"))
        said = recover("-q", "--home", fresh, "resume")
        assert said.code == 2 and said.out == ""
        assert said.error.startswith(f"Error: {name} ({cut_cycle}/{file}): changed since the run")
        path.write_text(before)
    config = fresh / "recover.yaml"
    before = config.read_text()
    config.write_text(before.replace("dtype: float32", "dtype: bfloat16"))
    said = recover("-q", "--home", fresh, "resume")
    assert said.code == 2 and "model section of recover.yaml: changed since the run began" in said.error
    config.write_text(before)
    said = recover("-q", "--home", fresh, "resume")
    assert said.code == 3  # the cycle's verdict
    assert said.out == recover("--home", fresh, "show", "cycle:1").out


def test_a_sweep_whose_questions_were_swapped_is_refused_by_name(
    recover: Recover, fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_world(tmp_path / "swapped").parent / "ifeval.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.sweep.evaluate", interrupt)
        words = ("merge", "--sweep", "0.5", "--student", "current", "--suite", "ifeval", "--ifeval", path)
        assert recover("-q", "--home", fresh, *words).code == 130
    path.write_text(path.read_text().replace("lines without commas", "letters"))
    said = recover("-q", "--home", fresh, "resume")
    assert said.code == 2 and said.error.startswith(f"Error: IFEval prompts ({path}): changed since the run")


def test_answers_to_other_questions_are_not_paired(
    recover: Recover, fresh: Path, cut_cycle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when the files are swapped while the cycle runs."""
    monkeypatch.setattr("pipelines.runs.pinned_inputs.hashes", lambda sources, leave_out=(): {})
    path = cut_cycle / "ifeval.jsonl"
    path.write_text(path.read_text().replace("lines without commas", "letters"))
    said = recover("-q", "--home", fresh, "resume")
    assert (said.code, said.out) == (2, "")
    assert "ifeval: clean and recovered answered different questions" in said.error


def test_fitted_settings_are_printed_on_one_line(recover: Recover, tmp_path: Path, world: Path) -> None:
    home = tmp_path / "home"
    made = recover("-q", "--home", home, "init", "--model", tiny.save(tmp_path / "model"), "--preset", "real")
    assert made.out.splitlines()[1].startswith(f"next: `recover --home {home} corpus DIR` shows what")
    planned = recover("--home", home, "corpus", world, "--tokens", "--json").json["training"]
    changed = yaml.safe_load((home / "recover.yaml").read_text())
    changed["midtrain"]["mix"] = {"new": 1.0}
    (home / "recover.yaml").write_text(yaml.safe_dump(changed))
    foreseen = recover("--home", home, "corpus", world, "--tokens")
    said = recover("--home", home, "midtrain", "--docs", world)
    assert said.code == 0
    assert said.err.splitlines()[-1].startswith(f"  next         `recover --home {home} distill` brings its")
    (plan,) = [line for line in said.err.splitlines() if line.startswith("  plan ")]
    assert f"training: {plan.split(maxsplit=1)[1]}; 100% of the tokens are this folder's" in foreseen.out
    assert plan.startswith(
        "  plan         32 steps of 202 tokens, warm-up of 3; each document is seen 32.0 times"
    )
    assert "all weights" in plan
    assert (planned["steps"], planned["tokens_per_step"]) == (35, 512)  # beside chat and questions
    (run,) = [
        row for row in recover("--home", home, "ls", "runs", "--json").json if row["kind"] == "midtrain"
    ]
    metrics = f"SELECT count(*) AS n FROM metrics WHERE run_id = '{run['id']}' AND name = 'loss'"
    assert recover("--home", home, "query", metrics, "--json").json == [{"n": 32}]


# Homes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def found_home(recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of documents that comes with a home, as the current folder."""
    docs = make_world(tmp_path / "project")
    recover("-q", "--home", docs / ".recover", "init", "--model", tiny.save(tmp_path / "model"))
    monkeypatch.chdir(docs)
    return docs / ".recover"


@pytest.mark.parametrize(
    "words", ["corpus .", "midtrain --docs .", "cycle --docs ../docs", "probes --docs . --out p"]
)
def test_a_home_that_lies_inside_the_documents_is_used_only_by_name(
    recover: Recover, found_home: Path, words: str
) -> None:
    said = recover(*words.split())
    assert said.code == 2
    assert said.error.endswith("may have come with them: to use it, give --home ./.recover")
    assert recover("--home", ".recover", "corpus", ".").code == 0


def test_a_home_of_another_user_is_used_only_by_name(
    recover: Recover, found_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recover("ls", "runs").code == 0
    monkeypatch.setattr("os.getuid", lambda: found_home.stat().st_uid + 1)
    said = recover("ls", "runs")
    assert said.code == 2 and "belongs to another user" in said.error
    assert recover("--home", ".recover", "ls", "runs").code == 0


@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_home_is_not_a_home_that_was_named(
    recover: Recover, found_home: Path, monkeypatch: pytest.MonkeyPatch, blank: str
) -> None:
    """Such as `--home "$UNSET"`: what a found home is refused was allowed."""
    for words in (("--home", blank, "corpus", "."), ("corpus", ".", f"--home={blank}")):
        said = recover(*words)
        assert said.code == 2 and "Invalid value for '--home': it is blank" in said.error
    monkeypatch.setenv("RECOVER_HOME", blank)
    assert "may have come with them" in recover("corpus", ".").error


def test_code_of_a_model_is_run_only_for_a_home_that_was_named(
    recover: Recover, found_home: Path, world: Path
) -> None:
    path = found_home / "recover.yaml"
    path.write_text(path.read_text().replace("model:\n", "model:\n  trust_remote_code: true\n", 1))
    said = recover("eval", "--suite", "ifeval")
    assert said.code == 2 and "asks to run code that comes with the model" in said.error
    said = recover("corpus", world, "--tokens")
    assert said.code == 2 and "asks to run code that comes with the model" in said.error
    assert recover("corpus", world).code == 0
    named = recover("--home", ".recover", "eval", "--suite", "knowledge")
    assert "knowledge needs probes" in named.error


def test_a_home_that_was_only_found_is_not_asked_about_a_database_elsewhere(
    recover: Recover, found_home: Path
) -> None:
    (found_home / "database.url").write_text("postgresql://me@db.invalid/recover\n")
    refused = "names a database on db.invalid, and this home was not named"
    for words in (("ls",), ("dashboard",), ("resume",)):
        said = recover(*words)
        assert said.code == 2 and refused in said.error
    said = recover("doctor")
    assert said.code == 3 and said.error.startswith("Error: database: .recover/database.url names")
    assert refused in said.error and said.error.endswith("give --home .recover")
    assert "ok        torch" in said.out  # the other checks are shown


def test_counting_tokens_and_planning_find_a_model_named_from_the_homes_folder(
    recover: Recover, found_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = found_home / "recover.yaml"
    path.write_text(re.sub(r"\n  path: .*", "\n  path: ../../model", path.read_text(), count=1))
    monkeypatch.chdir("/")
    assert recover("--home", found_home, "corpus", found_home.parent, "--tokens", "--json").code == 0
    said = recover("--home", found_home, "plan", "--json")
    assert (said.code, said.json["settings"]) == (0, str(path))


def test_paths_in_the_settings_start_from_the_folder_of_the_home(
    recover: Recover, found_home: Path, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = found_home / "recover.yaml"
    text = path.read_text()
    text = re.sub("ifeval: .*", "ifeval: ../ifeval.jsonl", text, count=1)
    path.write_text(re.sub(r"\n  prompts: .*", r"\n  prompts: later.jsonl", text, count=1))
    monkeypatch.chdir(world)
    with Workspace.open(found_home, create=False) as ws:
        config = ws.config
    assert Path(config.eval.ifeval).samefile(found_home.parents[1] / "ifeval.jsonl")
    assert config.distill.prompts == str(found_home.parent / "later.jsonl")
    assert config.model == settings.read(path).model


@pytest.mark.parametrize("database", ["elsewhere.db", "sqlite:///elsewhere.db"])
def test_a_home_remembers_its_database(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str
) -> None:
    monkeypatch.chdir(tmp_path)
    made = recover("-q", "--home", "home", "--db", database, "init", "--model", tiny.save(tmp_path / "m"))
    assert made.code == 0 and (tmp_path / "elsewhere.db").exists()
    monkeypatch.chdir("/")
    assert len(recover("--home", tmp_path / "home", "ls", "checkpoints", "--json").json) == 1
    assert recover("--home", tmp_path / "home", "doctor", "--json").json[-1]["ok"]
    assert not (tmp_path / "home" / "recover.db").exists()
    for name in ("home/database.url", "elsewhere.db"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_database_that_is_gone_is_named_and_no_empty_one_takes_its_place(
    recover: Recover, tmp_path: Path, elsewhere: bool
) -> None:
    home = tmp_path / "home"
    file = tmp_path / "elsewhere.db" if elsewhere else home / "recover.db"
    named = ["--db", file] if elsewhere else []
    assert recover("-q", "--home", home, *named, "init", "--model", tiny.save(tmp_path / "m")).code == 0
    file.rename(tmp_path / "away.db")
    for words in (["ls"], ["init"], ["demo"], [*named, "init"]):
        said = recover("--home", home, *words)
        assert said.code == 2 and f"its database {file} is missing: bring it back" in said.error
    doctor = recover("--home", home, "doctor", "--json")
    assert (doctor.code, doctor.json[-1]["detail"]) == (3, f"{file} is missing")
    assert not file.exists()
    assert recover("--home", home, "--db", tmp_path / "away.db", "ls", "checkpoints").code == 0
    (tmp_path / "away.db").rename(file)
    assert len(recover("--home", home, "ls", "checkpoints", "--json").json) == 1


def test_init_notes_the_new_place_of_a_database_that_was_moved(recover: Recover, tmp_path: Path) -> None:
    home, old, new = tmp_path / "home", tmp_path / "old.db", tmp_path / "new.db"
    assert recover("-q", "--home", home, "--db", old, "init", "--model", tiny.save(tmp_path / "m")).code == 0
    with Workspace.open(home, str(old)) as ws:
        (home / "runs" / ws.tracker.start_run("midtrain").id).mkdir(parents=True)
    old.rename(new)
    way = f"name its new place with `recover --home {home} --db NEW init`"
    assert way in recover("--home", home, "ls").error and way in recover("--home", home, "doctor").err
    assert recover("--home", home, "--db", new, "ls").code == 0
    for _ in range(2):  # its runs are not recorded there
        empty = recover("--home", home, "--db", tmp_path / "empty.db", "init")
        assert empty.code == 2 and f"empty.db records none of the runs of {home}" in empty.error
        assert f"whose database is {old}: give that one" in empty.error
    assert way in recover("--home", home, "ls").error
    said = recover("--home", home, "--db", new, "init")
    assert said.code == 0 and f"{home}: its database is {new} from now on" in said.err
    assert len(recover("--home", home, "ls", "checkpoints", "--json").json) == 1
    assert (home / "database.url").stat().st_mode & 0o777 == 0o600
    assert "from now on" not in recover("--home", home, "init").err


def test_a_database_that_was_moved_into_its_home_moves_with_it(recover: Recover, tmp_path: Path) -> None:
    home, old = tmp_path / "home", tmp_path / "old.db"
    assert recover("-q", "--home", home, "--db", old, "init", "--model", tiny.save(tmp_path / "m")).code == 0
    old.rename(home / "recover.db")
    assert recover("--home", home, "--db", home / "recover.db", "init").code == 0
    home.rename(tmp_path / "moved")
    assert len(recover("--home", tmp_path / "moved", "ls", "checkpoints", "--json").json) == 1


def test_a_noted_server_that_cannot_be_reached_says_how_to_name_another(
    recover: Recover, fresh: Path
) -> None:
    pytest.importorskip("psycopg")
    server = "postgresql://ann:Zq9-longSecret_7@127.0.0.1:1/recover"
    (fresh / "database.url").write_text(f"{server}\n")
    way = f"or name its new place with `recover --home {fresh} --db NEW init`"
    for command in ("ls", "init", "doctor"):
        said = recover("--home", fresh, command)
        assert "cannot be reached" in said.err and "Zq9" not in said.out + said.err
        assert way.removeprefix("or ") in said.err
    named = recover("--home", fresh, "--db", server, "ls")  # what was typed is not what is noted
    assert "cannot be reached" in named.error and way not in named.error
    assert recover("--home", fresh, "--db", fresh / "recover.db", "init").code == 0
    assert recover("--home", fresh, "ls").code == 0


def test_a_database_that_does_not_open_is_not_remembered(recover: Recover, tmp_path: Path) -> None:
    (tmp_path / "broken.db").write_text("no database")
    typo = recover("-q", "--home", tmp_path / "home", "--db", tmp_path / "broken.db", "init")
    assert typo.code == 1
    made = recover("-q", "--home", tmp_path / "home", "--db", tmp_path / "right.db", "init")
    assert made.code == 0
    assert len(recover("--home", tmp_path / "home", "ls", "checkpoints", "--json").json) == 1


@pytest.mark.parametrize(
    ("words", "variable"), [(["--home=~/work", "ls", "cycles"], ""), (["ls", "cycles"], "~/work")]
)
def test_a_home_below_the_users_own_folder_is_one_place(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], variable: str
) -> None:
    """A shell leaves ~ as it is there; the database alone was looked for below the user's folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RECOVER_HOME", variable)
    said = recover(*words)
    assert said.code == 2 and said.error.startswith(f"Error: {tmp_path}/work is not initialised")


def test_what_a_new_home_holds_is_its_owners_alone(fresh: Path, recover: Recover, tmp_path: Path) -> None:
    recover("-q", "--home", tmp_path / "new", "init")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "recover.db").stat().st_mode & 0o777 == 0o600


def test_a_home_that_may_not_be_written_can_be_looked_at(
    recover: Recover, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in fresh.iterdir())
    monkeypatch.setattr("os.access", lambda *_: False)
    assert recover("--home", fresh, "ls", "checkpoints", "--json").json[0]["kind"] == "reference"
    assert recover("--home", fresh, "show", "base").code == 0
    assert recover("--home", fresh, "query", "SELECT 1 AS x", "--json").json == [{"x": 1}]
    assert sorted(path.name for path in fresh.iterdir()) == before  # not even SQLite's own files beside it
    refused = recover("--home", fresh, "review", 1, "--approve")
    assert refused.code in (1, 2)


# Bad input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("midtrain --docs EMPTY", 2, "holds no readable document"),
        ("midtrain --docs MISSING", 2, "MISSING' is not a folder: give a folder of documents"),
        ("midtrain --docs DOCS --steps 0", 2, "steps: .* not 0"),
        ("midtrain --docs DOCS --steps 2 --epochs 2", 2, "give either steps or epochs"),
        ("midtrain --docs DOCS --mix new=0.5", 2, "--mix new=0.5: each share .* add up to 1"),
        ("midtrain --docs DOCS --mix new=2", 2, "--mix new=2: each share lies between 0 and 1"),
        ("midtrain --docs DOCS --mix chat=1", 2, "--mix chat=1: .* that of new above 0"),
        ("midtrain --docs DOCS --mix new", 2, "write NAME=VALUE"),
        ("midtrain --docs DOCS --mix old=1", 2, "--mix old: choose among new"),
        ("midtrain --docs DOCS --student nobody", 2, "checkpoint 'nobody' is not recorded"),
        ("midtrain --docs DOCS --seed 99999999999999999999", 2, "'--seed': 9+ is not in the range"),
        ("probes --docs DOCS --out FILE --seed 99999999999999999999", 2, "'--seed': 9+ is not in the range"),
        ("midtrain", 2, "Missing option '--docs': see `recover midtrain --help`"),
        ("distill --method nope", 2, "no method is called 'nope'"),
        ("distill --set temperatur=1", 2, "temperatur"),
        ("distill --set beta=2", 2, "beta"),
        ("distill --set signal=k1", 2, "expected gradient of zero"),
        ("distill --prompts MISSING", 2, "MISSING: prompts cannot be read"),
        ("distill --prompts hub:name", 2, "expected hub:NAME:SPLIT:FIELD"),
        ("distill --teacher nobody", 2, "checkpoint 'nobody' is not recorded"),
        ("merge --weight 1.5", 2, "outside 0 to 1"),
        ("merge --weight nan", 2, "outside 0 to 1"),
        ("merge --weight much", 2, "Invalid value for '--weight'"),
        ("merge", 2, "give one of --weight W and --sweep"),
        ("merge --sweep 0.1,many", 2, "write weights with commas"),
        ("merge --sweep 0.1,nan", 2, "outside 0 to 1"),
        ("merge --weight 0.1 --method residual", 2, "give --origin"),
        ("merge --weight 0.1 --keep 0.2", 2, "--keep has no effect with --method linear"),
        ("merge --weight 0.1 --elect-signs", 2, "--elect-signs has no effect with --method linear"),
        ("merge --weight 0.1 --method residual --origin base --keep 0", 2, "--keep 0 is no share"),
        ("merge --sweep 0.1,0.2 --method residual --origin base --keep nan", 2, "--keep nan is no share"),
        ("merge --weight 0.1 --probes FILE", 2, "--probes has no effect with --weight"),
        (
            "augment --docs DOCS --out OUT --writer gaps --questions 2",
            2,
            "--questions has no effect with --wri",
        ),
        ("augment --docs DOCS --out OUT --model small", 2, "--model has no effect with --writer base"),
        ("probes --docs DOCS --out OUT --model small", 2, "--model has no effect with --writer gaps"),
        (
            "probes --docs DOCS --out OUT --max-new-tokens 9",
            2,
            "--max-new-tokens has no effect with --writer",
        ),
        ("probes --docs DOCS --out OUT --qa FILE --count 3", 2, "--count has no effect with --qa"),
        (
            "cycle --docs DOCS --recover-with merge --merge 0.2",
            2,
            "--merge has no effect with --recover-with",
        ),
        ("eval --suite ifevil", 2, "no suite 'ifevil': did you mean ifeval"),
        ("eval --suite ifeval,truthfulqa_mc3", 2, "no suite 'truthfulqa_mc3': did you mean truthfulqa_mc"),
        ("eval --suite qqqqqq", 2, "no suite 'qqqqqq': choose among ifeval"),
        ("eval --ifeval MISSING", 2, "MISSING is not a file"),
        ("eval --tasks DOCS", 2, "--tasks: no task of lm-eval is asked: name one"),
        ("eval base --tasks DOCS --suite ifeval,json", 2, "--tasks: no task of lm-eval is asked: name one"),
        ("eval base --chat", 2, "--chat: no task of lm-eval is asked: name one"),
        ("eval base --suite retention --output OUT", 2, "--output: neither IFEval nor a task of lm-eval"),
        ("eval --probes MISSING", 2, "MISSING: cannot be read"),
        ("eval --responses MISSING --ifeval MISSING", 2, "MISSING: cannot be read"),
        ("compare base base --suite drift", 2, "never scored on the same drift prompts"),
        ("cycle --docs EMPTY", 2, "holds no readable document"),
        ("cycle --docs DOCS --method nope", 2, "no method is called 'nope'"),
        ("cycle --docs DOCS --prompts MISSING", 2, "MISSING: prompts cannot be read"),
        ("show cycle:99", 2, "cycle 99 is not recorded"),
        ("show cycle:one", 2, "write cycle:N"),
        ("show 99", 2, "write cycle:99 for a cycle"),
        ("compare base 1", 2, "write cycle:1 for a cycle"),
        ("show nothing", 2, "'nothing' is not recorded"),
        ("show run-0", 2, "'run-0' is not recorded"),
        ("show eval-0", 2, "run eval-0 is not recorded"),
        ("verdict 99", 2, "cycle 99 is not recorded"),
        ("verdict one", 2, "write cycle:N or N"),
        ("report run:1", 2, "write cycle:N or N"),
        ("flips 99", 2, "cycle 99 is not recorded"),
        ("flips one", 2, "write cycle:N"),
        ("review 99 --approve", 2, "cycle 99"),
        ("review 1", 2, "give one of --approve, --reject and --needs-work"),
        ("review cycle:1 --approve --reject", 2, "give one of --approve, --reject and --needs-work"),
        ("resume run-0", 2, "run run-0 is not recorded"),
        ("ls people", 2, "Invalid value for .*'people' is not one of"),
        ("ls --limit 0", 2, "Invalid value for '--limit'"),
        ("query INSERT", 2, "the query .*: give one SELECT"),
        ("query nonsense", 2, "syntax error"),
        ("export runs --out runs.jsonl", 2, r"--out runs\.jsonl: \.jsonl names no format: end it in \.csv"),
        ("--json export --format csv", 2, "--json prints a JSON document, no csv: leave it or --format out"),
        ("export --json --format parquet", 2, "--json prints a JSON document, no parquet"),
        ("flips base current --lost --gained", 2, "--gained and --lost: give one of them"),
        ("export nonsense", 2, "no table is called 'nonsense': choose one of cycles, "),
        ("locate cycle:99", 2, "cycle 99 is not recorded: `recover ls` lists those that are"),
        ("eval base --responses answers.jsonl", 2, "CHECKPOINT has no effect with --responses"),
        ("eval --responses answers.jsonl --chat", 2, "--chat has no effect with --responses"),
        ("eval --responses answers.jsonl --limit 1", 2, "--limit has no effect with --responses"),
        ("eval --responses answers.jsonl --suite json", 2, "--suite has no effect with --responses"),
        ("corpus", 2, "give one folder: DIR or --docs DIR"),
        ("init --model OTHER", 2, "already names the model"),
        ("init --preset nope", 2, "no preset 'nope': choose one of"),
        ("microworld MISSING --cycle 0", 2, "outside 1"),
        ("demo --minutes-budget nan", 2, "Invalid value for '--minutes-budget': nan is no finite number"),
        ("demo --minutes-budget inf", 2, "Invalid value for '--minutes-budget': inf is no finite number"),
        ("demo --minutes-budget 0", 2, "Invalid value for '--minutes-budget': 0.0 is not in the range x>0"),
        ("demo --minutes-budget -5", 2, "Invalid value for '--minutes-budget': -5.0 is not in the range x>0"),
        ("microworld MISSING --changed nan", 2, "Invalid value for '--changed': nan is no finite number"),
        ("lost base --suite ifeval", 2, "'ifeval' is not one of"),
        ("plan --tokens -5", 2, "Invalid value for '--tokens'"),
        ("plan --answer-tokens 0", 2, "Invalid value for '--answer-tokens'"),
        ("plan --price -1", 2, "Invalid value for '--price'"),
        ("plan --price nan", 2, "Invalid value for '--price': nan is no finite number"),
        ("dashboard --port 99999", 2, "Invalid value for '--port'"),
        ("nonsense", 2, "No such command 'nonsense'"),
        ("evaluate", 2, r"'evaluate' \(did you mean 'eval'\?\): see"),
        ("ls --nonsense", 2, "No such option"),
        ("cycle --steps 9", 2, r"mean --midtrain-steps or distill.steps in recover.yaml\?\): see"),
        ("cycle --distill-steps 9", 2, r"'--distill-steps' \(did you mean distill.steps in recover.yaml\?\)"),
        ("midtrain --midtrain-steps 9", 2, r"'--midtrain-steps' \(did you mean --steps\?\): see"),
        ("midtrain --stepz 9", 2, "No such option '--stepz'.*mean.*'--steps'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_left(  # noqa: PLR0913 - fixtures and cases
    recover: Recover,
    home: Path,
    world: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    places = {"DOCS": str(world), "OTHER": "./other", "INSERT": "INSERT INTO aliases VALUES ('a', 'b', 'c')"}
    before = sorted((home / "checkpoints").iterdir())
    found = recover("--home", home, *[places.get(word, word) for word in words.split()])
    assert found.code == code
    assert found.out == ""
    assert re.search(said, found.error), found.error
    assert sorted((home / "checkpoints").iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["EMPTY"]


def test_a_plan_that_does_not_fit_says_what_each_gpu_lacks_and_what_to_use(
    recover: Recover, home: Path
) -> None:
    said = recover("--home", home, "plan", "--model", "8B", "--gpus", "24GB")
    assert said.code == 3
    assert re.search(r" needs \d+ GiB on each GPU, which has [\d.]+ usable: use \w", said.error), said.error


def test_a_home_that_was_never_set_up_says_so(recover: Recover, world: Path, tmp_path: Path) -> None:
    for words in ("midtrain --docs DOCS", "distill", "eval", "preflight", "cycle --docs DOCS"):
        said = recover("--home", tmp_path / "new", *[str(world) if w == "DOCS" else w for w in words.split()])
        assert said.code == 2
        assert f"run `recover --home {tmp_path / 'new'} init` first" in said.error


@pytest.mark.parametrize(
    "words",
    [
        "ls",
        "ls runs",
        "show cycle:1",
        "show base",
        "compare a b",
        "flips",
        "verdict 1",
        "report cycle:1",
        "review 1 --approve",
        "export",
        "query SELECT",
        "dashboard --picture p.svg",
        "resume",
        "eval",
        "distill",
    ],
)
def test_a_mistyped_home_is_not_made(
    recover: Recover, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = recover("--home", "typo", *words.split())
    assert (said.code, said.out) == (2, "")
    assert said.error == "Error: typo is not initialised: run `recover --home typo init` first"
    unnamed = recover(*words.split())
    assert unnamed.error == "Error: .recover is not initialised: run `recover init` first, or give --home"
    other = recover("--home", "typo", "--db", "typo.db", *words.split())
    assert other.code == 2
    assert "there is no database at" in other.error
    assert list(tmp_path.iterdir()) == []


def test_a_database_elsewhere_is_read_without_a_home(
    recover: Recover, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    here = recover("--home", "none", "--db", home / "recover.db", "ls", "checkpoints", "--json")
    there = recover("--home", home, "ls", "checkpoints", "--json").json
    places = [[{"project": DEFAULT_PROJECT, "home": None, "path": row["path"]}] for row in there]
    absent = [row | {"path": None, "places": lies} for row, lies in zip(there, places, strict=True)]
    assert (here.code, here.json) == (0, absent)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_a_file_is_refused_as_one(recover: Recover, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for command in (["init"], ["demo"], ["ls"], ["eval"]):
        said = recover("--home", file, *command)
        assert (said.code, said.error) == (2, f"Error: --home {file} is a file: give a folder")
    doctor = recover("--home", file, "doctor", "--json")
    assert {row["name"]: row["detail"] for row in doctor.json}["home"] == f"{file}: a file"


@pytest.mark.parametrize("cycles", [0, -1])
def test_a_demo_of_no_cycle_leaves_nothing_behind(recover: Recover, tmp_path: Path, cycles: int) -> None:
    said = recover("--home", tmp_path / "new", "demo", "--cycles", cycles)
    assert (said.code, "Invalid value for '--cycles'" in said.error) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["cycle", "midtrain", "distill", "pilot --budget 3", "probes --out OUT"])
def test_a_mistyped_folder_is_refused_before_torch_is_imported(
    fresh: Path, tmp_path: Path, words: str
) -> None:
    program = (
        "import sys; from pipelines.cli import main\n"
        "try: main()\n"
        "finally: print([name for name in ('torch', 'lm_eval') if name in sys.modules])"
    )
    docs = ["--docs", str(tmp_path / "missing")]
    ran = subprocess.run(
        [sys.executable, "-c", program, "--home", str(fresh), *words.split(), *docs],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (2, "[]\n")
    assert ran.stderr == f"Error: '{tmp_path / 'missing'}' is not a folder: give a folder of documents\n"


def test_an_unwritable_home_is_one_line(recover: Recover, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (["init"], ["demo"]):
        said = recover("--home", tmp_path / "file" / "home", *command)
        assert said.code == 2
        assert "cannot be made: Not a directory" in said.error
    doctor = recover("--home", tmp_path / "file" / "home", "doctor", "--json")
    assert doctor.code == 3
    assert not {row["name"]: row["ok"] for row in doctor.json}["home"]


def test_doctor_says_that_all_is_well(recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.machine.doctor.FREE_GIB", 0)
    said = recover("--home", home, "doctor", "--json")
    assert (said.code, said.err) == (0, "")
    names = {row["name"] for row in said.json}
    assert {"torch", "kernels", "transformers", "lm_eval", "home", "settings", "database"} <= names


def test_doctor_finds_settings_that_cannot_be_read(
    recover: Recover, fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.machine.doctor.FREE_GIB", 0)
    (fresh / "recover.yaml").write_text("model: [")
    said = recover("--home", fresh, "doctor", "--json")
    (row,) = [row for row in said.json if not row["ok"] and row["needed"]]
    assert (said.code, row["name"]) == (3, "settings")
    assert said.error.startswith(f"Error: settings: {fresh / 'recover.yaml'} is not YAML: line 1, column 9: ")
    assert said.error.endswith(": mend the file, or choose another --home")


@pytest.mark.parametrize(
    ("flaw", "reason"),
    [("missing", "no such model"), ("template", "no chat template"), ("weights", "no "), ("config", "this ")],
)
def test_a_model_that_cannot_serve_leaves_no_settings_behind(
    recover: Recover, tmp_path: Path, flaw: str, reason: str
) -> None:
    model = tiny.save(tmp_path / "model") if flaw != "missing" else tmp_path / "model"
    if flaw == "template":
        tiny.tokenizer(chat_template=None).save_pretrained(model)
        (model / "chat_template.jinja").unlink(missing_ok=True)
    elif flaw == "weights":
        (model / "model.safetensors").unlink()
    elif flaw == "config":
        (model / "config.json").write_text("{")
    said = recover("--home", tmp_path / "home", "init", "--model", model)
    assert said.code == 2
    assert f"{model}: {reason}" in said.error
    good = tiny.save(tmp_path / "good")
    assert recover("--home", tmp_path / "home", "init", "--model", good).code == 0


def test_init_twice_is_the_same_base(recover: Recover, home: Path) -> None:
    first, second = (recover("--home", home, "init", "--json").json for _ in range(2))
    assert first == second
    assert recover("--home", home, "show", "base", "--json").json["id"] == first["base"]


def test_a_teacher_with_another_tokenizer_is_stopped_before_the_first_step(
    recover: Recover, home: Path, tmp_path: Path
) -> None:
    other = tiny.save(tmp_path / "other", vocab_size=260)
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(["zzz"])
    tokenizer.save_pretrained(other)
    report = recover("-q", "--home", home, "preflight", "--teacher", other, "--json")
    assert report.code == 3
    assert next(row["name"] for row in report.json if not row["ok"]) == "vocabulary"
    assert report.error.startswith("Error: vocabulary: 1 different token, first 'zzz'")
    said = recover("-q", "--home", home, "distill", "--teacher", other)
    assert said.code in (2, 3)
    assert "1 different token" in said.error


def test_preflight_of_a_good_pair(recover: Recover, home: Path, world: Path) -> None:
    said = recover("-q", "--home", home, "preflight", "--json", "--prompts", world.parent / "prompts.jsonl")
    assert (said.code, said.err) == (0, "")
    assert all(row["ok"] for row in said.json)


def test_settings_are_those_of_the_home_or_of_the_preset(recover: Recover, tmp_path: Path) -> None:
    said = recover("--home", tmp_path, "settings", "learning_rate")
    assert said.out.startswith("settings of real\n") and "0.0001" in said.out
    (tmp_path / "recover.yaml").write_text(settings.preset_text("microworld").replace("seed: 0", "seed: 17"))
    (row,) = (
        row for row in recover("--home", tmp_path, "settings", "--json").json if row["setting"] == "seed"
    )
    assert row["value"] == 17
    refused = recover("--home", tmp_path, "settings", "zzz")
    assert refused.code == 2 and "no setting has 'zzz'" in refused.error


def test_preflight_reads_the_prompts_that_distillation_would(
    recover: Recover, fresh: Path, world: Path
) -> None:
    made = recover("-q", "--home", fresh, "midtrain", "--docs", world).out.strip()
    said = recover("--home", fresh, "preflight", "--student", made)
    assert said.code == 0 and "prompts.jsonl beside the documents" in said.err
    refused = recover("--home", fresh, "preflight", "--student", made, "--prompts", world / "none.jsonl")
    assert refused.code == 2 and "none.jsonl" in refused.error


def test_a_flipped_byte_is_refused_by_name(recover: Recover, fresh: Path, world: Path) -> None:
    made = recover("-q", "--home", fresh, "midtrain", "--docs", world).out.strip()
    weights = fresh / "checkpoints" / made / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-7] ^= 1
    weights.write_bytes(data)
    said = recover("--home", fresh, "eval", made)
    assert said.code == 1
    assert said.error.startswith(f"Error: checkpoint {made}: model.safetensors has changed bytes")


def test_a_changed_clean_model_is_no_longer_the_teacher(
    recover: Recover, tmp_path: Path, world: Path
) -> None:
    model = tiny.save(tmp_path / "model")
    home = tmp_path / "home"
    recover("-q", "--home", home, "init", "--model", model, "--preset", "microworld")
    tiny.model(seed=9).save_pretrained(model)
    said = recover("--home", home, "midtrain", "--docs", world)
    assert said.code == 1
    assert "model.safetensors has changed bytes" in said.error


def test_a_database_of_a_newer_version_is_left_alone(recover: Recover, fresh: Path) -> None:
    with sqlite3.connect(fresh / "recover.db") as database:
        database.execute("UPDATE recover_version SET version_num = '9999'")
    said = recover("--home", fresh, "ls")
    assert said.code == 1
    assert "was written by a newer recover" in said.error
    with sqlite3.connect(fresh / "recover.db") as database:
        assert database.execute("SELECT version_num FROM recover_version").fetchone() == ("9999",)


def test_a_file_that_is_no_database_is_one_line(recover: Recover, tmp_path: Path) -> None:
    (tmp_path / "recover.db").write_text("not a database, but long enough to be looked at " * 40)
    assert "is not a SQLite database" in recover("--home", tmp_path, "ls").error
    assert "is not supported" in recover("--db", "mysql://host/name", "--home", tmp_path, "ls").error


def test_settings_that_are_wrong_name_the_file_and_the_place(recover: Recover, fresh: Path) -> None:
    path = fresh / "recover.yaml"
    path.write_text(path.read_text().replace("steps: 2", "steps: two", 1))
    said = recover("--home", fresh, "midtrain", "--docs", fresh)
    assert said.code == 2
    assert f"{path}: midtrain.steps" in said.error


def test_an_unforeseen_error_is_one_line_and_a_traceback_only_with_debug(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr("db.reads.queries.runs", broken)
    said = recover("--home", home, "ls", "runs")
    assert said.code == 1
    assert said.error == "Error: ValueError: two lines (run again with --debug for the traceback)"
    assert "Traceback" in recover("--home", home, "--debug", "ls", "runs").err


def test_warnings_and_tracebacks_hold_no_key_and_nothing_that_a_terminal_obeys(
    recover: Recover, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        logging.getLogger("any").warning("skipped %s", "\x1b]0;title\x07.pdf")
        monkeypatch.setattr(logging.getLogger("talkative"), "level", logging.DEBUG)
        logging.getLogger("talkative").debug("building an index")
        warnings.warn("\u202egnp.exe", stacklevel=1)
        raise ValueError("\x1b[2J with api_key=abcdef123456")

    monkeypatch.setattr("db.reads.queries.runs", broken)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr("logging._warnings_showwarning", None)  # as in a new process
    said = recover("--home", home, "--debug", "ls", "runs").err
    assert "building an index" not in said
    assert "skipped ‹001B›]0;title‹0007›.pdf" in said and "‹202E›gnp.exe" in said
    assert "Traceback" in said and "‹001B›[2J with api_key=(hidden)" in said
    assert "\x1b" not in said and "\u202e" not in said and "abcdef123456" not in said


def test_the_microworld_is_written_where_it_was_asked(recover: Recover, tmp_path: Path) -> None:
    said = recover("microworld", tmp_path / "w", "--cycle", 2, "--seed", 5, "--json")
    assert said.code == 0
    written = sorted(path.name for path in (tmp_path / "w").iterdir())
    assert written == ["docs", "ifeval.jsonl", "probes.jsonl", "prompts.jsonl"]
    assert recover("microworld", tmp_path / "w").code == 2
