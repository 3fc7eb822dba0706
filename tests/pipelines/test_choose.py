"""Cheapest first: the ladder stops where a cheaper way suffices, and ends in distillation where none does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from db.reads import overview, queries
from evals.scores import Item
from evals.statistics import non_inferiority
from pipelines import choose
from pipelines.config.jobs import DistillJob
from pipelines.distill import distill
from pipelines.job_from_options.cycle import cycle_job
from pipelines.machine.init_home import initialise
from pipelines.resume import resume
from pipelines.runs import launch, training_run
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError, RecoverError, Unstable
from recovery.training.alarms import WAY_ON
from tests.support import tiny
from tests.support.present import present
from tests.support.small_cycles import PROMPTS, keep_probes, lines, settle, tried, turned

pytestmark = pytest.mark.new_home


def test_nothing_is_done_where_nothing_was_lost(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(ws, margin=0.4, learning_rate=1e-12)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    found = tried(ws, docs, recover_with="auto")
    assert found["chosen"] == "none"
    assert "  choose       without recovery: passes on the selection half" in said
    assert [one["passed"] for one in found["tried"]] == [True]
    assert found["cycle"]["checkpoints"]["recovered"] == found["cycle"]["checkpoints"]["midtrained"]
    axis = found["cycle"]["verdict"]["axes"]["behaviour"]
    assert 0 < axis["n"] < PROMPTS  # the confirmation half alone decides
    assert found["cycle"]["status"] == "accepted"
    assert queries.runs(ws.tracker.db, kind="distill") == []


def test_an_axis_that_nothing_measures_rejects_the_cycle_but_has_no_part_in_the_choice(
    ws: Workspace, docs: Path
) -> None:
    settle(ws, margin=0.4, learning_rate=1e-12)
    keep_probes(docs, "retention")
    found = tried(ws, docs, recover_with="auto")
    assert found["chosen"] == "none"
    assert [one["passed"] for one in found["tried"]] == [True]
    assert found["cycle"]["status"] == "rejected"
    assert found["cycle"]["verdict"]["knowledge"] == "not measured"


@pytest.mark.slow
def test_where_nothing_cheaper_is_shown_to_do_it_distillation_is_tried_last(
    ws: Workspace, docs: Path
) -> None:
    """A margin that so few prompts cannot show: no candidate passes, all are recorded."""
    settle(ws, margin=0.001, learning_rate=1e-4)
    found = tried(ws, docs, recover_with="auto")
    assert [one["name"] for one in found["tried"]] == [
        "none",
        "embeddings",
        "merge:0.3",
        "merge:0.5",
        "merge:0.7",
        "seqkd",
        "distill",
    ]
    assert not any(one["passed"] for one in found["tried"])
    assert found["chosen"] == "distill"
    assert found["cycle"]["status"] == "rejected"
    axis = found["cycle"]["verdict"]["axes"]["behaviour"]
    gained, lost, n = axis["gained"], axis["lost"], axis["n"]
    same = [False] * (n - gained - lost)
    now, before = [True] * gained + [False] * lost + same, [False] * gained + [True] * lost + same
    needed = present(non_inferiority(now, before, margin=0.001).needed_n)
    assert axis["needed_n"] == ceil(needed * PROMPTS / n) > needed  # half of the prompts decide
    assert {"merge", "distill"} <= set(found["cycle"]["cost_by_stage"])
    methods = [run["result"]["method"] for run in queries.runs(ws.tracker.db, kind="distill")]
    assert sorted(methods) == ["opd", "seqkd"]
    assert {row["cycle"] for row in overview.recoveries(ws.tracker.db)} == {1}
    assert {row["cycle"] for row in overview.training_runs(ws.tracker.db)} == {1}


@pytest.mark.slow
@pytest.mark.parametrize(("configured", "trained"), [("opd", ["seqkd", "distill"]), ("seqkd", ["seqkd"])])
def test_a_candidate_that_cannot_be_made_is_left_out_and_none_is_made_twice(
    configured: str, trained: list[str], ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(ws, margin=0.001, learning_rate=1e-4)
    path = ws.home / "recover.yaml"
    path.write_text(re.sub(r"method: opd\b", f"method: {configured}", path.read_text()))
    vars(ws).pop("config", None)

    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("merge: this adapter can't be merged")

    monkeypatch.setattr("recovery.models.merging.merge_weights", refuse)
    found = tried(ws, docs, recover_with="auto")
    assert [one["name"] for one in found["tried"]] == ["none", *trained]
    assert len(queries.runs(ws.tracker.db, kind="distill")) == len(trained)
    assert found["left_out"].keys() == {"embeddings", "merge:0.3", "merge:0.5", "merge:0.7"}
    assert "can't be merged" in found["left_out"]["embeddings"]


@pytest.mark.slow
def test_mixtures_that_surely_fail_are_named_at_the_start_and_never_tried(
    docs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    with Workspace.open(tmp_path / "home") as ws:
        model = tiny.unprefixed(tiny.save(tmp_path / "model"))
        initialise(ws, model=str(model), preset="microworld")
        settle(ws, margin=0.001, learning_rate=1e-4)
        monkeypatch.setattr(ws.progress, "say", said.append)
        monkeypatch.setattr("pipelines.choose.merge", None)
        with monkeypatch.context() as patched:
            patched.setattr("pipelines.choose._judged", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tried(ws, docs, recover_with="auto")
        resume(ws)
        (run,) = queries.runs(ws.tracker.db, kind="choose")
    assert [one["name"] for one in run["result"]["tried"]] == ["none", "seqkd", "distill"]
    assert run["result"]["left_out"].keys() == {"embeddings", "merge:0.3", "merge:0.5", "merge:0.7"}
    (named,) = (place for place, line in enumerate(said) if "no mixture with the clean weights" in line)
    assert "saved with model.embed_tokens.weight" in said[named]
    assert named < next(place for place, line in enumerate(said) if line.startswith("  clean "))


@pytest.mark.slow
def test_an_adapter_s_embeddings_are_not_put_back(ws: Workspace, docs: Path) -> None:
    settle(ws, margin=0.001, learning_rate=1e-4)
    found = tried(ws, docs, recover_with="auto", changes={"midtrain.lora": {"rank": 2}})
    assert list(found["left_out"]) == ["embeddings"]
    assert "embeddings" not in {one["name"] for one in found["tried"]}


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("auto", RecoverError("the disk is full: free some space and run it again")),  # whichever it is
        ("merge", InputError("merge: this adapter can't be merged")),  # the last candidate too
    ],
)
def test_an_error_of_the_disk_or_of_the_last_candidate_ends_the_choice(
    how: str, error: RecoverError, ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(ws, margin=0.001, learning_rate=1e-4)

    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("recovery.models.merging.merge_weights", refuse)
    with pytest.raises(type(error), match=re.escape(str(error))):
        tried(ws, docs, recover_with=how)
    assert queries.runs(ws.tracker.db, kind="distill") == []


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "ends_with"), [(1, KeyboardInterrupt), (2, RecoverError)])
def test_a_resumed_choice_does_without_what_was_left_out_and_keeps_its_cost_but_no_state(
    processes: int,
    ends_with: type[BaseException],
    ws: Workspace,
    docs: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An alarm ends a candidate's training and the other processes; one alone goes on to the next."""
    settle(ws, margin=0.001, learning_rate=1e-4)
    monkeypatch.setattr("pipelines.choose.WEIGHTS", ())
    monkeypatch.setattr(launch, "launched", lambda: processes)
    monkeypatch.setattr(launch, "_waiting", True)

    def alarm(*_: Any) -> None:
        raise Unstable(f"an alarm{WAY_ON}")

    def alarmed(ws: Workspace, job: DistillJob, *, parent: str, key: str) -> dict[str, Any]:
        if key == "distill" and queries.run(ws.tracker.db, parent)["attempts"] == 1:
            raise KeyboardInterrupt
        with monkeypatch.context() as patched:
            if key == "seqkd":
                patched.setattr(training_run, "any_of", lambda *_: alarm)
            return distill(ws, job, parent=parent, key=key)

    monkeypatch.setattr("pipelines.choose.distill", alarmed)
    with pytest.raises(ends_with):
        tried(ws, docs, recover_with="auto")
    (choice,) = queries.runs(ws.tracker.db, kind="choose")
    failed = present(queries.run_of_key(ws.tracker.db, "seqkd", parent=choice["id"]))
    state = ws.run_directory(failed["id"]) / "state"
    assert choice["error"].endswith("with the next candidate" if processes > 1 else "interrupted")
    assert failed["status"] == "failed" and failed["cost"]["tokens_trained"] > 0 and state.is_dir()

    monkeypatch.setattr(launch, "_waiting", True)  # as in a new process
    resume(ws)
    found = queries.run(ws.tracker.db, choice["id"])["result"]
    assert found["left_out"] == {"seqkd": "an alarm"} and found["chosen"] == "distill"
    assert queries.run(ws.tracker.db, failed["id"]) == failed
    assert not state.exists()


