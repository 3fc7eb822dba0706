"""Ways back are compared question by question, on what a cycle recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.outcomes.ways_back import Answers, Finished, against, table
from db.reads import queries
from pipelines.cycle import cycle
from pipelines.job_from_options.cycle import cycle_job
from tests.support.eval_items import items
from tests.support.self_written import writes_questions
from tests.support.small_cycles import make_docs, make_home, settle

ANSWERS: dict[str, Answers] = {
    "clean": {"ifeval": items("pppp")},
    "opd": {"ifeval": items("ppff")},
    "merge": {"ifeval": items("fppp")},
}


def test_every_way_has_a_row_with_its_share() -> None:
    rows = table(ANSWERS)
    assert [row["way"] for row in rows] == ["clean", "`opd`", "`merge`"]
    assert [row["ifeval (n = 4)"][:5] for row in rows] == ["1.000", "0.500", "0.750"]


def test_differences_are_what_a_way_has_more_than_the_reference() -> None:
    [row] = against(ANSWERS, "opd")
    assert row["way"] == "`merge`"
    assert row["ifeval"].startswith("+0.250 (-")


def test_answers_to_other_questions_are_refused() -> None:
    others = {**ANSWERS, "merge": {"ifeval": items("fpp")}}
    with pytest.raises(SystemExit, match="different questions"):
        against(others, "opd")


@pytest.mark.slow
def test_a_finished_cycle_is_asked_again_only_for_what_it_did_not_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes_questions(monkeypatch)
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-3)
        number = cycle(ws, cycle_job(ws, docs))["cycle"]
        finished = Finished.of(ws, number)
        cycle_runs = len(queries.runs(ws.tracker.db, limit=100))
        answers = {way: finished.answers(way) for way in ("clean", "none", "opd")}
        assert len(queries.runs(ws.tracker.db, limit=100)) == cycle_runs
        for way in ("merge", "longer"):
            answers[way] = finished.answers(way)
        kinds = [run["kind"] for run in queries.runs(ws.tracker.db, limit=100)][::-1][cycle_runs:]
        assert kinds == ["merge", "eval", "distill", "eval"]
        suites = {
            way: {suite: len(asked) for suite, asked in found.items()} for way, found in answers.items()
        }
        assert all(found == suites["opd"] for found in suites.values())
        [longer] = queries.runs(ws.tracker.db, kind="distill", limit=1)
        assert longer["config"]["settings"]["steps"] == 2 * finished.job.settings.distill.steps
        finished.answers("self")
        [by_itself] = queries.runs(ws.tracker.db, kind="distill", limit=1)
        assert "self-" in by_itself["config"]["prompts"] != longer["config"]["prompts"]
        runs = len(queries.runs(ws.tracker.db, limit=100))
        finished.answers("merge")
        assert set(Finished.of(ws, number, ["refusals"]).answers("opd")) == {*answers["opd"], "refusals"}
        assert len(queries.runs(ws.tracker.db, limit=100)) == runs + 1


def test_replay_midtrains_on_as_much_of_the_documents_with_half_of_the_tokens_chat(tmp_path: Path) -> None:
    docs = make_docs(tmp_path)
    with make_home(tmp_path) as ws:
        settle(ws, margin=0.4, learning_rate=1e-3)
        asked = {
            "midtrain.mix": {"new": 0.6, "questions": 0.2, "chat": 0.2, "earlier": 0.0},
            "midtrain.steps": 5,
        }
        number = cycle(ws, cycle_job(ws, docs, changes=asked))["cycle"]
        answers = Finished.of(ws, number).answers("replay")
        [replayed, first] = queries.runs(ws.tracker.db, kind="midtrain", limit=5)
        settings = replayed["config"]["settings"]
        assert settings["mix"] == pytest.approx(
            {"new": 0.375, "questions": 0.125, "chat": 0.5, "earlier": 0, "augmented": 0}
        )
        assert settings["steps"] == 8  # 8 x (0.375 + 0.125) = 5 x (0.6 + 0.2)
        assert settings["chat_prompts"] > first["config"]["settings"]["chat_prompts"]
        assert replayed["config"]["student"] == ws.clean().id
        assert set(answers) == {"ifeval", "knowledge", "retention"}


def test_an_unfinished_cycle_is_refused(tmp_path: Path) -> None:
    with make_home(tmp_path) as ws:
        run = ws.tracker.start_run("cycle", config={"docs": "d"})
        number = ws.tracker.record_cycle(run.id, clean_id=ws.clean().id)
        with pytest.raises(SystemExit, match="is running: finish it first"):
            Finished.of(ws, number)
