"""Recorded scores are read instead of asking again where all that decides them is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dashboard import report
from db.reads import queries
from evals import knowledge
from evals.scores import Score
from pipelines.cli.cycles import cycle_command
from pipelines.cli.options import Session
from pipelines.config.jobs import EvalJob
from pipelines.config.sections.eval import EvalConfig
from pipelines.cycle import cycle
from pipelines.evaluate import evaluate
from pipelines.evaluation import conditions, suites
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine import cycle_time
from pipelines.runs.pinned_inputs import pinned
from pipelines.runs.workspace import Workspace
from recovery.errors import RecoverError
from tests.support import tiny
from tests.support.small_cycles import lines, make_docs, make_home, settle

pytestmark = pytest.mark.new_home
BOTH = ["knowledge", "retention"]


def probes(folder: Path, name: str = "probes.jsonl", **changes: Any) -> Path:
    """Two questions of each suite; `changes` are of the first one about knowledge."""
    rows: list[dict[str, Any]] = [
        {"id": f"{suite}{n}", "suite": suite, "prompt": f"Where is {n}?", "answer": "Oslo", "fact": str(n)}
        for suite in BOTH
        for n in range(2)
    ]
    rows[0] |= changes
    return lines(folder / name, rows)


def job(ws: Workspace, path: Path, **changes: Any) -> EvalJob:
    small: dict[str, Any] = {"ifeval": "none", "probes": str(path), "probe_max_new_tokens": 4}
    settings = EvalConfig(**small | changes)
    return EvalJob(checkpoint=ws.clean().id, suites=tuple(BOTH), settings=settings, reuse=True)


def items(ws: Workspace, found: dict[str, Any], suite: str) -> list[dict[str, Any]]:
    rows = queries.items(ws.tracker.db, found["score_ids"][suite])
    return [{name: value for name, value in row.items() if name != "score_id"} for row in rows]


def numbers(found: dict[str, Any]) -> Any:
    """An evaluation's scores, but for where they were recorded."""

    def without_place(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name != queries.RECORDED_IN}

    return json.loads(json.dumps(found["scores"]), object_hook=without_place)


