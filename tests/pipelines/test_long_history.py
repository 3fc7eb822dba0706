"""What a cycle reads of the cycles before it: as much of twelve of them as of four."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import sqlalchemy as sa

from db.reads import queries
from evals.probes import KNOWLEDGE
from evals.scores import Score
from pipelines.config.jobs import EvalJob
from pipelines.corpus import text_file
from pipelines.corpus.token_file import IDS
from pipelines.evaluation.suites import suites_of
from pipelines.knowledge.forecast import METRIC, learned_law
from pipelines.runs import kept_texts
from pipelines.runs.kept_probes import earlier_probes
from pipelines.runs.kept_texts import KEPT_TEXTS, KeptTokens
from pipelines.runs.workspace import Workspace
from recovery.models.chat_model import ChatModel
from tests.support import tiny
from tests.support.databases import record_metrics, record_score
from tests.support.small_cycles import lines

pytestmark = pytest.mark.new_home
FEW, MANY = 4, 12  # cycles
DOCUMENTS, QUESTIONS = 6, 30  # of a cycle
MOST, ROW = 100, 8  # tokens that a training reads, and those of a row


def pass_through(ws: Workspace, folder: Path, cycles: int) -> str:
    """Record a home's history as that many cycles leave it; return the newest checkpoint."""
    student = ws.clean().id
    for number in range(1, cycles + 1):
        probes = lines(
            folder / f"probes-{number}.jsonl",
            [{"prompt": f"Where is {number}/{n}?", "answer": "Oslo"} for n in range(QUESTIONS)],
        )
        run = ws.tracker.start_run(
            "cycle", key=f"{number}", config={"settings": {"eval": {"probes": str(probes)}}}
        ).id
        taught = ws.tracker.start_run("midtrain", parent=run, key="midtrain").id
        docs = folder / f"docs-{number}"
        docs.mkdir()
        for n in range(DOCUMENTS):
            (docs / f"{n}.txt").write_text(f"House {n} of street {number} is red.", encoding="utf-8")
        text_file.keep(docs, ws.run_directory(taught) / KEPT_TEXTS)
        record_metrics(ws.tracker, taught, 10, {METRIC: 0.5})
        for stage, name in (("midtrained", f"{number:06}aaaaaa"), ("recovered", f"{number:06}bbbbbb")):
            made_by = taught if stage == "midtrained" else None
            ws.tracker.record_checkpoint(
                name, path=folder, kind="full", sha256=name, parent=student, run_id=made_by
            )
            ws.tracker.record_cycle(run, **{f"{stage}_id": name})
            student = name
        ws.tracker.record_cycle(run, clean_id=ws.clean().id, status="accepted")
        for name, value in ((ws.clean().id, 0.9), (f"{number:06}aaaaaa", 0.4)):
            score = {"suite": "ifeval", "metric": "prompt_strict", "value": value, "n": 10}
            scored = ws.tracker.start_run("eval", parent=run, key=name).id
            record_score(ws.tracker, scored, name, score)
        ws.tracker.finish_run(taught, {"checkpoint": f"{number:06}aaaaaa"})
    return student


@contextmanager
def counted(ws: Workspace) -> Iterator[list[str]]:
    """The queries that the database is asked."""
    found: list[str] = []

    def note(*event: object) -> None:
        if event[2] != "BEGIN":
            found.append(str(event[2]))

    sa.event.listen(ws.tracker.db.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(ws.tracker.db.engine, "before_cursor_execute", note)


@pytest.fixture(params=[FEW, MANY])
def histories(request: pytest.FixtureRequest, ws: Workspace, tmp_path: Path) -> tuple[int, str]:
    return request.param, pass_through(ws, tmp_path, request.param)


def test_the_database_is_asked_as_often(ws: Workspace, histories: tuple[int, str]) -> None:
    cycles, student = histories
    with counted(ws) as statements:
        runs = ws.midtraining_runs(student)
        probes = earlier_probes(ws, student)
        law = learned_law(ws.tracker.db)
    assert [row["parent_id"] for row in runs] == [row["run"] for row in queries.cycles(ws.tracker.db)]
    assert len(runs) == len(probes) == len(law.points) == cycles
    assert [Path(path).name for path in probes.values()] == [f"probes-{n + 1}.jsonl" for n in range(cycles)]
    assert law.points == ((0.5, 0.5),) * cycles
    assert len(statements) == 10, "\n".join(statements)  # whatever the number of cycles


def test_no_more_tokens_are_copied_than_a_training_reads_and_none_is_made_again(
    ws: Workspace, histories: tuple[int, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycles, student = histories
    chat_model = tiny.chat_model()
    runs, absent = kept_texts.kept_runs(ws, student)
    assert (len(runs), absent) == (cycles, [])
    for run in runs:
        kept_texts.tokenised(run, chat_model)
    serialised: list[int] = []
    encoding_of = kept_texts.encoding_of

    def noted(model: ChatModel) -> str:
        serialised.append(1)
        return encoding_of(model)

    monkeypatch.setattr(kept_texts, "encoding_of", noted)
    monkeypatch.setattr(ChatModel, "text_ids", lambda *_: pytest.fail("tokenised again"))
    tokens = KeptTokens.of(runs, chat_model).joined(tmp_path / "joined", MOST, 0, longest=ROW)
    assert max(np.diff(tokens.ends, prepend=0)) <= ROW
    assert MOST <= tokens.total < MOST + ROW
    assert (tmp_path / "joined" / IDS).stat().st_size == 4 * tokens.total
    assert len(serialised) == 1


def test_earlier_cycles_are_asked_about_together_as_much(ws: Workspace, histories: tuple[int, str]) -> None:
    cycles, student = histories
    settings = ws.config.eval.model_copy(update={"earlier_questions": 60})
    earlier = earlier_probes(ws, student)
    job = EvalJob(checkpoint=student, suites=(), settings=settings, earlier=earlier)
    asked: list[str] = []

    def chats(prompts: list[list[dict[str, str]]]) -> list[str]:
        asked.extend(chat[-1]["content"] for chat in prompts)
        return ["Oslo"] * len(prompts)

    answers = SimpleNamespace(
        settings=settings,
        chats=lambda limit: chats,
        greedy=lambda limit: chats,
        continuation=lambda limit: None,
    )
    scores = [score for suite in suites_of(job) for score in suite.score(answers)]  # type: ignore[arg-type]
    measured = [score for score in scores if isinstance(score, Score)]
    assert len(scores) == len(measured) == cycles
    assert {score.suite for score in measured} == {KNOWLEDGE}
    assert len(asked) == 60 and {score.n for score in measured} == {60 // cycles}
