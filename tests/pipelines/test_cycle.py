"""What a cycle is accepted by: every axis that was asked for, measured and passed."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path
from typing import Any

import pytest

from db.errors import NotFound
from db.reads import queries
from evals.probes import load_probes
from pipelines.cli.cycle_text import cycle_text
from pipelines.config.jobs import EvalJob
from pipelines.cycle import cycle
from pipelines.evaluate import evaluate
from pipelines.job_from_options.cycle import cycle_job
from pipelines.resume import resume
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace
from pipelines.writing import gap_questions
from pipelines.writing.commands import ProbeOptions, make_probes
from recovery.batches.rollouts import Dialogue
from recovery.errors import InputError
from recovery.models.adapters import adapter_rank
from recovery.models.chat_model import ChatModel
from tests.support.small_cycles import lines

AUTO = {"distill.merge": 0.0, "distill.rehearsal": 0.0}


def turned(
    ws: Workspace, docs: Path, changes: dict[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    plain = {"distill.merge": 0.0, "distill.rehearsal": 0.0}
    job = cycle_job(ws, docs, changes=plain | (changes or {}), **options)
    return queries.cycle(ws.tracker.db, cycle(ws, job, key=ws.new_key())["cycle"])


def keep_probes(docs: Path, suite: str) -> None:
    path = docs.parent / "probes.jsonl"
    lines(path, [probe.row() for probe in load_probes(path, suite)])


def test_without_probes_no_cycle_is_accepted_but_by_request(ws: Workspace, docs: Path) -> None:
    (docs.parent / "probes.jsonl").unlink()
    row = turned(ws, docs)
    assert row["status"] == "rejected"
    assert row["verdict"]["behaviour"] == "recovered"
    assert (row["verdict"]["knowledge"], row["verdict"]["retention"]) == ("not measured", "kept")
    asked = turned(ws, docs, suites="ifeval")
    assert (asked["status"], asked["verdict"]["knowledge"]) == ("accepted", "not measured")


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


def test_next_months_questions_know_what_the_accepted_cycle_asked(ws: Workspace, docs: Path) -> None:
    keep_probes(docs, "knowledge")
    assert turned(ws, docs, suites="ifeval,knowledge")["status"] == "accepted"
    asked = [{"question": f"Where is {n}?", "answer": answer} for n, answer in ((1, "Rome"), (2, "Oslo"))]
    lines(docs / "qa.jsonl", [*asked, {"question": "Who is new?", "answer": "Bo"}])
    out = docs.parent / "next.jsonl"
    found = make_probes(ws, docs, out, ProbeOptions())
    assert found["by_fact_status"] == {"new": 1, "changed": 1, "stable": 1}
    assert "on 2 items" in found["power"]  # the changed fact is judged apart
    assert [(probe.suite, probe.was) for probe in load_probes(out, "updates")] == [("updates", ("Oslo",))]


def test_a_fact_that_changed_later_is_no_question_about_the_earlier_cycle(ws: Workspace, docs: Path) -> None:
    first = docs.parent / "probes.jsonl"
    moved = [{"id": "moved", "prompt": "Where is 3?", "answer": "Rome", "was": "Oslo"}]
    second = lines(docs.parent / "second.jsonl", moved)
    settings = ws.config.eval.model_copy(update={"probes": str(second)})
    job = EvalJob(checkpoint=ws.clean().id, suites=("updates",), settings=settings, earlier={1: str(first)})
    found = evaluate(ws, job, key="later")["scores"]
    asked = sum(probe.counts for probe in load_probes(first, "knowledge"))
    assert (found["updates"]["n"], found["knowledge:1"]["n"]) == (1, asked - 1)


ASKED = {"id": "asked", "prompt": "Where is Ada?", "answer": "Oslo"}


@pytest.mark.parametrize(
    "row",
    [
        ASKED,
        ASKED | {"was": "Bonn"},
        ASKED | {"suite": "retention"},
        ASKED | {"kind": "cloze"},
        ASKED | {"kind": "reverse"},
    ],
    ids=["superseded", "updates", "retention", "cloze", "apart"],
)
def test_an_earlier_cycle_of_which_no_question_is_left_is_left_out(
    ws: Workspace, docs: Path, row: dict[str, Any]
) -> None:
    none_left = lines(docs.parent / "first.jsonl", [row])
    moved = lines(docs.parent / "third.jsonl", [{**ASKED, "id": "moved", "answer": "Rome", "was": "Oslo"}])
    settings = ws.config.eval.model_copy(update={"probes": str(moved), "earlier_questions": 20})
    earlier = {1: str(none_left), 2: str(docs.parent / "probes.jsonl")}
    job = EvalJob(checkpoint=ws.clean().id, suites=(), settings=settings, earlier=earlier)
    found = evaluate(ws, job, key="third")["scores"]
    assert set(found) == {"knowledge:2"}
    assert found["knowledge:2"]["n"] == 20  # none is set aside for the cycle that is left out


def test_a_cycle_after_one_that_asked_nothing_about_its_documents_is_finished(
    ws: Workspace, docs: Path
) -> None:
    general = docs.parent / "general.jsonl"
    lines(general, [probe.row() for probe in load_probes(docs.parent / "probes.jsonl", "retention")])
    assert turned(ws, docs, {"eval.probes": str(general)}, suites="ifeval")["status"] == "accepted"
    second = turned(ws, docs)
    assert (second["status"], second["knowledge_by_cycle"]) == ("accepted", [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"suites": "ifeval,mmlu"}, "a cycle is judged by ifeval, knowledge, retention"),
        ({"suites": "knowledge,retention"}, "no cycle is accepted without behaviour.*--suite ifeval,know"),
        ({"suites": "json"}, "no cycle is accepted without behaviour"),
        ({"changes": {"distill.method": "sft"}}, "no row has a 'response'"),
        (
            {"changes": AUTO | {"distill.prompts": "typo.jsonl"}, "recover_with": "auto"},
            "typo.jsonl: prompts",
        ),
        ({"changes": AUTO | {"distill.dials": {"sgnal": "jsd"}}, "recover_with": "auto"}, "sgnal"),
        ({"changes": {"distill.method": "opcd", "distill.context": "gone.txt"}}, "there is no such file"),
        ({"changes": {"distill.stop": {}}}, "no row has an 'instruction_id_list'"),
        ({"changes": {"distill.method": "rl"}}, r"needs a reward: set distill\.reward"),
        ({"recover_with": "opd-reward"}, "needs a reward"),
        ({"changes": {"distill.method": "opcd"}}, "context system: nothing to show"),
        ({"changes": {"distill.prompts": "hub:a/b:train:text"}}, "the data set cannot be loaded"),
        ({"changes": {"midtrain.dials": {"signal": "jsd"}}}, "belongs to midtrain.method: passage"),
        (
            {"changes": {"midtrain.method": "passage", "midtrain.dials": {"teacher": "self"}}},
            "the clean model teaches and sees the passage",
        ),
        ({"changes": {"model.quantize": "nf4"}}, r"midtrain\.lora: weights in 4 bits"),
        ({"changes": {"eval.ifeval": "microworld"}}, "IFEval prompts of its own"),
        ({"changes": {"eval.probes": "gone.jsonl"}}, "gone.jsonl: cannot be read"),
    ],
)
def test_what_a_later_stage_needs_is_refused_before_the_first(
    ws: Workspace, docs: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, **options)
    assert [run for run in queries.runs(ws.tracker.db) if run["kind"] == "cycle"] == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill.stop": {"probe": "gone.jsonl"}}, "gone.jsonl"),
        ({"distill.stop": {}}, "no row has an 'instruction_id_list'"),
        ({"distill.pairs": "gone.jsonl", "distill.method": "sdft"}, "gone.jsonl"),
        ({"distill.method": "rl"}, "needs a reward"),
        ({"distill.method": "opcd"}, "context system: nothing to show"),
    ],
)
def test_inputs_beside_prompts_of_the_hub_are_read_before_the_first_stage(
    ws: Workspace, docs: Path, changes: dict[str, Any], said: str
) -> None:
    kept = ws.home / "prompts" / "a--b@0123-train-text-seed0.jsonl"
    kept.parent.mkdir()
    (docs.parent / "prompts.jsonl").rename(kept)
    hub = {"distill.prompts": "hub:a/b:train:text"}
    cycle_job(ws, docs, changes=hub)
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, changes=hub | changes)


def test_prompts_of_which_the_evaluation_asks_every_one_are_refused_before_the_first_stage(
    ws: Workspace, docs: Path
) -> None:
    asked = {"distill.prompts": str(docs.parent / "ifeval.jsonl")}
    with pytest.raises(InputError, match="every one of the prompts is an evaluation prompt"):
        cycle_job(ws, docs, changes=asked)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"distill.stop": {"probe": "gone.jsonl"}}, "gone.jsonl"),
        ({"distill.pairs": "gone.jsonl", "distill.method": "sdft"}, "gone.jsonl"),
        ({"distill.method": "rl", "distill.reward": "gone.py:judge"}, "gone"),
        ({"distill.method": "opcd", "distill.context": "gone.txt"}, "there is no such file"),
        ({"distill.method": "opd", "distill.ahead": 1}, "ahead"),
        ({"midtrain.dials": {"signal": "jsd"}}, "belongs to midtrain.method: passage"),
    ],
)
def test_what_needs_no_prompts_is_refused_before_a_model_writes_them(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    def written(*_: Any) -> str:
        raise AssertionError("prompts were written")

    monkeypatch.setattr("pipelines.job_from_options.cycle.recovery_prompts", written)
    with pytest.raises(InputError, match=said):
        cycle_job(ws, docs, changes=changes)


def test_mixtures_alone_need_no_input_of_a_distillation(ws: Workspace, docs: Path) -> None:
    unread = {"distill.prompts": "typo.jsonl", "distill.routes": {"code": "gone"}}
    assert cycle_job(ws, docs, recover_with="merge", changes=unread).recover_with == "merge"


def test_a_cycle_records_the_checkpoints_that_its_routes_named(ws: Workspace, docs: Path) -> None:
    job = cycle_job(ws, docs, recover_with="opd-multi", changes={"distill.routes": {"code": "base"}})
    assert job.settings.distill.routes == {"code": ws.clean().id}
    gone = {"distill.routes": {"code": "gone"}}
    for chosen in ("opd-multi", "auto"):
        with pytest.raises(NotFound, match="'gone' is not recorded"):
            cycle_job(ws, docs, recover_with=chosen, changes=gone)


def test_the_same_command_again_names_the_cycle_that_was_interrupted(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turned(ws, docs)
    [interrupted] = queries.unfinished_runs(ws.tracker.db)
    with (ws.run_directory(interrupted["id"]) / "lock").open("w") as lock, monkeypatch.context() as patched:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if another process worked on it now
        with pytest.raises(InputError, match="another process works on what is unfinished"):
            resume(ws)
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            turned(ws, docs)
    second = queries.unfinished_runs(ws.tracker.db)[0]
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.cycle.evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cycle(ws, cycle_job(ws, docs), key=second["key"])
    assert said and not any("unfinished" in line for line in said)
    said.clear()
    turned(ws, docs)
    assert any(f"`recover resume {second['id']}` goes on with it" in line for line in said)
    assert cycle(ws, cycle_job(ws, docs), key=second["key"])["cycle"] == 2
    assert cycle(ws, cycle_job(ws, docs), key=interrupted["key"])["cycle"] == 1
    said.clear()
    turned(ws, docs)
    assert said and not any("unfinished" in line for line in said)


def test_a_cycle_that_breaks_is_recorded_as_failed(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an error that is none of this project's, such as a GPU out of memory."""

    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError("no memory left")

    job = cycle_job(ws, docs)
    monkeypatch.setattr("pipelines.cycle.midtrain", out_of_memory)
    with pytest.raises(MemoryError):
        cycle(ws, job, key="one")
    assert queries.cycle(ws.tracker.db, 1)["status"] == "failed"


