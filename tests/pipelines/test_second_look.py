"""A cycle with too few of IFEval's prompts asks further ones, once, of the clean and the recovered model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.ifeval import FURTHER, IFEVAL
from evals.looks import OWN_ALPHA, TWO
from evals.statistics import items_to_pass
from evals.verdict import ALPHA
from pipelines.config.jobs import CycleJob
from pipelines.cycle import cycle
from pipelines.evaluate import evaluate
from pipelines.evaluation import model_answers
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job
from pipelines.machine.init_home import initialise
from pipelines.machine.product_speed import Speed
from pipelines.prompts.leaks import evaluation_prompts
from pipelines.resume import resume
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.small_cycles import ASKED, PLAIN, keep_probes, lines, make_home, settle, turned

OWN, MORE = 10, 30  # of these numbers without a flip, only both together show a margin of 20 points


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with make_home(tmp_path) as workspace:
        settle(workspace, margin=0.2, learning_rate=1e-12)
        yield workspace


@pytest.fixture
def further(docs: Path) -> Path:
    """A file of further prompts; IFEval's beside the documents are few."""
    ask(docs.parent / "ifeval.jsonl", "Line", OWN)
    return ask(docs.parent / "more.jsonl", "Sentence", MORE)


def ask(path: Path, words: str, count: int) -> Path:
    return lines(path, [{"key": n, "prompt": f"{words} {n}.", **ASKED} for n in range(count)])