def test_a_finished_evaluation_is_read_and_the_model_not_even_loaded(
    ws: Workspace, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = probes(tmp_path)
    lines(
        path,
        [
            *map(json.loads, path.read_text().splitlines()),
            {"id": "c", "kind": "cloze", "prompt": "In", "answer": "Oslo"},
        ],
    )
    first = evaluate(ws, job(ws, path), key="first")
    assert asked == ["knowledge", "knowledge", "retention"]  # the cloze probe is asked apart
    asked.clear()
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    monkeypatch.setattr(ws, "load", lambda *_: pytest.fail("loaded"))
    origin = queries.runs(ws.tracker.db)[0]["id"]
    for key in ("second", "third"):  # what was copied is not copied from the copy
        again = evaluate(ws, job(ws, path), key=key)
        assert asked == []
        assert numbers(again) == numbers(first)
        assert list(again["scores"]["knowledge"]["apart"]) == ["cloze"]
        assert {row[queries.RECORDED_IN] for row in again["scores"].values()} == {origin}
        assert again["score_ids"]["knowledge"] != first["score_ids"]["knowledge"]
        for suite in BOTH:
            assert items(ws, again, suite) == items(ws, first, suite) != []
    scores = [line for line in said if line.startswith("  eval ")]
    assert len(scores) == 6 and all(line.endswith(f"as recorded in {origin}") for line in scores)
    assert len(said) == len(scores) + 2  # each names its checkpoint


def test_what_reaches_no_answer_is_no_reason_to_ask_again(
    ws: Workspace, tmp_path: Path, asked: list[str]
) -> None:
    evaluate(ws, job(ws, probes(tmp_path)), key="first")
    asked.clear()
    moved = probes(tmp_path, "same-questions-elsewhere.jsonl")
    evaluate(ws, job(ws, moved, margin=0.2, behaviours=("json",), earlier_questions=7), key="second")
    assert asked == []


def other_checkpoint(ws: Workspace, again: EvalJob) -> EvalJob:
    other = ws.checkpoint(str(tiny.save(ws.home / "other", seed=1)))
    return again.model_copy(update={"checkpoint": other.id})


def other_model_section(ws: Workspace, again: EvalJob) -> EvalJob:
    path = ws.home / "recover.yaml"
    text, count = re.subn(r"dtype: \w+", "dtype: bfloat16", path.read_text())
    assert count == 1
    path.write_text(text)
    vars(ws).pop("config", None)
    return again


def with_settings(**changes: Any) -> Callable[[Workspace, EvalJob], EvalJob]:
    return lambda ws, again: again.model_copy(update={"settings": again.settings.model_copy(update=changes)})


@pytest.mark.parametrize(
    "differently",
    [
        other_checkpoint,
        other_model_section,
        with_settings(probe_max_new_tokens=5),
        with_settings(limit=1),
        with_settings(stop_loops=True),
        with_settings(samples=2),
        with_settings(batch_size=1),
        lambda ws, again: again.model_copy(update={"reuse": False}),
    ],
)
def test_whatever_decides_the_answers_asks_anew(
    ws: Workspace,
    tmp_path: Path,
    asked: list[str],
    differently: Callable[[Workspace, EvalJob], EvalJob],
) -> None:
    path = probes(tmp_path)
    evaluate(ws, job(ws, path), key="first")
    asked.clear()
    evaluate(ws, differently(ws, job(ws, path)), key="second")
    assert set(asked) == set(BOTH)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("versions", {"transformers": "99"}),
        ("code_revision", "another"),
        ("_device", ["another", None]),
    ],
)
def test_other_software_or_another_machine_asks_anew(
    ws: Workspace, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    path = probes(tmp_path)
    evaluate(ws, job(ws, path), key="first")
    asked.clear()
    monkeypatch.setattr(conditions, name, lambda: value)
    evaluate(ws, job(ws, path), key="second")
    assert asked == BOTH


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes")
@pytest.mark.parametrize(
    "decides", ["recovery.cpu.engine.CpuEngine.arithmetic", "torch.backends.cpu.get_cpu_capability"]
)
def test_a_processor_that_rounds_otherwise_asks_anew(
    ws: Workspace, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch, decides: str
) -> None:
    """Another machine, or a compiler that was installed since."""
    path = probes(tmp_path)
    evaluate(ws, job(ws, path), key="first")
    asked.clear()
    monkeypatch.setattr(decides, lambda *_: "another")
    evaluate(ws, job(ws, path), key="second")
    assert asked == BOTH


@pytest.mark.parametrize("changed", [{"prompt": "Where?"}, {"answer": "Rome"}, {"fact": "another"}])
def test_a_suite_with_another_question_is_asked_and_the_others_are_read(
    ws: Workspace, tmp_path: Path, asked: list[str], changed: dict[str, str]
) -> None:
    evaluate(ws, job(ws, probes(tmp_path)), key="first")
    asked.clear()
    found = evaluate(ws, job(ws, probes(tmp_path, **changed)), key="second")
    assert asked == ["knowledge"]
    assert [queries.RECORDED_IN in found["scores"][suite] for suite in BOTH] == [False, True]


def test_the_book_opened_asks_the_probes_anew(ws: Workspace, tmp_path: Path, asked: list[str]) -> None:
    path = probes(tmp_path, passage="Oslo is where 0 is.")
    evaluate(ws, job(ws, path), key="first")
    asked.clear()
    opened = evaluate(ws, job(ws, path, open_book=True), key="second")
    assert "knowledge" in asked and knowledge.OPEN_BOOK in opened["scores"]["knowledge"]["apart"]


def test_sampled_answers_are_read_for_their_own_seeds_alone(
    ws: Workspace, tmp_path: Path, asked: list[str]
) -> None:
    sampled = job(ws, probes(tmp_path), samples=2)
    first = evaluate(ws, sampled, key="first")
    asked.clear()
    assert numbers(evaluate(ws, sampled, key="second")) == numbers(first)
    assert asked == []
    evaluate(ws, sampled.model_copy(update={"seed": 1}), key="third")
    assert set(asked) == set(BOTH)


def test_greedy_answers_are_read_for_every_seed(ws: Workspace, tmp_path: Path, asked: list[str]) -> None:
    greedy = job(ws, probes(tmp_path))
    evaluate(ws, greedy, key="first")
    asked.clear()
    evaluate(ws, greedy.model_copy(update={"seed": 1}), key="second")
    assert asked == []


def test_a_failed_evaluation_is_read_by_none_but_itself(
    ws: Workspace, tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = probes(tmp_path)
    evaluate_probes = knowledge.evaluate

    def fail(*args: Any, **kwargs: Any) -> Score:
        if "retention" in args:
            raise RecoverError("out of luck")
        return evaluate_probes(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(knowledge, "evaluate", fail)
        with pytest.raises(RecoverError, match="out of luck"):
            evaluate(ws, job(ws, path), key="first")
    asked.clear()
    found = evaluate(ws, job(ws, path), key="second")
    assert asked == BOTH
    asked.clear()
    again = job(ws, path).model_copy(update={"reuse": False})
    resumed = evaluate(ws, again, key="first")
    assert asked == ["retention"]
    assert numbers(resumed) == numbers(found)
    assert queries.RECORDED_IN not in resumed["scores"]["knowledge"]


@pytest.mark.parametrize(
    ("sampler", "known"),
    [("http://127.0.0.1:1", False), ("https://a,https://b", False), ("server", True), ("inprocess", True)],
)
def test_what_a_server_elsewhere_runs_is_taken_for_the_same_within_a_run_alone(
    ws: Workspace, tmp_path: Path, sampler: str, known: bool
) -> None:
    served = pinned(ws, job(ws, probes(tmp_path), sampler=sampler))
    asked = suites.suites_of(served)
    assert asked
    for suite in asked:
        one, again, other = (conditions.conditions(ws, served, suite, run) for run in ("one", "one", "other"))
        assert one == again and (one == other) is known


@pytest.mark.parametrize(("typed", "changes"), [([], {}), (["--ask-anew"], {"eval.reuse": False})])
def test_the_command_can_ask_anew(tmp_path: Path, typed: list[str], changes: dict[str, Any]) -> None:
    session = Session()
    cycle_command.make_context("cycle", ["--docs", str(tmp_path), *typed], obj=session)
    assert session.changes == changes


@pytest.mark.slow
def test_a_cycle_reads_the_same_from_what_another_cycle_recorded(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second cycle takes the same steps, so that all three of its models have been asked before."""
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-3)
        said: list[str] = []
        monkeypatch.setattr(ws.progress, "say", said.append)
        foreseen: list[set[str]] = []
        monkeypatch.setattr(
            cycle_time, "estimate", lambda ws, job, suites, recorded, ways: foreseen.append(set(recorded))
        )
        rows, texts = [], []
        for changes in ({}, {}, {"eval.reuse": False}):
            asked.clear()
            wanted = cycle_job(ws, docs, student="base", changes=changes)
            number = cycle(ws, wanted, key=ws.new_key())["cycle"]
            rows.append(queries.cycle(ws.tracker.db, number))
            texts.append(report.report(ws.tracker.db, number))
            assert set(asked) == (set() if number == 2 else {"ifeval", *BOTH})
        assert len([line for line in said if line.endswith("as recorded in cycle:1")]) == 9
        assert foreseen == [set(), {"ifeval", *BOTH}, set()]
        for name in ("checkpoints", "scores", "verdict", "status"):
            assert rows[0][name] == rows[1][name] == rows[2][name]
        flips = [queries.ledger(ws.tracker.db, cycle=number) for number in (2, 3)]
        assert flips[0] and [row | {"cycle": 0} for row in flips[0]] == [
            row | {"cycle": 0} for row in flips[1]
        ]
        by_stage = [
            {row["stage"]: row["id"] for row in queries.stage_scores(ws.tracker.db, number, suite="ifeval")}
            for number in (2, 3)
        ]
        assert set(by_stage[0]) == {"clean", "midtrained", "recovered"}
        sides = [queries.side_by_side(ws.tracker.db, ids) for ids in by_stage]
        assert sides[0] == sides[1] != []
        tables = [text.split("Scores, %")[1].split("</table>")[0] for text in texts]
        assert tables[0] == tables[1] == tables[2] and "retention" in tables[1]