def test_a_cycle_is_asked_its_own_questions_after_the_file_was_rewritten(ws: Workspace, docs: Path) -> None:
    keep_probes(docs, "knowledge")
    before = (docs.parent / "probes.jsonl").read_text()
    student = turned(ws, docs, suites="ifeval,knowledge")["checkpoints"]["recovered"]
    keep_probes(docs, "retention")
    (kept,) = earlier_probes(ws, student).values()
    assert Path(kept).read_text() == before
    Path(kept).unlink()
    assert earlier_probes(ws, student) == {}
    (docs.parent / "probes.jsonl").write_text(before)
    assert earlier_probes(ws, student) == {1: str(docs.parent / "probes.jsonl")}


def test_ranks_that_recovery_could_not_train_are_refused_before_the_cycle(ws: Workspace, docs: Path) -> None:
    ranks: dict[str, Any] = {"midtrain.lora": {"rank": 2}, "distill.lora": {"rank": 4}}
    with pytest.raises(InputError, match=r"distill\.lora: the adapter to train will be of rank 2"):
        cycle_job(ws, docs, changes=ranks)
    cycle_job(ws, docs, changes=ranks | {"distill.lora": {"rank": 2}})


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


def test_a_cycle_goes_on_without_documents_whose_run_was_removed(ws: Workspace, docs: Path) -> None:
    mix = {"new": 0.5, "earlier": 0.5, "questions": 0.0, "chat": 0.0}
    mixed = {"distill.merge": 0.0, "distill.rehearsal": 0.0, "midtrain.mix": mix}
    first = cycle(ws, cycle_job(ws, docs, suites="ifeval", changes=mixed), key="first")["cycle"]
    student = queries.cycle(ws.tracker.db, first)["checkpoints"]["recovered"]
    (midtrained,) = ws.midtraining_runs(student)
    shutil.rmtree(ws.run_directory(midtrained["id"]))
    job = cycle_job(ws, docs, student=student, suites="ifeval", changes=mixed)
    assert cycle(ws, job, key="second")["status"] == "accepted"


