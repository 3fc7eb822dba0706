"""A cycle whose recovery was chosen among candidates, of which the first is no recovery at all."""

from __future__ import annotations

import re

import pytest

from dashboard import report
from dashboard.page_context import PageContext
from dashboard.stage_progress import with_those_below
from db.reads import queries
from db.writes.tracker import Tracker
from pipelines.cli.cycle_text import cycle_text
from tests.support import databases, views

PASSES = {"clean": (True, True, False), "midtrained": (True, False, True)}


def unrecovered(tracker: Tracker, *, accepted: bool) -> int:
    """A cycle whose midtrained model is the recovered one too, once it is accepted."""
    run = tracker.start_run("cycle")
    number = tracker.record_cycle(run.id)
    for stage, passed in PASSES.items():
        tracker.record_checkpoint(stage, path=f"/c/{stage}", kind="full", sha256=stage * 8)
        asked = tracker.start_run("eval", parent=run.id, key=f"eval:{stage}")
        kinds = {"english_capital": {"passed": sum(passed), "n": 3}}
        found = databases.score("ifeval", sum(passed) / 3, *passed, n=3)
        databases.record_score(tracker, asked.id, stage, found | {"details": {"by_instruction": kinds}})
    tracker.record_cycle(run.id, clean_id="clean", midtrained_id="midtrained")
    if accepted:
        tracker.record_cycle(run.id, recovered_id="midtrained", status="accepted")
    return number


def test_a_model_that_needed_no_recovery_is_shown_as_the_recovered_one(context: PageContext) -> None:
    number = unrecovered(context.tracker, accepted=True)
    stages = [row["stage"] for row in queries.stage_scores(context.db, number)]
    assert stages == ["clean", "midtrained", "recovered"]
    lost = views.look(context, f"/samples?n={number}&flip=lost").text
    assert "prompt 1" in lost and "prompt 0" not in lost and "prompt 2" not in lost
    row = views.look(context, f"/behaviour?n={number}").text.split("english_capital")[1]
    assert re.findall(r"(\d+) %", row)[:3] == ["67", "367", "367"]  # 67 % of 3 prompts, three times
    assert f"recovered {number}" in views.look(context, f"/families?n={number}").text


@pytest.mark.parametrize("query", ["flip=lost", "failing=recovered"])
def test_samples_of_a_model_that_is_not_measured_are_not_shown_as_all(
    context: PageContext, query: str
) -> None:
    number = unrecovered(context.tracker, accepted=False)
    page = views.look(context, f"/samples?n={number}&{query}")
    assert "Not measured: recovered." in page.text and not page.all("section", "sample")
    assert len(views.look(context, f"/samples?n={number}").all("section", "sample")) == 3


def test_the_choice_takes_the_place_of_distillation_and_its_runs_are_reported(context: PageContext) -> None:
    tracker = context.tracker
    number = unrecovered(tracker, accepted=True)
    chosen = tracker.start_run("choose", parent=queries.cycle(context.db, number)["run"], key="choose")
    for key in ("seqkd", "distill"):
        work = tracker.start_run("distill", parent=chosen.id, key=key)
        for step in range(1, 9):
            databases.record_metrics(tracker, work.id, step, {"loss": 1 / step})
        with tracker.live(work.id) as live:
            live.traces(1, [views.trace("opd" if key == "distill" else "sft", 0)])
        tracker.finish_run(work.id, {"checkpoint": key, "stopped": f"after 8 steps {key} hardly gains"})
    tracker.finish_run(chosen.id, {"checkpoint": "distill", "chosen": "distill"})
    stages = views.look(context, f"/cycle?n={number}").text.split("Stage by stage")[1].split("Documents")[0]
    assert re.findall(r"bring behaviour back(choose|distill)\W*(done|not yet)", stages) == [
        ("choose", "done")
    ]
    assert stages.count("choose") == 1
    written = views.Scan(report.report(context.db, number))
    text = written.text
    for words in ("distill: loss", "seqkd: loss", "token by token"):
        assert words in text, words
    assert "distill ended early: after 8 steps distill hardly gains." in text
    assert not written.all("span", "chip unsure")  # an alarm's sign
    assert "Divergence KL" in text  # the trace is the last candidate's, which was taken


def test_a_cycle_whose_recovery_was_chosen_says_which_questions_each_number_counts(
    context: PageContext,
) -> None:
    tracker = context.tracker
    number = unrecovered(tracker, accepted=True)
    tracker.record_verdicts(number, {"behaviour": {"outcome": "recovered"}})
    said = "the verdict's bounds only those that had no part in choosing the recovery"

    def shown() -> tuple[str, ...]:
        page, written = views.look(context, f"/cycle?n={number}"), report.report(context.db, number)
        return page.text, views.Scan(written).text, cycle_text(queries.cycle(context.db, number))

    assert not any(said in text for text in shown())
    chosen = tracker.start_run("choose", parent=queries.cycle(context.db, number)["run"], key="choose")
    tracker.finish_run(chosen.id, {"checkpoint": "midtrained", "tried": [{"name": "none"}]})
    assert all(text.count(said) == 1 for text in shown())


def test_a_choice_took_what_the_runs_below_it_took_and_shows_their_progress() -> None:
    """It waits alone: after hours of work it had taken 0 s."""
    own = {"cost": {"seconds": 0.0}, "progress": None, "status": "running"}
    done = {
        "status": "done",
        "cost": {"seconds": 60.0, "tokens_sampled": 5, "flops": 1},
        "progress": {"step": 9},
    }
    now = {"status": "running", "cost": None, "progress": {"step": 2, "steps": 4}}
    shown = with_those_below(own, [now, done])
    assert shown["cost"] == {"seconds": 60.0, "tokens_sampled": 5} and shown["progress"] == now["progress"]
    assert with_those_below(own, [])["progress"] is None
