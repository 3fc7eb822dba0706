"""Retrieval against training: every way is scored on the same questions, and the words follow the bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.probes import Probe
from evals.scores import Item, Message
from pipelines import retrieval as stage
from pipelines.cli.diagnose import retrieval_text
from pipelines.config.overrides import changed
from pipelines.job_from_options.measure import retrieval_job
from pipelines.job_from_options.train import midtrain_job
from pipelines.midtrain import midtrain
from pipelines.resume import resume
from pipelines.retrieval import retrieval
from pipelines.runs.kept_texts import KEPT_TEXTS
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support.probe_scores import probe_scores
from tests.support.small_cycles import lines, make_docs, make_home, settle

QUESTIONS = 6


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = make_docs(tmp_path)
    for number in range(QUESTIONS):
        (folder / f"{number}.md").write_text(f"House {number}000 is painted in colour {number}{number}.")
    lines(folder.parent / "probes.jsonl", [probe(number) for number in range(QUESTIONS)])
    return folder


def probe(number: int) -> dict[str, Any]:
    """A question whose true passage is known for all but the last."""
    passage = f"House {number}000 is painted in colour {number}{number}." if number < QUESTIONS - 1 else ""
    return {
        "id": f"q{number}",
        "suite": "knowledge",
        "kind": "direct",
        "prompt": f"Which colour has house {number}000?",
        "answer": f"{number}{number}",
        "fact": f"house{number}",
        "passage": passage,
    }


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with make_home(tmp_path) as workspace:
        settle(workspace, margin=0.1, learning_rate=1e-4)
        yield workspace


def test_every_way_is_asked_the_same_questions(ws: Workspace, docs: Path) -> None:
    trained = midtrain(ws, midtrain_job(ws, docs), key="m")["checkpoint"]
    found = retrieval(ws, retrieval_job(ws, trained, None, 2), key="once")
    ways = {row["way"]: row for row in found["ways"]}
    assert list(ways) == [
        "clean",
        "clean + retrieval",
        "clean + true passage",
        "trained",
        "trained + retrieval",
    ]
    assert {row["n"] for name, row in ways.items() if "true" not in name} == {QUESTIONS}
    assert ways["clean + true passage"]["n"] == QUESTIONS - 1
    assert found["found"] == 1.0  # BM25 finds every house
    assert ways["clean + retrieval"]["tokens_per_answer"] > ways["clean"]["tokens_per_answer"] + 50
    compared = found["comparisons"]["retrieval_instead"]
    assert compared["n"] == QUESTIONS and compared["difference"] == 0  # random models know nothing
    assert found["verdict"] == "nothing learned" and found["words"] in retrieval_text(found)
    again = retrieval(ws, retrieval_job(ws, trained, None, 2), key="once")
    assert again == found
    assert len(queries.runs(ws.tracker.db, kind="eval")) == 2


def multihop(number: int) -> dict[str, Any]:
    """A question whose passages are two houses' documents."""
    other = QUESTIONS - 1 - number
    passages = [probe(one)["passage"] for one in (number, other)]
    return probe(number) | {
        "id": f"m{number}",
        "kind": "multihop",
        "prompt": f"Which colour has the house opposite house {number}000?",
        "answer": f"{other}{other}",
        "fact": f"house{number}+house{other}",
        "passage": [passage for passage in passages if passage],
    }


def test_multihop_questions_are_asked_in_every_way_and_compared_apart(ws: Workspace, docs: Path) -> None:
    """One passage is retrieved, of the house that is named: not the one whose colour is asked."""
    alone = retrieval(ws, retrieval_job(ws, "base", docs, 1), key="alone")
    rows = [*map(probe, range(QUESTIONS)), *map(multihop, range(4))]
    lines(docs.parent / "probes.jsonl", rows)
    trained = midtrain(ws, midtrain_job(ws, docs), key="m")["checkpoint"]
    found = retrieval(ws, retrieval_job(ws, trained, None, 1), key="once")
    assert alone["multihop"] is None
    assert found["ways"][:3] == alone["ways"] and found["found"] == alone["found"]
    apart = found["multihop"]
    assert [(way["way"], way["metric"], way["n"]) for way in apart["ways"]] == [
        ("clean", "multihop", 4),
        ("clean + retrieval", "multihop_retrieval", 4),
        ("clean + true passage", "multihop_open_book", 4),
        ("trained", "multihop", 4),
        ("trained + retrieval", "multihop_retrieval", 4),
    ]
    assert apart["found"] == 0.0
    cost = {way["way"]: way["tokens_per_answer"] for way in apart["ways"]}
    assert cost["clean + true passage"] > cost["clean + retrieval"] > cost["clean"]  # two passages, one, none
    assert apart["comparisons"]["retrieval_instead"]["n"] == 4
    assert found["comparisons"]["retrieval_instead"]["n"] == QUESTIONS
    shown = retrieval_text(found)
    assert "0.0% of the multihop questions" in shown
    assert "multihop" not in retrieval_text(alone)


