"""A cycle that tasks of lm-eval decide too: what is asked, claimed and shown, and what is refused at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dashboard.report import report
from db.reads import queries
from evals.scores import ModelCalls
from evals.tasks import suite as tasks
from evals.verdict import accepted
from pipelines.cli.cycle_text import cycle_text
from pipelines.cli.cycles import require_accepted
from pipelines.cli.records import cycles_text
from pipelines.compare import compare, compare_text
from pipelines.config.jobs import EvalJob
from pipelines.evaluation.suites import suites_of
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job, locate_job
from pipelines.prompts.leaks import evaluation_prompts
from pipelines.runs.workspace import Workspace
from recovery.errors import GateError, InputError
from tests.support.small_cycles import turned

COLOURS = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: colours-data.json}}
output_type: multiple_choice
test_split: test
doc_to_text: "The leaf {{number}} is"
doc_to_choice: ["green", "red and blue"]
doc_to_target: 0
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
SUMS = """
task: sums
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["."], max_gen_toks: 4, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""
ROWS = 36


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "tasks"
    place.mkdir()
    (place / "colours.yaml").write_text(COLOURS)
    (place / "colours-data.json").write_text(json.dumps([{"number": number} for number in range(ROWS)]))
    (place / "sums.yaml").write_text(SUMS)
    (place / "sums.jsonl").write_text(
        "".join(f'{{"question": "{n}+1=", "answer": "{n + 1}"}}\n' for n in (1, 2))
    )
    return place


def judged(folder: Path, **points: float) -> dict[str, Any]:
    return {"eval.tasks": str(folder), "eval.task_points": points}


