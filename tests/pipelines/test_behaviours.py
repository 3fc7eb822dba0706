"""A cycle that is judged by families too: what is measured, what is not and why, and what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dashboard.report import report
from db.reads import queries
from evals.families import suite
from evals.families.table import FAMILIES
from pipelines.cli.commands import cli
from pipelines.cli.cycle_text import cycle_text
from pipelines.compare import compare, compare_text
from pipelines.config.jobs import EvalJob
from pipelines.cycle import cycle
from pipelines.evaluate import evaluate
from pipelines.flips import flips
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job
from pipelines.prompts.leaks import AskedPrompts, evaluation_prompts
from pipelines.prompts.prompt_sources import read_prompts
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.small_cycles import lines, make_docs

WORDS = ("red", "green", "blue", "white", "black", "grey")


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """As make_docs, with general questions that have different answers, to choose among."""
    folder = make_docs(tmp_path)
    path = folder.parent / "probes.jsonl"
    asked = [
        {"id": f"q{n}", "suite": "retention", "kind": "direct", "prompt": f"Say {n}.", "answer": WORDS[n % 6]}
        for n in range(36)
    ]
    known = [row for row in map(json.loads, path.read_text().splitlines()) if row["suite"] == "knowledge"]
    lines(path, [*known, *asked])
    return folder


def turned(ws: Workspace, docs: Path, behaviours: list[str], **options: Any) -> dict[str, Any]:
    changes = {
        "distill.merge": 0.0,
        "distill.rehearsal": 0.0,
        "eval.behaviours": behaviours,
        "eval.behaviours_items": 12,
        "eval.behaviours_margin": 0.4,
    }
    job = cycle_job(ws, docs, changes=changes, **options)
    return queries.cycle(ws.tracker.db, cycle(ws, job, key=ws.new_key())["cycle"])


def test_a_cycle_is_accepted_by_the_families_that_it_was_asked_for(ws: Workspace, docs: Path) -> None:
    row = turned(ws, docs, ["calibration"])
    assert (row["status"], row["verdict"]["calibration"]) == ("accepted", "kept")
    assert row["scores"]["calibration"]["n"] == 36
    unseen = 1 - 0.025 ** (1 / 36)  # as many changes none of 36 answers may have shown
    assert f"calibration kept (lower bound {-100 * unseen:+.1f} points, margin 40)" in cycle_text(row)
    models = row["checkpoints"]
    compared = compare(ws, models["clean"], models["recovered"], "calibration")
    assert compared["suites"][0]["words"] == "not distinguishable"
    assert "permutation test p = " in compare_text(compared)
    counts = flips(ws, ["cycle:1"], "calibration", None, 5)["counts"]
    assert {count["metric"] for count in counts} == {"calibration"}
    page = report(ws.tracker.db, 1)
    assert "Families of behaviour" in page and "calibration, recovered: " in page


def test_a_family_that_cannot_be_measured_is_no_pass_and_says_why(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model's template takes no tools, and it writes no JSON that could be lost."""
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    row = turned(ws, docs, ["tools", "json"], suites="ifeval")
    words = row["verdict"]
    assert (row["status"], words["behaviour"]) == ("rejected", "recovered")
    assert (words["tools"], words["json"]) == ("not measured", "not measured")
    reasons = {name: words["axes"][name]["details"]["reason"] for name in ("tools", "json")}
    assert reasons["tools"] == "the chat template takes no tool schemas"
    assert "passes 0.0% of the items" in reasons["json"]
    assert "tools" not in row["scores"] and row["scores"]["json"]["n"] == 12
    assert "tools       not measured (the chat template takes no tool schemas)" in cycle_text(row)
    told = {name: [n for n, line in enumerate(said) if f"{name} is not measured" in line] for name in reasons}
    measured = next(n for n, line in enumerate(said) if line.startswith("  clean"))
    assert [len(lines) for lines in told.values()] == [1, 1]
    assert told["tools"][0] < measured < told["json"][0]  # only what it answers tells of the latter