def test_the_recorded_prompt_is_the_question_itself(ws: Workspace, docs: Path) -> None:
    retrieval(ws, retrieval_job(ws, "base", docs, 1), key="once")
    (score,) = [row for row in queries.scores(ws.tracker.db) if row["metric"] == "retrieval"]
    prompts = [row["prompt"] for row in queries.items(ws.tracker.db, score["id"])]
    assert prompts == [f"Which colour has house {n}000?" for n in range(QUESTIONS)]


def test_before_training_the_clean_model_alone(ws: Workspace, docs: Path) -> None:
    found = retrieval(ws, retrieval_job(ws, "current", docs, 3), key="once")
    assert [row["way"] for row in found["ways"]] == ["clean", "clean + retrieval", "clean + true passage"]
    assert found["verdict"] == "clean alone" and found["comparisons"] == {}
    assert found["words"].startswith("the clean model alone answers ")


def test_the_clean_model_alone_is_asked_about_what_was_midtrained_last(ws: Workspace, docs: Path) -> None:
    """As after a rejected first cycle, whose `current` is the clean model: no questions were found."""
    midtrain(ws, midtrain_job(ws, docs), key="m")
    job = retrieval_job(ws, "current", None, 1)
    assert (job.trained, job.docs) == (None, str(docs))
    assert job.settings.probes == str(docs.parent / "probes.jsonl")
    assert retrieval_job(ws, "current", docs, 1) == job


def test_a_limit_asks_one_sample_in_every_way(ws: Workspace, docs: Path) -> None:
    job = retrieval_job(ws, "base", docs, 1, changes={"eval.limit": 3})
    found = retrieval(ws, job, key="once")
    assert [row["n"] for row in found["ways"][:2]] == [3, 3]
    assert found["ways"][2]["n"] in (2, 3)  # of the same three, those with a passage


