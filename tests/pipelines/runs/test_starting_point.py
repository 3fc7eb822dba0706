"""A cycle names the model that it starts from, and the rejected cycle before that is not in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.runs.starting_point import starting_point
from pipelines.runs.workspace import Workspace

CURRENT = "current, cycle 1's model"
LACKS_IT = f"{CURRENT}, without cycle 2 (accepted or approved)"
NOT_IN_IT = f"{CURRENT}: cycle 2 was rejected and is not in it"


def record(ws: Workspace, *statuses: str) -> None:
    """Record cycles of these statuses; the first starts from the clean model, the others from its model."""
    before = ws.clean().id
    for number, status in enumerate(statuses, 1):
        made = f"mid{number}", f"rec{number}"
        for name, parent in zip(made, (before, made[0]), strict=True):
            ws.tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name, parent=parent)
        run = ws.tracker.start_run("cycle", key=f"{number}", config={"number": number}).id
        ws.tracker.record_cycle(run, midtrained_id=made[0], recovered_id=made[1], status=status)
        before = "rec1"
    ws.tracker.set_alias("current", "rec1")


def begun(ws: Workspace, number: int, student: str) -> str:
    job: Any = SimpleNamespace(student=student, clean=ws.clean().id)
    return starting_point(ws, job, number)


@pytest.mark.parametrize(
    ("statuses", "reviews", "said"),
    [
        (["accepted", "accepted"], [], LACKS_IT),
        (["accepted", "rejected"], [], NOT_IN_IT),
        (["accepted", "rejected", "running"], [], NOT_IN_IT),  # one that broke off tells nothing
        (["accepted", "rejected"], ["approve", "needs-work"], LACKS_IT),
        (["accepted", "accepted"], ["approve", "reject"], NOT_IN_IT),
        (["accepted", "rejected"], ["needs-work"], NOT_IN_IT),
    ],
)
def test_a_cycle_is_rejected_by_its_newest_review_that_decides_else_by_its_verdict(
    ws: Workspace, statuses: list[str], reviews: list[str], said: str
) -> None:
    record(ws, *statuses)
    for decision in reviews:
        ws.tracker.add_review(2, decision, "", "ada")
    ws.tracker.set_alias("current", "rec1")  # an approval has moved it
    assert begun(ws, len(statuses) + 1, "rec1") == said


def test_of_the_clean_model_and_of_a_descendant_of_the_rejected_one_nothing_is_missing(ws: Workspace) -> None:
    record(ws, "rejected")
    clean = ws.clean().id
    assert begun(ws, 1, clean) == "base, the clean model"
    assert begun(ws, 2, clean) == "base, the clean model: cycle 1 was rejected and is not in it"
    assert begun(ws, 2, "rec1") == CURRENT
    assert begun(ws, 2, "mid1") == "mid1, cycle 1's midtrained model"
    (ws.store.root / "rec1").mkdir()
    hint = " (`--student cycle:1` starts from its model)"
    assert begun(ws, 2, clean).endswith(f"is not in it{hint}")
