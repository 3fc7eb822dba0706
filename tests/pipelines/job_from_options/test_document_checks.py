"""Documents and prompts that do not go together are refused before the first stage."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from db.reads import queries
from evals.probes import Probe
from pipelines.job_from_options.cycle import cycle_job
from pipelines.job_from_options.train import midtrain_job
from pipelines.knowledge.passage_teaching import questions
from pipelines.machine.init_home import initialise
from pipelines.midtrain import midtrain
from pipelines.runs.workspace import Workspace
from recovery.errors import InputError
from tests.support import tiny
from tests.support.small_cycles import ONLY_NEW, WITH_CHAT, lines, settle

ADA = "Ada Horn lives in Oslo. Ada Horn mends clocks. "
CHAT = {"midtrain.mix": WITH_CHAT}
NO_CHAT = {"midtrain.mix": ONLY_NEW}
PASSAGE = {"midtrain.method": "passage"}
CHECKS = "pipelines.job_from_options.document_checks"


def refuse(ws: Workspace, docs: Path, changes: dict[str, Any], said: str) -> None:
    for build in (cycle_job, midtrain_job):
        with pytest.raises(InputError, match=said):
            build(ws, docs, changes=changes)
    assert queries.runs(ws.tracker.db) == []


# Passages -----------------------------------------------------------------------------------------------


def test_documents_without_a_sentence_are_not_taught_by_passages(ws: Workspace, docs: Path) -> None:
    (docs / "ada.md").write_text("| a | b |\n|---|---|\n| 1 | 2 |\n")
    refuse(ws, docs, PASSAGE, "method: passage: the documents have no sentence that can be asked about: use")
    assert midtrain_job(ws, docs)
    (docs / "bob.md").write_text("Bob Dorn keeps seven donkeys behind the mill.")
    assert cycle_job(ws, docs, changes=PASSAGE) and midtrain_job(ws, docs, changes=PASSAGE)


def test_of_much_text_without_a_sentence_midtraining_tells(
    ws: Workspace, docs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (docs / "ada.md").write_text("| a | b |\n|---|---|\n| 1 | 2 |\n")
    monkeypatch.setattr(f"{CHECKS}.ASKED_ABOUT", 10)
    assert midtrain_job(ws, docs, changes=PASSAGE)


def test_documents_of_which_every_question_gives_away_a_probe_are_not_taught_by_passages(
    ws: Workspace, docs: Path
) -> None:
    text = "Ada Horn moved to the harbour of Bergen."
    (docs / "ada.md").write_text(text)
    probes = [
        Probe(str(number), "knowledge", "heldout", row.text, ("Bergen",), fact="ada", cycle=1)
        for number, row in enumerate(questions([text], seed=0))
    ]
    file = lines(docs.parent / "heldout.jsonl", [probe.row() for probe in probes])
    changes = PASSAGE | {"eval.probes": str(file)}
    refuse(ws, docs, changes, "every question about the documents gives away a probe: use text")
    (docs / "bob.md").write_text("Bob Dorn keeps seven donkeys behind the mill.")
    assert cycle_job(ws, docs, changes=changes)


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[Workspace]:
    """A home whose model reads 80 tokens."""
    with Workspace.open(tmp_path / "home") as ws:
        initialise(
            ws, model=str(tiny.save(tmp_path / "model", max_position_embeddings=80)), preset="microworld"
        )
        settle(ws, margin=0.4, learning_rate=1e-12)
        yield ws


def test_documents_whose_passages_leave_no_room_are_not_taught_by_passages(
    narrow: Workspace, docs: Path
) -> None:
    said = "all questions with their passage leave no room for an answer: the limit is 80 tokens: use text"
    refuse(narrow, docs, PASSAGE, said)
    assert midtrain_job(narrow, docs)


# Prompts about the documents ----------------------------------------------------------------------------


def test_prompts_that_distillation_would_drop_are_refused(ws: Workspace, docs: Path) -> None:
    """Without a chat share the guard found out behind the midtraining."""
    (docs / "ada.md").write_text(ADA * 3)
    prompts = docs.parent / "prompts.jsonl"
    lines(prompts, [{"prompt": "Where does Ada Horn live?"}])
    said = "every one of the prompts mentions what the documents are about"
    with pytest.raises(InputError, match=rf"{said}.*give other --prompts, or --overlap weight or keep"):
        cycle_job(ws, docs, changes=NO_CHAT)
    assert midtrain_job(ws, docs, changes=NO_CHAT)  # reads none
    for kept in ({"distill.overlap": "weight"}, {"distill.overlap": "keep"}):
        assert cycle_job(ws, docs, changes=NO_CHAT | kept)
    for chosen in ("auto", "merge"):
        assert cycle_job(ws, docs, recover_with=chosen, changes=NO_CHAT)
    lines(prompts, [{"prompt": "Where does Ada Horn live?"}, {"prompt": "Say hello."}])
    assert cycle_job(ws, docs, changes=NO_CHAT)


def test_pairs_that_distillation_would_drop_are_refused(ws: Workspace, docs: Path) -> None:
    (docs / "ada.md").write_text(ADA * 3)
    pairs = lines(docs.parent / "pairs.jsonl", [{"prompt": "Where does Ada Horn live?", "response": "Oslo."}])
    changes = NO_CHAT | {"distill.dials": {"states": "data"}, "distill.pairs": str(pairs)}
    with pytest.raises(InputError, match=r"every one of the pairs mentions .* give other --pairs, or"):
        cycle_job(ws, docs, changes=changes)


@pytest.mark.parametrize("mix", [CHAT, NO_CHAT])
def test_prompts_that_the_evaluation_asks_do_not_count(
    ws: Workspace, docs: Path, mix: dict[str, Any]
) -> None:
    """They are left out before: of the others every one was about the documents."""
    (docs / "ada.md").write_text(ADA * 3)
    lines(docs.parent / "prompts.jsonl", [{"prompt": "Where does Ada Horn live?"}, {"prompt": "Line 1."}])
    with pytest.raises(InputError, match=r"every .*mentions what the documents are about"):
        cycle_job(ws, docs, changes=mix)


def test_more_than_a_thousand_prompts_are_looked_at(ws: Workspace, docs: Path) -> None:
    parts = product(("Ad", "Bru", "Cal", "Dre", "Elm", "Fin", "Gor", "Hal"), ("an", "en", "in", "on"))
    names = [
        f"{first}{last}{end} {last.title()}{first.lower()}" for first, last in parts for end in ("or", "ak")
    ]
    (docs / "ada.md").write_text("\n\n".join(f"{name} lives in Oslo. {name} mends clocks." for name in names))
    lines(docs.parent / "prompts.jsonl", [{"prompt": f"Who is {name}?"} for name in names * 17])
    for build in (cycle_job, midtrain_job):
        with pytest.raises(InputError, match="every prompt mentions what the documents are about"):
            build(ws, docs, changes=CHAT)


@pytest.mark.parametrize(("mix", "superseded"), [(CHAT, False), (NO_CHAT, False), (CHAT, True)])
def test_documents_of_earlier_months_count(
    ws: Workspace, docs: Path, mix: dict[str, Any], superseded: bool
) -> None:
    """As midtraining's chat share and the guard count them, unless a list says that they may hold no more."""
    (docs / "ada.md").write_text(ADA * 3)
    taught = midtrain(ws, midtrain_job(ws, docs, changes=NO_CHAT))["checkpoint"]
    (docs / "ada.md").write_text("Bob Dorn keeps donkeys. Bob Dorn sells honey. " * 3)
    if superseded:
        (docs.parent / "superseded.txt").write_text("ada.md\n")
    asked = ("Where does Ada Horn live?", "What does Bob Dorn sell?")
    lines(docs.parent / "prompts.jsonl", [{"prompt": text} for text in asked])
    build = partial(cycle_job, ws, docs, changes=mix)
    assert build(student="base")
    if superseded:
        assert build(student=taught)
        return
    with pytest.raises(InputError, match=r"every .*mentions what the documents are about"):
        build(student=taught)