def test_a_resumed_comparison_shows_both_models_the_same_passages(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were retrieved anew, from documents that may be read within other limits since."""
    shown: list[str] = []

    def interrupt(ws: Workspace, job: Any, stage: Any, label: str, checkpoint: str, file: str) -> None:
        shown.append(Path(file).read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, "_scores", interrupt)
    for name in ("a", "b"):
        walls = "".join(f" Wall {number} was measured in the year {1500 + number}." for number in range(99))
        (docs / f"{name}.md").write_text(f"House 0000 has walls.{walls} House 0000 has gate {name}.")
    job = retrieval_job(ws, "base", docs, 8)
    for duplicates in ("keep", "skip"):
        ws.config = changed(ws.config, {"midtrain.reading.near_duplicates": duplicates})
        with pytest.raises(KeyboardInterrupt):
            retrieval(ws, job, key="once")
    assert len(shown) == 2 and shown[0] == shown[1]


@pytest.mark.parametrize("at", ["_retrieved", "_scores"])
def test_a_resumed_comparison_reads_no_documents_once_their_passages_are_kept(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage, at, interrupt)
    job = retrieval_job(ws, "base", docs, 1)
    with pytest.raises(KeyboardInterrupt):
        retrieval(ws, job, key="once")
    (docs / "later.md").write_text("House 9000 was painted after the comparison had begun.")
    with pytest.raises(KeyboardInterrupt if at == "_scores" else InputError):
        resume(ws)


def test_without_questions_or_documents(ws: Workspace, docs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recover probes"):
        retrieval_job(ws, "base", None, 1)
    probes = {"eval.probes": str(docs.parent / "probes.jsonl")}
    with pytest.raises(InputError, match="--docs"):
        retrieval(ws, retrieval_job(ws, "base", None, 1, changes=probes), key="once")


def test_documents_that_were_removed_are_said_and_those_of_the_newest_are_wanted(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = midtrain(ws, midtrain_job(ws, docs), key="first")["checkpoint"]
    second = midtrain(ws, midtrain_job(ws, docs, first), key="second")["checkpoint"]
    older, newest = [run["id"] for run in ws.midtraining_runs(second)]
    kept = ws.run_directory(newest) / KEPT_TEXTS
    aside = kept.rename(kept.with_name("aside"))
    with pytest.raises(
        InputError, match=f"the documents of {newest}, .* were removed: give them with --docs"
    ):
        retrieval(ws, retrieval_job(ws, second, None, 1), key="refused")
    assert queries.runs(ws.tracker.db, kind="eval") == []
    retrieval(ws, retrieval_job(ws, second, docs, 1), key="named")
    aside.rename(kept)
    (ws.run_directory(older) / KEPT_TEXTS).unlink()
    said: list[str] = []
    monkeypatch.setattr(ws.progress, "say", said.append)
    retrieval(ws, retrieval_job(ws, second, None, 1), key="without")
    assert f"  retrieval    without the documents of {older}, which were removed" in said


# ---- words and numbers by hand


def items(passed: list[bool]) -> list[Item]:
    return [Item(f"q{n}", "?", "", ok, {"fact": f"f{n}"}) for n, ok in enumerate(passed)]


def row(passed: list[bool], tokens: int) -> dict[str, Any]:
    details = {"tokens_read": tokens * len(passed), "tokens_written": 0}
    value = sum(passed) / len(passed)
    head = {"value": value, "n": len(passed), "low": value, "high": value, "checkpoint_id": "c"}
    return head | {"metric": "m", "items": items(passed), "details": details}


def judged(looked_up: list[bool], trained: list[bool]) -> dict[str, Any]:
    measured = {
        "clean": {"lenient": row([False] * len(trained), 20), "retrieval": row(looked_up, 200)},
        "trained": {"lenient": row(trained, 20), "retrieval": row(trained, 200)},
    }
    result = {"passages": 3, **stage._compared(measured, 0.1, found=1.0)}
    return result | stage._verdict(result)


def test_retrieval_that_answers_as_much_would_have_done() -> None:
    found = judged([True] * 60, [True] * 60)
    assert found["verdict"] == "retrieval alone"
    assert found["words"].startswith("retrieval alone would have done: at most 10 points worse")
    assert "10.0 times the tokens" in found["words"]


def test_what_was_not_learned_is_no_success_of_retrieval() -> None:
    found = judged([True] + [False] * 99, [True] * 4 + [False] * 96)
    assert found["comparisons"]["retrieval_instead"]["outcome"] == "passed"
    assert found["verdict"] == "nothing learned"
    assert found["words"].startswith(
        "nothing was learned: from memory the trained model has +4.0 points against the clean one, no more "
        "than the margin of 10 points: the clean model with 3 retrieved passages answers 1.0%"
    )


def test_six_questions_leave_it_undecided() -> None:
    found = judged([True] * 5 + [False], [True] * 6)
    assert found["verdict"] == "undecided" and "questions would decide" in found["words"]
    assert "retrieval alone differs by -16.7 points, bounds -" in found["words"]


def test_training_that_answers_far_more_was_needed() -> None:
    found = judged([False] * 30 + [True] * 30, [True] * 60)
    assert found["verdict"] == "training"
    assert found["comparisons"]["retrieval_instead"]["difference"] == pytest.approx(-0.5)
    assert found["comparisons"]["training_beside"]["difference"] == pytest.approx(0.5)
    assert found["words"].startswith("training was needed: retrieval alone is more than 10 points worse")


def test_retrieved_passages_are_in_the_prompt() -> None:
    asked: list[list[Message]] = []

    def answer(chats: list[list[Message]]) -> list[str]:
        asked.extend(chats)
        return ["Oslo"] * len(chats)

    probes = [Probe(name, "knowledge", "direct", "Where?", ("Oslo",), name, 1) for name in ("a", "b")]
    score = probe_scores(answer, probes, retrieved={"a": ["One.", "Two."]})["retrieval"]
    assert [chat[0]["content"] for chat in asked] == ["Where?", "Where?", "One.\n\nTwo.\n\nWhere?"]
    assert (score.metric, score.value, score.n) == ("retrieval", 1.0, 1)