@pytest.mark.slow
def test_a_task_with_a_margin_is_an_axis_of_the_verdict(
    ws: Workspace, docs: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 36 items without a change at most 8 % can change: within 40 points, not within 2."""
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    row = turned(ws, docs, judged(folder, colours=40))
    unseen = 100 * (1 - 0.05 ** (1 / ROWS))
    assert (row["status"], row["verdict"]["colours"]) == ("accepted", "kept")
    assert (row["scores"]["colours"]["clean"], row["scores"]["colours"]["n"]) == (1.0, ROWS)
    assert f"colours     kept (lower bound -{unseen:.1f} points, margin 40)" in cycle_text(row)
    assert "colours" in cycles_text([row]).splitlines()[0]
    assert "colours, recovered: 100.0 %" in report(ws.tracker.db, 1)
    models = row["checkpoints"]
    compared = compare(ws, models["clean"], models["recovered"], "colours")
    assert compared["suites"][0]["non_inferior"]["margin"] == pytest.approx(0.4)
    assert "b is at most 40 points worse" in compare_text(compared)

    said.clear()
    narrow = turned(ws, docs, judged(folder, colours=2), suites="ifeval")
    assert (narrow["status"], narrow["verdict"]["colours"]) == ("rejected", "underpowered")
    warned = next(n for n, line in enumerate(said) if "colours: with 36 independent questions" in line)
    assert said[warned].endswith("a task has only its own: take a larger one, or a wider margin")
    assert warned < next(n for n, line in enumerate(said) if line.startswith("  clean"))
    assert "would decide; a task has only its own" in cycle_text(narrow)
    assert not accepted(narrow["verdict"], ("behaviour",))
    with pytest.raises(GateError, match="colours underpowered"):
        require_accepted(ws, [narrow])


def test_the_tasks_of_a_cycle_are_those_with_a_margin(ws: Workspace, docs: Path, folder: Path) -> None:
    both = judged(folder, colours=40, sums=50)
    job = cycle_job(ws, docs, changes=both)
    assert job.suites[-2:] == ("colours", "sums") and {"colours", "sums"} <= set(job.required)
    path = ws.home / "recover.yaml"
    written = f"eval:\n  tasks: {folder}\n  task_points: {{colours: 40, sums: 50}}\n"
    own = path.read_text().replace("ifeval: microworld", f"ifeval: {docs.parent}/ifeval.jsonl")
    path.write_text(own.replace("eval:\n", written))
    vars(ws).pop("config", None)
    for suites, changes, points in (
        ("ifeval,sums", {}, {"sums": 50}),
        ("ifeval", {}, {}),
        ("ifeval", {"eval.task_points": {"colours": 30}}, {"colours": 30}),
        (None, {"eval.task_points": {"colours": 30}}, {"colours": 30, "sums": 50}),
    ):
        job = cycle_job(ws, docs, suites=suites, changes=changes)
        assert job.settings.eval.task_points == points
        assert [name for name in job.suites if name in both["eval.task_points"]] == list(points)
    assert eval_job(ws).suites[-2:] == ("colours", "sums")
    typed = {"eval.tasks": str(folder)}  # read, as the tasks of recover.yaml are asked
    assert eval_job(ws, changes=typed).suites[-2:] == ("colours", "sums")
    only = eval_job(ws, changes={"eval.probes": str(docs.parent / "probes.jsonl")})
    assert only.suites == ("knowledge", "retention")
    assert locate_job(ws, "base", 2, "ifeval,sums").settings.task_points == {"sums": 50}


@pytest.mark.parametrize(
    ("points", "suites", "said"),
    [
        ({"colour": 2.0}, None, "no suite 'colour': did you mean colours"),
        ({"ifeval": 2.0}, None, "--task ifeval: a verdict has this name for something else"),
        ({"margin": 2.0}, None, "--task margin: a verdict has this name for something else"),
        ({"colours": 0.0}, None, "eval.task_points.colours: .* greater than 0"),
        ({"colours": 100.0}, None, "eval.task_points.colours: .* less than 100"),
        (
            {"colours": 2.0},
            "ifeval,sums",
            "--suite sums: .* a task of lm-eval with a margin, as in --task sums",
        ),
        ({}, None, "--tasks: no task of lm-eval is asked: name one, as in --task gsm8k=3"),
        ({"gsm8k": 2.0}, None, "gsm8k: its data set .* cannot be loaded"),
    ],
)
def test_what_cannot_decide_is_refused_before_a_cycle(
    ws: Workspace, docs: Path, folder: Path, points: dict[str, float], suites: str | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, suites=suites, changes=judged(folder, **points))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "output_type: generate_until",
            "output_type: loglikelihood_rolling",
            "gives the perplexity of texts",
        ),
        ("metric: exact_match, aggregation: mean", "metric: bleu, aggregation: bleu", "none of its metrics"),
        ("exact_match", "grade", "metric grade gives 100 for a document, not 0 to 1"),
    ],
)
def test_a_task_without_a_number_from_0_to_1_for_each_answer_is_refused_before_a_cycle(
    ws: Workspace, docs: Path, folder: Path, old: str, new: str, said: str
) -> None:
    """Also one whose metric leaves that range only with right answers, as BLEU of single documents."""
    code = "def grade(doc, results):\n    return {'grade': 100.0 * (results[0] == doc['answer'])}\n"
    (folder / "grades.py").write_text(code)
    graded = "process_results: !function grades.grade\n" if new == "grade" else ""
    (folder / "sums.yaml").write_text(SUMS.replace(old, new) + graded)
    with pytest.raises(InputError, match=f"sums: {said}"):
        cycle_job(ws, docs, changes=judged(folder, sums=2))


@pytest.mark.parametrize("target", ["{{answer}}", " "])
def test_the_metric_of_a_claim_is_chosen_before_any_answer(folder: Path, target: str) -> None:
    """As truthfulqa_gen: of a model that says nothing right bleu_max would be 0, and a number from 0 to 1.
    Its target is blank, and the right answers stand in the document."""
    code = "def grade(doc, results):\n    won = results[0] == doc['answer']\n"
    (folder / "grades.py").write_text(f"{code}    return {{'most': 100.0 * won, 'won': won}}\n")
    other = "  - {metric: won, aggregation: mean, higher_is_better: true}\n"
    own = SUMS.replace("{{answer}}", target)
    graded = own.replace("exact_match", "most") + other + "process_results: !function grades.grade\n"
    (folder / "sums.yaml").write_text(graded)
    prepared = tasks.prepare("sums", folder)
    assert prepared.metrics["sums"][0] == ["most", "won"]
    tasks.settle_metric(prepared)
    assert prepared.metrics["sums"][0] == ["won"]


def test_the_example_of_the_documentation_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    settings, row = page.partition("## A benchmark of your own as a gate")[2].split("```\n")[1:4:2]
    (tmp_path / "my_task.yaml").write_text(settings)
    (tmp_path / "my_task.jsonl").write_text(row)
    prepared = tasks.prepare("my_task", tmp_path)
    tasks.settle_metric(prepared)
    asked: list[Any] = []

    def say(prompts: list[Any], limit: int, temperature: float) -> list[str]:
        asked.extend([*prompts, limit, temperature])
        return [" badminton\nQuestion:" for _ in prompts]

    score, _ = tasks.evaluate(prepared, ModelCalls(say, lambda pairs: []))
    assert asked == ["Question: In which sport is a shuttlecock hit?\nAnswer:", 32, 0.0]
    assert (score.suite, score.metric, score.value, score.n) == ("my_task", "exact_match", 1.0, 1)


def test_what_a_task_asks_is_counted_and_left_out_of_training(
    ws: Workspace, docs: Path, folder: Path
) -> None:
    job = cycle_job(ws, docs, changes=judged(folder, colours=40))
    (suite,) = suites_of(EvalJob(checkpoint="c", suites=("colours",), settings=job.settings.eval))
    assert suite.independent == ROWS
    assert "The leaf 7 is" in evaluation_prompts(job.settings.eval, {}, lambda line: None)
    assert queries.runs(ws.tracker.db) == []  # nothing has begun
