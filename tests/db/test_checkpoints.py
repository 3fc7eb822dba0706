"""Which cycles stand behind a checkpoint, where two have midtrained alike."""

from __future__ import annotations

import pytest

from db.reads import checkpoints
from db.writes.tracker import Tracker


def record(tracker: Tracker, name: str, parent: str | None) -> None:
    tracker.record_checkpoint(name, path=f"/c/{name}", kind="full", sha256=name, parent=parent)


@pytest.mark.parametrize(
    ("name", "cycles"),
    [
        ("clean0", []),
        ("mid1", [1]),
        ("rec1", [1]),
        ("rec2", [1, 2]),  # each is behind its own recovery
        ("rec3", [1, 3]),
        ("rec4", [1, 4]),
        ("mid2", [1, 4]),  # the newest of three that read the same documents
    ],
)
def test_of_cycles_with_one_midtrained_model_its_own_counts_else_the_newest(
    tracker: Tracker, name: str, cycles: list[int]
) -> None:
    record(tracker, "clean0", None)
    for number, (midtrained, before) in enumerate((("mid1", "clean0"), *[("mid2", "rec1")] * 3), 1):
        record(tracker, midtrained, before)
        record(tracker, f"rec{number}", midtrained)
        run = tracker.start_run("cycle", key=f"{number}", config={"number": number}).id
        tracker.record_cycle(run, midtrained_id=midtrained, recovered_id=f"rec{number}", status="accepted")
    found = checkpoints.cycles_behind(tracker.db, name)
    assert found == {number: {"number": number} for number in cycles}
