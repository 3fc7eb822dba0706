"""What a cycle knows of earlier ones: their questions, what they held out, and documents that are gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.probes import load_probes
from pipelines.config.jobs import EvalJob, LocateJob, RetrievalJob
from pipelines.cycle import cycle
from pipelines.distill import distill_alone
from pipelines.evaluate import evaluate
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.measure import eval_job, locate_job, retrieval_job
from pipelines.job_from_options.train import distill_job, midtrain_job
from pipelines.knowledge import replay
from pipelines.midtrain import midtrain
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.workspace import Workspace
from pipelines.unreachable_facts import lost
from pipelines.writing import gap_questions
from pipelines.writing.commands import ProbeOptions, make_probes
from recovery.batches.rollouts import Dialogue
from recovery.errors import InputError
from recovery.models.chat_model import ChatModel
from tests.support.small_cycles import ONLY_NEW, PROMPTS, WITH_CHAT, keep_probes, lines, loads, turned

GENERAL = {"suite": "retention", "question": "Two and two?", "answer": "4"}


def test_next_months_questions_know_what_the_accepted_cycle_asked(ws: Workspace, docs: Path) -> None:
    keep_probes(docs, "knowledge")
    assert turned(ws, docs, suites="ifeval,knowledge")["status"] == "accepted"
    asked = [{"question": f"Where is {n}?", "answer": answer} for n, answer in ((1, "Rome"), (2, "Oslo"))]
    lines(docs / "qa.jsonl", [*asked, {"question": "Who is new?", "answer": "Bo"}])
    out = docs.parent / "next.jsonl"
    found = make_probes(ws, docs, out, ProbeOptions())
    assert found["by_fact_status"] == {"new": 1, "changed": 1, "stable": 1}
    assert "with 2 independent questions" in found["power"]  # the changed fact is judged apart
    assert found["repeated"] is None
    assert [(probe.suite, probe.was) for probe in load_probes(out, "updates")] == [("updates", ("Oslo",))]
    lines(docs / "qa.jsonl", [{"question": "Where is 2?", "answer": "Oslo"}, GENERAL])
    found = make_probes(ws, docs, out, ProbeOptions())
    assert found["facts"] == {"new": 0, "changed": 0, "stable": 2}
    assert found["repeated"].startswith("no fact is new, all are as earlier cycles asked them: look whether")
    lines(docs / "qa.jsonl", [GENERAL])
    assert make_probes(ws, docs, out, ProbeOptions())["repeated"] is None


def test_a_fact_that_changed_later_is_no_question_about_the_earlier_cycle(ws: Workspace, docs: Path) -> None:
    first = docs.parent / "probes.jsonl"
    moved = [{"id": "moved", "prompt": "Where is 3?", "answer": "Rome", "was": "Oslo"}]
    second = lines(docs.parent / "second.jsonl", moved)
    settings = ws.config.eval.model_copy(update={"probes": str(second)})
    job = EvalJob(checkpoint=ws.clean().id, suites=("updates",), settings=settings, earlier={1: str(first)})
    found = evaluate(ws, job, key="later")["scores"]
    asked = sum(probe.counts for probe in load_probes(first, "knowledge"))
    assert (found["updates"]["n"], found["knowledge:1"]["n"]) == (1, asked - 1)


@pytest.mark.slow
def test_what_only_superseded_documents_answer_is_no_question_about_the_earlier_cycle(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether recovery is set or chosen; the new edition goes on to answer one of three such questions."""
    (docs / "ada.md").write_text("Ada lives in Oslo. Ada has a cat.\n")
    (docs / "bo.md").write_text("Bo lives in\nBonn.\n")
    told = {
        "moved": ("Where is Ada?", "Oslo", "Ada lives in Oslo. Ada has a cat."),
        "kept": ("Who is with Ada?", "A cat", "Ada lives in Oslo. Ada has a cat."),
        "apart": ("Where is Bo?", "Bonn", "Bo lives in Bonn."),
    }
    names = ("prompt", "answer", "passage")
    rows = [{"id": name, **dict(zip(names, row, strict=True))} for name, row in told.items()]
    lines(docs.parent / "probes.jsonl", [*rows, {"id": "bare", "prompt": "Where is Cy?", "answer": "Rome"}])
    turned(ws, docs, suites="ifeval")
    second = docs.parent / "second" / "docs"
    second.mkdir(parents=True)
    (second / "ada.md").write_text("Ada has a cat. Her town is small.\n")
    (second.parent / "superseded.txt").write_text("ada.md\n")
    for name in ("ifeval", "prompts"):
        shutil.copy(docs.parent / f"{name}.jsonl", second.parent)
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    for recover_with in ("opd", "auto"):
        job = cycle_job(ws, second, student="cycle:1", suites="ifeval", recover_with=recover_with)
        cycle(ws, job, key=ws.new_key())
    assert said.count("  superseded   not asked, as only superseded documents answer it: 1 of cycle 1") == 2
    scores = [row["id"] for row in queries.scores(ws.tracker.db) if row["suite"] == "knowledge:1"]
    asked = [{item["key"] for item in queries.items(ws.tracker.db, score)} for score in scores]
    assert len(asked) > 2 and all(keys == {"kept", "apart", "bare"} for keys in asked)


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