def drown(ws: Workspace, docs: Path, *, frozen: bool) -> None:
    """Documents of commas, at a rate at which every answer becomes commas."""
    (docs / "ada.md").write_text(", " * 400)
    lines(docs.parent / "prompts.jsonl", [{"prompt": f"Say {number} words."} for number in range(12)])
    settle(ws, margin=0.4, learning_rate=0.1)
    path = ws.home / "recover.yaml"
    text = path.read_text().replace("steps: 1\n", "steps: 9\n")  # the alarms look from the tenth on
    text = text.replace("midtrain:\n", f"midtrain:\n  freeze_embeddings: {str(frozen).lower()}\n")
    text = re.sub(r"merge: [\d.]+", "merge: 0.3", text).replace("merge_of: embeddings", "merge_of: all")
    path.write_text(text.replace("prompts_per_step: 2", "prompts_per_step: 12"))
    vars(ws).pop("config", None)


def test_the_clean_embeddings_suffice_where_commas_pushed_all_else_down(ws: Workspace, docs: Path) -> None:
    drown(ws, docs, frozen=False)
    found = tried(ws, docs, recover_with="auto")
    assert [(one["name"], one["passed"]) for one in found["tried"]] == [("none", False), ("embeddings", True)]
    assert (found["chosen"], found["cycle"]["status"]) == ("embeddings", "accepted")
    assert queries.runs(ws.tracker.db, kind="distill") == []
    rows = queries.stage_scores(ws.tracker.db, found["cycle"]["cycle"])
    assert {(row["stage"], row["n"]) for row in rows} == {
        (stage, PROMPTS) for stage in ("clean", "midtrained", "recovered")
    }  # a stage's score is of all questions, not of the half that judged it as a candidate