def test_later_cycles_are_taught_nothing_that_earlier_ones_held_out(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Midtraining and recovery train on questions about earlier documents too."""
    (docs / "ada.md").write_text(
        "Ada Bell lives in Oslo with nine cats. Bob Reed lives in Rome with two dogs."
    )
    where = {"kind": "direct", "prompt": "Ada Bell lives with nine cats in which town?", "answer": "Oslo"}
    lines(docs.parent / "probes.jsonl", [{"id": "ada", "heldout_fact": True, **where}])
    plain = {"distill.rehearsal": 0.3, "distill.rehearsal_questions": 0.5, "distill.max_new_tokens": 200}
    only = {"suites": "ifeval,knowledge"}
    ws.tracker.set_alias("current", turned(ws, docs, plain, **only)["checkpoints"]["recovered"])
    second = docs.parent / "second"
    second.mkdir()
    (second / "cy.md").write_text("Cy Moss lives in Bonn with six hens.")
    lines(docs.parent / "probes.jsonl", [{"id": "cy", **where, "answer": "Bonn"}])
    taught: list[str] = []
    dialogue = gap_questions.dialogue

    def seen(chat_model: ChatModel, row: dict[str, str]) -> Dialogue:
        taught.append(row["response"])
        return dialogue(chat_model, row)

    monkeypatch.setattr(gap_questions, "dialogue", seen)
    turned(ws, second, plain, **only)
    told = {
        name: sum(name in response for response in taught) for name in ("Ada Bell", "Bob Reed", "Cy Moss")
    }
    assert told["Bob Reed"] == told["Cy Moss"] == 2 and not told["Ada Bell"]  # once in each stage