def test_without_families_nothing_is_asked_beyond_the_axes(ws: Workspace, docs: Path) -> None:
    job = cycle_job(ws, docs)
    assert job.suites == ("ifeval", "knowledge", "retention")
    configured = cycle_job(ws, docs, changes={"eval.behaviours": ["refusals", "json"]})
    assert configured.suites[-2:] == ("refusals", "json") and {"refusals", "json"} <= set(configured.required)
    named = cycle_job(ws, docs, suites="ifeval,json")
    assert (named.suites, named.settings.eval.behaviours) == (("ifeval", "json"), ("json",))
    path = ws.home / "recover.yaml"
    path.write_text(path.read_text().replace("ifeval: microworld", f"ifeval: {docs.parent}/ifeval.jsonl"))
    vars(ws).pop("config", None)
    assert eval_job(ws, changes={"eval.behaviours": ["json"]}).suites == ("ifeval", "retention", "json")


@pytest.mark.parametrize("suites", [None, "ifeval"])
def test_an_unknown_family_is_refused_before_anything_is_done(
    ws: Workspace, docs: Path, suites: str | None
) -> None:
    with pytest.raises(
        InputError, match="--behaviours jsn: there is no such family: choose among json, tools"
    ):
        cycle_job(ws, docs, suites=suites, changes={"eval.behaviours": ["jsn"]})


def test_an_evaluation_says_what_it_did_not_measure(ws: Workspace) -> None:
    settings = ws.config.eval.model_copy(update={"behaviours_items": 6})
    job = EvalJob(checkpoint=ws.clean().id, suites=("tools", "refusals"), settings=settings)
    found = evaluate(ws, job, key="once")
    assert found["scores"]["tools"] == {
        "score": None,
        "n": 0,
        "interval": [None, None],
        "metric": None,
        "not_measured": "the chat template takes no tool schemas",
    }
    assert set(found["score_ids"]) == {"refusals"}
    assert set(found["scores"]["refusals"]["by_kind"]) <= {"harmful", "benign"}


def test_questions_of_a_suite_are_left_out_of_training(ws: Workspace, docs: Path, tmp_path: Path) -> None:
    settings = cycle_job(ws, docs, suites="ifeval,json,multi-turn").settings.eval
    questions = [one for name in ("json", "multi-turn") for one in suite.suite(FAMILIES[name], 5)]
    prompts = [one for name in ("json", "multi-turn") for one in suite.recovery(FAMILIES[name], 5)]
    path = lines(tmp_path / "p.jsonl", [suite.row(one) for one in (*questions, *prompts)])
    asked = AskedPrompts(evaluation_prompts(settings, {}, Silent().say))
    kept = asked.kept_out_of(read_prompts(str(path)))
    assert len(questions) == 10 and [one.text for one in kept] == [one.text for one in prompts]


def test_a_source_that_cannot_be_read_leaves_the_others_out_of_training_still(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    settings = cycle_job(ws, docs, suites="ifeval,json").settings.eval
    every = evaluation_prompts(settings, {}, Silent().say)
    said: list[str] = []
    lost = settings.model_copy(update={"ifeval": str(tmp_path / "none.jsonl")})
    found = evaluation_prompts(lost, {}, said.append)
    assert found == every[-len(found) :] and "Say 7." in found
    assert len(said) == 1 and "IFEval not checked: " in said[0]
    lost = lost.model_copy(update={"probes": str(tmp_path / "no.jsonl")})
    found = evaluation_prompts(lost, {}, said.append)
    assert found == [one.text for one in suite.suite(FAMILIES["json"], lost.behaviours_items)]
    assert len(said) == 3 and "probes not checked: " in said[2]


class Silent:
    """A stage in which nothing may need to be said."""

    def say(self, line: str) -> None:
        raise AssertionError(line)


def test_the_command_writes_recovery_prompts_that_training_reads(tmp_path: Path) -> None:
    out = tmp_path / "tools.jsonl"
    arguments = ["--json", "prompts", "tools", "--count", "4", "--seed", "3", "--out", str(out)]
    found = CliRunner().invoke(cli, arguments)
    assert found.exit_code == 0, found.output
    assert json.loads(found.output) == {"file": str(out), "prompts": 4, "family": "tools", "seed": 3}
    prompts = read_prompts(str(out))
    assert len(prompts) == 4 and all(prompt.messages[0]["tools"] for prompt in prompts)