@pytest.mark.slow
def test_self_answered_words_suffice_where_no_mixture_of_weights_does(ws: Workspace, docs: Path) -> None:
    """Layers that drown the clean ones in any mixture; a few steps on the clean model's words bring others
    back, and distillation of the student's own answers is never begun."""
    drown(ws, docs, frozen=True)
    found = tried(ws, docs, recover_with="auto")
    assert [(one["name"], one["passed"]) for one in found["tried"]] == [
        ("none", False),
        ("embeddings", False),
        ("merge:0.3", False),
        ("merge:0.5", False),
        ("merge:0.7", False),
        ("seqkd", True),
    ]
    assert (found["chosen"], found["cycle"]["status"]) == ("seqkd", "accepted")
    (run,) = queries.runs(ws.tracker.db, kind="distill")
    assert run["result"]["method"] == "seqkd"
    assert found["cycle"]["checkpoints"]["recovered"] == run["result"]["checkpoint"]


@pytest.mark.slow
def test_a_way_that_forgets_earlier_documents_is_left_out(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three models that are asked, the midtrained one knows all, the first share nothing, the next all."""
    settle(ws, margin=0.4, learning_rate=1e-12)
    assert turned(ws, docs)["status"] == "accepted"
    knows = iter([True, False, True])
    answered = choose._about_earlier

    def made_up(ws: Workspace, scores: Mapping[str, int]) -> list[Item]:
        passed = next(knows)
        return [replace(item, passed=passed) for item in answered(ws, scores)]

    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    monkeypatch.setattr(choose, "_about_earlier", made_up)
    found = tried(ws, docs, recover_with="merge")
    assert [(one["name"], one["passed"], one["forgets"]) for one in found["tried"]] == [
        ("merge:0.3", False, True),
        ("merge:0.5", True, False),
    ]
    assert found["chosen"] == "merge:0.5"
    assert (
        "  choose       merge:0.3: does not pass: it lost more of earlier documents than the margin" in said
    )
    asked = {run["key"]: run["result"]["scores"] for run in queries.runs(ws.tracker.db, kind="eval")}
    assert set(asked["earlier"]) == {"knowledge:1"}
    assert "knowledge:1" in asked["asked:merge:0.3"] and "knowledge:1" not in asked["eval:midtrained"]


def test_one_way_can_be_forced(ws: Workspace, docs: Path) -> None:
    settle(ws, margin=0.4, learning_rate=1e-12)
    found = tried(ws, docs, recover_with="merge")
    assert (found["chosen"], len(found["tried"])) == ("merge:0.3", 1)
    assert cycle_job(ws, docs, recover_with="seqkd").settings.distill.method == "seqkd"
    with pytest.raises(InputError, match="'nope': --recover-with takes auto, merge or a row"):
        cycle_job(ws, docs, recover_with="nope")
    with pytest.raises(InputError, match="give one of them"):
        cycle_job(ws, docs, recover_with="seqkd", changes={"distill.method": "opd"})
