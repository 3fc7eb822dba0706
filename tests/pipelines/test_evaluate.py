"""Evaluation jobs: which suites are asked, of how many prompts."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from db.reads import queries
from evals.probes import general_retention
from pipelines.cli.measure import eval_command
from pipelines.config.overrides import override
from pipelines.config.sections.eval import EvalConfig
from pipelines.evaluate import evaluate
from pipelines.evaluation.suites import answerable_suites
from pipelines.job_from_options.measure import eval_job
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError

pytestmark = pytest.mark.new_home


def test_retention_has_questions_for_every_model_but_the_shipped_one(tmp_path: Path) -> None:
    settings = EvalConfig(ifeval="ifeval.jsonl")
    assert answerable_suites(settings, "a/model") == ("ifeval", "retention")
    assert answerable_suites(settings, "microworld") == ("ifeval",)
    probes = tmp_path / "probes.jsonl"
    probes.write_text('{"id": "a", "prompt": "Who?", "answer": "Ada"}\n', encoding="utf-8")
    own: EvalConfig = override(settings, {"probes": str(probes)})
    assert answerable_suites(own, "a/model") == ("ifeval", "knowledge", "retention")
    assert answerable_suites(own, "microworld") == ("ifeval", "knowledge")


def test_a_file_of_probes_is_asked_alone_but_for_the_general_questions_as_help_says(
    ws: Workspace, tmp_path: Path
) -> None:
    probes = tmp_path / "probes.jsonl"
    asked = {"id": "a", "prompt": "Who?", "answer": "Ada"}
    for rows, suites in (
        ([asked], ("knowledge", "retention")),
        ([asked | {"suite": "retention"}], ("retention",)),
    ):
        probes.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        job = eval_job(ws, "base", changes={"eval.probes": str(probes)})
        assert job.suites == suites
    help_text = " ".join(eval_command.get_help(click.Context(eval_command)).split())
    assert "with --probes the general questions where it asks none about retention" in help_text


def test_a_limit_asks_the_same_questions_each_time_and_is_recorded(ws: Workspace) -> None:
    changes = {"eval.limit": 5, "eval.probe_max_new_tokens": 2}
    asked = []
    for _ in range(2):
        job = eval_job(ws, "base", "retention", changes=changes)
        found = evaluate(ws, job, key=ws.new_key())
        assert found["scores"]["retention"]["n"] == 5
        assert found["scores"]["retention"]["limit"] == 5
        items = queries.items(ws.tracker.db, found["score_ids"]["retention"])
        asked.append({item["prompt"] for item in items})
    assert asked[0] == asked[1] < {probe.prompt for probe in general_retention()}
    json.dumps(found)


def test_answers_that_only_repeat_themselves_end_if_asked_for_and_the_score_says_so(ws: Workspace) -> None:
    changes = {"eval.limit": 2, "eval.probe_max_new_tokens": 200}
    found, lengths = [], []
    for stop_loops in (False, True):
        job = eval_job(ws, "base", "retention", changes={**changes, "eval.stop_loops": stop_loops})
        result = evaluate(ws, job, key=ws.new_key())
        items = queries.items(ws.tracker.db, result["score_ids"]["retention"])
        found.append(result["scores"]["retention"].get("stop_loops"))
        lengths.append(sum(len(item["response"]) for item in items))
    assert found == [None, True]
    assert lengths[1] < lengths[0]


def test_prompts_that_no_checker_can_judge_are_refused_before_the_first_suite(
    ws: Workspace, tmp_path: Path
) -> None:
    row = {
        "prompt": "Say it.",
        "instruction_id_list": ["keywords:existence"],
        "kwargs": [{"keywords": ["(a"]}],
    }
    path = tmp_path / "ifeval.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    with pytest.raises(InputError, match=r"keywords:existence: .*unterminated subpattern"):
        eval_job(ws, "base", "retention,ifeval", changes={"eval.ifeval": str(path)})


def test_a_folder_for_lm_evals_files_that_cannot_be_made_is_refused(
    ws: Workspace, docs: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    changes = {"eval.ifeval": str(docs.parent / "ifeval.jsonl")}
    with pytest.raises(InputError, match=r"--output .*file/out: "):
        eval_job(ws, "base", "ifeval", output=tmp_path / "file" / "out", changes=changes)
    made = eval_job(ws, "base", "ifeval", output=tmp_path / "new" / "out", changes=changes)
    assert made.output == str(tmp_path / "new" / "out") and Path(made.output).is_dir()