def test_what_ifeval_leaves_open_is_decided_on_further_prompts(
    ws: Workspace, docs: Path, further: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    found = turned(ws, docs, {"eval.further_prompts": str(further)})
    assert found["status"] == "accepted" and asked.count(FURTHER) == 2
    axis = found["verdict"]["axes"]["behaviour"]
    assert (axis["outcome"], axis["n"], axis["details"]["look"]) == ("recovered", OWN + MORE, 2)
    assert {name: part["n"] for name, part in axis["details"]["parts"].items()} == {
        IFEVAL: OWN,
        FURTHER: MORE,
    }
    scores = found["scores"]
    assert (scores[IFEVAL]["n"], scores[FURTHER]["n"]) == (OWN, MORE)  # a suite of its own
    evaluations = {run["key"] for run in queries.runs(ws.tracker.db, kind="eval")}
    assert {key for key in evaluations if key.startswith("further")} == {"further:clean", "further:recovered"}
    (open_still,) = [line for line in said if line.endswith("further prompts are asked")]
    assert "behaviour: underpowered" in open_still and "first of two looks" in open_still


@pytest.mark.slow
def test_the_clean_model_is_asked_further_prompts_once_in_all_cycles(
    ws: Workspace, docs: Path, further: Path, asked: list[str]
) -> None:
    for _ in range(2):
        turned(ws, docs, {"eval.further_prompts": str(further)})
    assert asked.count(FURTHER) == 3


@pytest.mark.parametrize("more", [0, MORE])
def test_further_prompts_are_asked_only_where_they_can_decide(
    ws: Workspace, docs: Path, further: Path, asked: list[str], more: int
) -> None:
    """Not where none are wanted, nor where another axis is in the way: no question is about the documents."""
    keep_probes(docs, "retention")
    wanted = {"eval.further_prompts": str(further) if more else 0}
    found = turned(ws, docs, wanted, **({} if more else {"suites": IFEVAL}))
    assert found["status"] == "rejected" and FURTHER not in asked
    assert ("looks" in found["verdict"]["axes"]["behaviour"]["details"]) == bool(more)


def test_a_first_look_that_decides_asks_nothing_more(
    ws: Workspace, docs: Path, further: Path, asked: list[str]
) -> None:
    ask(docs.parent / "ifeval.jsonl", "Line", 36)
    found = turned(ws, docs, {"eval.further_prompts": str(further)})
    assert found["status"] == "accepted" and FURTHER not in asked
    details = found["verdict"]["axes"]["behaviour"]["details"]
    assert (details["look"], details["alpha"]) == (1, 0.025)


@pytest.mark.slow
def test_a_second_look_that_was_interrupted_goes_on_with_the_model_that_is_left(
    ws: Workspace, docs: Path, further: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": str(further)})
    with monkeypatch.context() as patched:
        patched.setattr(ws.tracker, "record_verdicts", lambda *_: pytest.fail("judged"))
        write = model_answers.ModelAnswers._write

        def interrupt(answers: model_answers.ModelAnswers, *args: Any, **kwargs: Any) -> Any:
            if answers.suite == FURTHER and answers.job.label == "recovered":
                raise KeyboardInterrupt
            return write(answers, *args, **kwargs)

        patched.setattr(model_answers.ModelAnswers, "_write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, job, key=ws.new_key())
    before = len(asked)
    assert resume(ws)["status"] == "accepted"
    assert asked[before:] == [FURTHER]


def test_further_prompts_that_are_gone_are_missed_before_a_resumed_cycle_trains(
    ws: Workspace, docs: Path, further: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": str(further)})
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.midtrain", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, job, key=ws.new_key())
        further.unlink()
        with pytest.raises(InputError, match=r"more.jsonl is not a file: restore it"):
            resume(ws)


def test_a_cycle_goes_on_in_a_home_that_was_moved_with_the_prompts_that_it_holds(
    ws: Workspace, docs: Path, further: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are named by where they lay when the cycle began."""
    job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": MORE})
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.midtrain", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, job, key=ws.new_key())
    ws.tracker.close()
    home = ws.home.rename(ws.home.with_name("moved"))
    with Workspace.open(home, create=False) as moved:
        assert resume(moved)["cycle"] == 1
    assert asked.count(FURTHER) == 2


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("own", "more", "few"),
    [
        (4, MORE, (4, OWN_ALPHA)),  # too few for a second look
        (OWN, 2, (OWN + 2, ALPHA / TWO)),  # one may follow, and has too few
        (OWN, MORE, None),
    ],
)
def test_too_few_prompts_for_two_looks_are_said_before_the_first_stage(
    ws: Workspace,
    docs: Path,
    further: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: int,
    more: int,
    few: tuple[int, float] | None,
) -> None:
    ask(docs.parent / "ifeval.jsonl", "Line", own)
    ask(further, "Sentence", more)
    job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": str(further)})
    said = [line for line in said_at_first(ws, job, monkeypatch) if "behaviour: with " in line]
    assert len(said) == bool(few)
    if few:
        count, alpha = few
        assert f" with {count} independent questions" in said[0]
        assert f"; {items_to_pass(0.2, alpha)} questions give" in said[0]
        assert said[0].endswith(": write more prompts (`recover prompts ifeval`) or raise eval.samples")


def test_the_time_of_a_second_look_is_said_before_the_first_stage(
    ws: Workspace, docs: Path, further: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = "pipelines.machine.product_speed.measured"
    monkeypatch.setattr(measured, lambda hidden, number_bytes: Speed(1e4, 1e12))
    for wanted in (str(further), 0):
        job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": wanted})
        (line,) = [one for one in said_at_first(ws, job, monkeypatch) if one.startswith("  time ")]
        assert line.endswith("more if behaviour is underpowered on IFEval's prompts") == bool(wanted)


def said_at_first(ws: Workspace, job: CycleJob, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a cycle says before its first stage."""
    said: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(ws.progress, "say", said.append)
        patched.setattr("pipelines.cycle._evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, job, key=ws.new_key())
    return said


def test_any_model_is_asked_further_prompts_by_their_suite_or_their_file(
    ws: Workspace, docs: Path, further: Path
) -> None:
    """A file of them leaves their own suite; a number of them, generated, is no suite of an evaluation."""
    changes = {"eval.further_prompts": str(further), "eval.limit": 3}
    job = eval_job(ws, "base", changes=changes)
    assert job.suites == (FURTHER,)
    assert evaluate(ws, job, key="asked")["scores"][FURTHER]["n"] == 3
    own = {"eval.ifeval": str(docs.parent / "ifeval.jsonl")}
    assert eval_job(ws, "base", changes=own).suites == (IFEVAL,)
    assert eval_job(ws, "base", changes=own | {"eval.further_prompts": 0}).suites == (IFEVAL,)
    with pytest.raises(InputError, match=r"eval\.further_prompts is 0"):
        evaluate(ws, eval_job(ws, "base", FURTHER), key="none")


def test_the_tiny_model_is_refused_generated_prompts_that_were_typed(tmp_path: Path, docs: Path) -> None:
    """They were dropped by a cycle; an evaluation answered that their number was 0."""
    changes = {"eval.further_prompts": 500}
    with Workspace.open(tmp_path / "home") as home:
        initialise(home)
        for build in (
            lambda: eval_job(home, "base", changes=changes),
            lambda: cycle_job(home, docs, changes=changes),
        ):
            with pytest.raises(InputError, match=r"^--further 500: the tiny model's .* lacks .* give a FILE"):
                build()


@pytest.mark.slow
def test_where_questions_choose_the_recovery_further_prompts_all_decide(
    ws: Workspace, docs: Path, further: Path, asked: list[str]
) -> None:
    own = ask(docs.parent / "ifeval.jsonl", "Line", 2 * OWN)
    again = [row | {"key": f"again{row['key']}"} for row in map(json.loads, own.read_text().splitlines())]
    lines(further, [*map(json.loads, further.read_text().splitlines()), *again])
    found = cycle(
        ws,
        cycle_job(ws, docs, recover_with="merge", changes={"eval.further_prompts": str(further)}),
        key=ws.new_key(),
    )
    row = queries.cycle(ws.tracker.db, found["cycle"])
    parts = row["verdict"]["axes"]["behaviour"]["details"]["parts"]
    assert parts[FURTHER]["n"] == MORE and 0 < parts[IFEVAL]["n"] < 2 * OWN  # of `again`, none
    assert asked.count(FURTHER) == 2  # no candidate was asked


def test_further_prompts_are_generated_once_and_kept_out_of_training(
    ws: Workspace, docs: Path, further: Path
) -> None:
    job = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": 12})
    path = Path(str(job.settings.eval.further_prompts))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (path.parent, len(rows)) == (ws.home.absolute() / "prompts", 12)
    assert "further prompts" in job.sources()
    written = path.stat().st_mtime_ns
    again = cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": "12"})  # as typed
    assert again.settings.eval.further_prompts == str(path) and path.stat().st_mtime_ns == written
    left_out = evaluation_prompts(job.settings.eval, {}, pytest.fail)
    assert {row["prompt"] for row in rows} <= set(left_out)


def test_prompts_of_the_first_look_are_no_second_one(ws: Workspace, docs: Path, further: Path) -> None:
    ask(further, "Line", OWN - 1)
    with pytest.raises(InputError, match=r"more.jsonl: all of its prompts are among IFEval's"):
        cycle_job(ws, docs, changes={"eval.further_prompts": str(further)})
    with pytest.raises(InputError, match=r"is not a file: restore it, or let eval\.further_prompts"):
        cycle_job(ws, docs, changes={"eval.further_prompts": str(further.parent / "none.jsonl")})


def test_how_many_further_prompts_are_none_is_said(
    ws: Workspace, docs: Path, further: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(further, "Line", OWN + 2)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    cycle_job(ws, docs, changes=PLAIN | {"eval.further_prompts": str(further)})
    assert f"  further      10 of 12 prompts are among IFEval's: {further}" in said