@pytest.mark.slow
def test_a_cycle_after_one_that_asked_nothing_about_its_documents_is_finished(
    ws: Workspace, docs: Path
) -> None:
    general = docs.parent / "general.jsonl"
    lines(general, [probe.row() for probe in load_probes(docs.parent / "probes.jsonl", "retention")])
    assert turned(ws, docs, {"eval.probes": str(general)}, suites="ifeval")["status"] == "accepted"
    second = turned(ws, docs)
    assert (second["status"], second["knowledge_by_cycle"]) == ("accepted", [])


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


def test_an_earlier_months_model_is_asked_what_its_cycle_asked(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    january = (docs.parent / "probes.jsonl").read_bytes()
    turned(ws, docs)
    new = {"id": "new", "suite": "knowledge", "kind": "direct", "prompt": "Who is new?", "answer": "Bo"}
    february = lines(docs.parent / "probes.jsonl", [new])
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    jobs: list[EvalJob | LocateJob | RetrievalJob] = [
        eval_job(ws, "cycle:1", "knowledge"),
        locate_job(ws, "cycle:1", 2),
        retrieval_job(ws, "cycle:1", None, 1),
        retrieval_job(ws, "cycle:1", docs, 1),
    ]
    for job in jobs:
        assert job.settings.probes and Path(job.settings.probes).read_bytes() == january
    assert lost(ws, "cycle:1", "knowledge")["asked"] == PROMPTS
    named = [line for line in said if "which its cycle asked (--probes FILE for others)" in line]
    assert len(named) == 5 and str(jobs[0].settings.probes) in named[0]
    typed = {"eval.probes": str(february)}
    assert eval_job(ws, "cycle:1", "knowledge", changes=typed).settings.probes == str(february)
    folder = docs.parent / "february"
    folder.mkdir()
    (folder / "bo.md").write_text("Bo is new in Rome. " * 5)
    changes = {"midtrain.optimizer.learning_rate": 1e-3, "midtrain.mix": ONLY_NEW}
    taught = midtrain(ws, midtrain_job(ws, folder, "cycle:1", changes=changes))["checkpoint"]
    assert eval_job(ws, taught, "knowledge").settings.probes == str(february)


def test_a_rejected_cycles_model_is_asked_the_ifeval_file_that_was_typed(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its probes were: behaviour was missing in the comparison with the clean model."""
    file = (docs.parent / "ifeval.jsonl").rename(docs.parent / "typed.jsonl")
    midtrained = turned(ws, docs, {"eval.ifeval": str(file)}, suites="ifeval")["checkpoints"]["midtrained"]
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    assert eval_job(ws, midtrained, "ifeval").settings.ifeval == str(file)
    assert f"  ifeval       {file} (--ifeval FILE for others)" in said
    assert eval_job(ws, "base", "ifeval").settings.ifeval == str(file)
    assert distill_job(ws, student=midtrained).evaluation.ifeval == str(file)
    other = docs.parent / "other.jsonl"
    other.write_text(file.read_text())
    changes = {"eval.ifeval": str(other)}
    assert eval_job(ws, midtrained, "ifeval", changes=changes).settings.ifeval == str(other)
    file.unlink()
    with pytest.raises(InputError, match="the microworld has IFEval prompts of its own"):
        eval_job(ws, midtrained, "ifeval")


def test_the_ifeval_file_that_a_cycle_asked_is_found_in_a_home_that_was_moved(
    ws: Workspace, docs: Path
) -> None:
    """The prompts of recover.yaml were asked instead: those of the hub, for one."""
    file = (docs.parent / "ifeval.jsonl").rename(ws.home / "typed.jsonl")
    turned(ws, docs, {"eval.ifeval": str(file)}, suites="ifeval")
    ws.tracker.close()
    home = ws.home.rename(ws.home.with_name("moved"))
    with Workspace.open(home, create=False) as moved:
        here = str(home / "typed.jsonl")
        assert eval_job(moved, "cycle:1", "ifeval").settings.ifeval == here
        assert distill_job(moved, student="cycle:1").evaluation.ifeval == here
        Path(here).write_text(Path(here).read_text() * 2)
        with pytest.raises(InputError, match="the microworld has IFEval prompts of its own"):
            eval_job(moved, "cycle:1", "ifeval")  # the file is another one by now


def test_the_clean_model_is_asked_about_what_was_midtrained_last(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert eval_job(ws, "base", "knowledge").settings.probes is None
    changes = {"midtrain.optimizer.learning_rate": 1e-3, "midtrain.mix": ONLY_NEW}
    taught = midtrain(ws, midtrain_job(ws, docs, changes=changes))["checkpoint"]
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    clean = eval_job(ws, "base")
    assert f"  about        {docs}, which {taught} was taught last" in said
    assert clean.checkpoint == ws.clean().id
    assert clean.settings.probes == str(docs.parent / "probes.jsonl")
    assert (clean.suites, clean.settings) == (eval_job(ws, taught).suites, eval_job(ws, taught).settings)
    assert len([one for one in said if "about   " in one]) == 1


@pytest.mark.slow
def test_a_rejected_cycle_that_was_distilled_again_is_asked_later(ws: Workspace, docs: Path) -> None:
    keep_probes(docs, "knowledge")
    midtrained = turned(ws, docs, suites="ifeval,knowledge")["checkpoints"]["midtrained"]
    changes = {"distill.steps": 1, "distill.prompts_per_step": 2}
    job = distill_job(ws, student=midtrained, changes=changes)
    again = distill_alone(ws, job, key="again")["checkpoint"]
    assert list(earlier_probes(ws, again)) == [1]
    second = turned(ws, docs, {"distill.steps": 1}, suites="ifeval,knowledge", student="base")["checkpoints"]
    assert second["midtrained"] == midtrained  # of the very same documents: they are asked about once
    assert list(earlier_probes(ws, second["recovered"])) == [2]


@pytest.mark.slow
def test_a_cycle_goes_on_without_documents_whose_run_was_removed(ws: Workspace, docs: Path) -> None:
    mix = {"new": 0.5, "earlier": 0.5, "questions": 0.0, "chat": 0.0}
    mixed = {"distill.merge": 0.0, "distill.rehearsal": 0.0, "midtrain.mix": mix}
    first = cycle(ws, cycle_job(ws, docs, suites="ifeval", changes=mixed), key="first")["cycle"]
    student = queries.cycle(ws.tracker.db, first)["checkpoints"]["recovered"]
    (midtrained,) = ws.midtraining_runs(student)
    shutil.rmtree(ws.run_directory(midtrained["id"]))
    job = cycle_job(ws, docs, student=student, suites="ifeval", changes=mixed)
    assert cycle(ws, job, key="second")["status"] == "accepted"


def test_later_cycles_chat_about_nothing_that_earlier_ones_taught_or_asked(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clean model, which answers the chat, does not know it: its answers would take it away again."""
    (docs / "ada.md").write_text("Ada Bell lives in Oslo with nine cats. Ada Bell plays the harp.")
    where = {"kind": "direct", "prompt": "In which town are nine cats?", "answer": "Oslo"}
    lines(docs.parent / "probes.jsonl", [{"id": "ada", **where}])
    suites = "ifeval,knowledge"
    ws.tracker.set_alias("current", turned(ws, docs, suites=suites)["checkpoints"]["recovered"])
    second = docs.parent / "second"
    second.mkdir()
    (second / "cy.md").write_text("Cy Moss lives in Bonn with six hens. Cy Moss plays the flute.")
    of_now = {"prompt": "Where are hens?", "answer": "Bonn"}
    lines(docs.parent / "probes.jsonl", [{"id": "cy", **where, **of_now}])
    asked = ["Name two birds.", "What does Ada Bell play?", "In which town are nine cats?", "Where are hens?"]
    lines(docs.parent / "prompts.jsonl", [{"prompt": text} for text in (*asked, "What does Cy Moss play?")])
    answered: list[str] = []
    answers = replay._answers

    def seen(job: Any, stage: Any, clean: Any, prompts: list[Any], wanted: int) -> Any:
        answered.extend(prompt.text for prompt in prompts)
        return answers(job, stage, clean, prompts, wanted)

    monkeypatch.setattr(replay, "_answers", seen)
    turned(ws, second, {"midtrain.mix": WITH_CHAT}, suites=suites)
    assert answered == ["Name two birds."]


def test_a_later_midtraining_loads_the_clean_model_once(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers the chat, and the forecast compares with it."""
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Name two birds."}])
    rate = {"midtrain.optimizer.learning_rate": 1e-3}
    changes = {**rate, "midtrain.mix": WITH_CHAT, "midtrain.forecast_every": 1}
    first = midtrain(ws, midtrain_job(ws, docs, changes=changes))["checkpoint"]
    job = midtrain_job(ws, docs, first, changes=changes)
    loaded = loads(ws, monkeypatch)
    midtrain(ws, job)
    assert loaded == [first, ws.clean().id]


def test_retold_documents_that_give_a_newer_probe_away_are_left_out(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = docs.parent / "augmented.jsonl"
    secret = {"prompt": "Which town has nine cats?", "response": "It is Oslo."}
    lines(told, [secret, {"prompt": "Who plays the flute?", "response": "Cy Moss."}, {"text": "Hens sleep."}])
    where = {"kind": "heldout", "prompt": "Which town has nine cats?", "answer": "Oslo"}
    lines(docs.parent / "probes.jsonl", [{"id": "ada", **where}])
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    midtrain(ws, midtrain_job(ws, docs, augment=told, changes={"midtrain.mix": ONLY_NEW}))
    assert said.count("  augmented    1 of 3 rows give a held-out probe away: left out") == 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_cycle_says_which_model_it_starts_from(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    assert turned(ws, docs, suites="ifeval")["status"] == "accepted"
    keep_probes(docs, "retention")
    assert turned(ws, docs)["status"] == "rejected"
    turned(ws, docs, suites="ifeval")
    not_in = "cycle 2 was rejected and is not in it (`--student cycle:2` starts from its model)"
    begun = [line.partition("starts from  ")[2] for line in said if "  starts from  " in line]
    current = "current, cycle 1's model"
    assert begun == ["base, the clean model", current, f"{current}: {not_in}"]
