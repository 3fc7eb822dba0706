"""What a cycle is accepted by: every axis that was asked for, measured and passed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.probes import load_probes
from pipelines.cli.cycle_text import cycle_text
from pipelines.cli.cycles import require_accepted
from pipelines.config.overrides import changed
from pipelines.cycle import cycle, midtraining
from pipelines.job_from_options.cycle import cycle_job
from pipelines.runs.workspace import Workspace
from recovery.command_line import command
from recovery.errors import GateError
from recovery.models.adapters import adapter_rank
from tests.support.small_cycles import keep_probes, lines, turned


def test_without_probes_no_cycle_is_accepted_but_by_request(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    (docs.parent / "probes.jsonl").unlink()
    row = turned(ws, docs)
    first = next(n for n, line in enumerate(said) if line.startswith("  clean "))
    unmeasured = "is not measured, so no acceptance: give --probes FILE"
    assert [line.split()[1] for line in said[:first] if unmeasured in line] == ["knowledge"]
    assert row["status"] == "rejected"
    assert row["verdict"]["behaviour"] == "recovered"
    assert (row["verdict"]["knowledge"], row["verdict"]["retention"]) == ("not measured", "kept")
    said.clear()
    asked = turned(ws, docs, suites="ifeval")
    assert (asked["status"], asked["verdict"]["knowledge"]) == ("accepted", "not measured")
    assert not any(unmeasured in line for line in said)


@pytest.mark.parametrize(
    ("options", "mixes", "words"),
    [
        ({"changes": {"seed": 7}}, 0.5, "--merge 0 --seed 8"),
        (
            {"changes": {"distill.prompts": "microworld", "distill.rehearsal": 0.25, "distill.merge": 0.0}},
            0.5,
            "--prompts microworld --rehearsal 0.25 --merge 0 --seed 1",
        ),
        ({"recover_with": "opd-sampled"}, 0.0, "--method opd-sampled --seed 1"),
        ({"recover_with": "merge"}, 0.5, "--merge 0 --seed 1"),
    ],
)
def test_the_command_that_recovers_longer_goes_on_as_the_cycle_was_told_to(
    ws: Workspace, docs: Path, options: dict[str, Any], mixes: float, words: str
) -> None:
    ws.config = changed(ws.config, {"distill.merge": mixes})
    run = ws.tracker.start_run("cycle", config=cycle_job(ws, docs, **options).model_dump()).id
    lost = {"difference": -0.12, "upper_bound": -0.11, "margin": 0.1, "needed_n": 900}
    judged = {"behaviour": "not recovered", "knowledge": "kept", "retention": "kept"}
    row: dict[str, Any] = {"cycle": 1, "run": run, "status": "rejected", "review": None}
    row["verdict"] = judged | {"axes": {"behaviour": lost}}
    onward = command(ws.home, "distill", "--student", "cycle:1", *words.split())
    with pytest.raises(GateError, match=re.escape(f"behaviour not recovered: `{onward}` recovers longer; ")):
        require_accepted(ws, [row])


def test_probes_of_one_suite_measure_that_suite(ws: Workspace, docs: Path) -> None:
    """As `recover probes` writes them: knowledge alone; the general questions measure retention."""
    keep_probes(docs, "knowledge")
    row = turned(ws, docs)
    assert set(row["scores"]) == {"ifeval", "knowledge", "retention"}
    assert (row["status"], row["scores"]["retention"]["n"]) == ("accepted", 320)


def test_retention_alone_says_nothing_of_what_was_learned(ws: Workspace, docs: Path) -> None:
    keep_probes(docs, "retention")
    row = turned(ws, docs)
    assert (row["status"], row["verdict"]["knowledge"]) == ("rejected", "not measured")


def test_changed_facts_are_an_axis_of_their_own(ws: Workspace, docs: Path) -> None:
    """The tiny model gives neither answer, so that nothing was updated and the cycle is rejected."""
    path = docs.parent / "probes.jsonl"
    moved = [
        {"id": f"moved{n}", "prompt": f"Where is {n}?", "answer": "Rome", "was": "Oslo"} for n in range(20)
    ]
    lines(path, [*(probe.row() for probe in load_probes(path)), *moved])
    row = turned(ws, docs)
    assert (row["verdict"]["updates"], row["status"]) == ("not updated", "rejected")
    assert row["scores"]["knowledge"]["n"] == row["scores"]["retention"]["n"]
    updates = row["scores"]["updates"]
    assert (updates["n"], updates["recovered"]) == (20, 0.0)
    assert updates["stale_rate"] == {"clean": 0.0, "midtrained": 0.0, "recovered": 0.0}
    assert updates["answered"]["recovered"] == {"new": 0, "old": 0, "neither": 20}
    assert row["verdict"]["axes"]["updates"]["n"] == 20
    assert "old answers to changed facts: clean 0.000" in cycle_text(row)
    assert "margin 40), not shown to be learned (+0.0 points against clean, " in cycle_text(row)


def test_recovery_goes_on_with_midtrainings_adapter(ws: Workspace, docs: Path) -> None:
    changes = {"midtrain.lora": {"rank": 2}, "distill.lora": "auto", "distill.merge": 0.0}
    changes["distill.rehearsal"] = 0.0
    done = cycle(ws, cycle_job(ws, docs, suites="ifeval", changes=changes), key="adapter")
    made = queries.cycle(ws.tracker.db, done["cycle"])["checkpoints"]["recovered"]
    assert adapter_rank(ws.checkpoint(made).path) == 2


def test_a_cycle_samples_the_answers_of_all_its_models_by_its_seed(ws: Workspace, docs: Path) -> None:
    turned(ws, docs, {"eval.samples": 2, "seed": 3}, suites="ifeval", recover_with="merge")
    evaluated = {run["config"]["label"]: run for run in queries.runs(ws.tracker.db, kind="eval")}
    assert {"clean", "midtrained", "recovered", "merge:0.3"} <= set(evaluated)
    assert {run["config"]["seed"] for run in evaluated.values()} == {3}


def test_the_ceiling_with_passages_in_front_is_asked_of_the_clean_model_alone(
    ws: Workspace, docs: Path
) -> None:
    turned(ws, docs, {"eval.open_book": True}, suites="ifeval")
    jobs = [run["config"] for run in queries.runs(ws.tracker.db, kind="eval")]
    opened = {job["label"]: job["settings"]["open_book"] for job in jobs}
    assert opened == {"clean": True, "midtrained": False, "recovered": False}


def test_sentences_are_held_out_only_where_a_guard_compares_by_them(ws: Workspace, docs: Path) -> None:
    def held_out(**options: Any) -> float:
        return midtraining(cycle_job(ws, docs, **options)).settings.hold_out

    assert held_out() == ws.config.midtrain.hold_out > 0
    assert held_out(changes={"distill.overlap": "keep"}) == 0
    assert held_out(recover_with="merge") == 0
    ruled: dict[str, Any] = {"distill.context": "Be brief."}
    assert held_out(recover_with="opcd", changes=ruled) == 0
    assert held_out(recover_with="seqkd") > 0
    assert held_out(recover_with="auto", changes={"distill.overlap": "keep"}) == 0
    settings = ws.home / "recover.yaml"
    settings.write_text(settings.read_text().replace("method: opd\n", "method: opcd\n"))
    vars(ws).pop("config", None)
    assert held_out(changes=ruled) == 0
    assert held_out(recover_with="auto", changes=ruled) > 0  # which tries seqkd too
