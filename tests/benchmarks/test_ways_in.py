"""The benchmark on ways in: what each way trains and merges, its table, and that it resumes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks.outcomes import changed, ways_in
from evals.scores import Item
from pipelines.config import overrides, settings
from pipelines.config.jobs import DistillJob, MergeJob, MidtrainJob
from pipelines.knowledge import passage_teaching
from pipelines.runs.workspace import Workspace
from recovery.errors import Unstable


def line(seed: int, way: str, stage: str, ifeval: str, knowledge: str = "++") -> dict[str, Any]:
    """One line of the ledger: + a passed question, - a failed one; both changed facts are answered anew."""
    updates = [Item(f"{at}/direct", "", "", True, {"fact": f"{at}", "answered": "new"}) for at in range(2)]
    other = {"knowledge": knowledge, "retention": ifeval, "ifeval": ifeval}
    suites = {
        suite: [Item(f"{at}", "", "", one == "+", {"fact": f"{at}"}) for at, one in enumerate(passed)]
        for suite, passed in other.items()
    }
    named = {"seed": seed, "way": way, "stage": stage, "cycle": 1, "left_out": None, "small": False}
    return named | changed.line({"updates": updates, **suites})


GOOD, BAD = "+" * 300, "-" * 150 + "+" * 150


def test_the_table_has_the_clean_model_and_two_rows_for_each_way() -> None:
    stored = [
        line(1, "clean", "clean", GOOD, "--"),
        line(1, "frozen", "recovered", GOOD),
        line(1, "preset", "midtrained", BAD, "+-"),
        line(2, "preset", "midtrained", BAD, "++"),
    ]
    rows = ways_in.table(stored)
    assert [(row["way"], row["stage"], row["seeds"]) for row in rows] == [
        ("`clean`", "clean", 1),
        ("`preset`", "midtrained", 2),
        ("`frozen`", "recovered", 1),
    ]
    assert [row["knowledge"][:5] for row in rows] == ["0.000", "0.750", "1.000"]
    assert rows[1]["IFEval"].startswith("0.500") and rows[1]["new"].startswith("1.000")


def test_it_says_after_which_ways_nothing_was_lost() -> None:
    stored = [
        line(1, "clean", "clean", GOOD),
        line(1, "preset", "midtrained", BAD),
        line(1, "frozen", "midtrained", GOOD),
        line(1, "preset", "recovered", GOOD),
        line(2, "adapter", "recovered", GOOD),  # no clean model of that seed to hold it against
    ]
    as_is, after = ways_in.findings(stored)
    assert as_is.startswith("As midtraining leaves them") and as_is.endswith("each at 95 %: `frozen`.")
    assert after.endswith("each at 95 %: `preset`.")
    assert "3 points of IFEval and 10 points of stable" in after
    assert ways_in.findings(stored[1:])[0].endswith("none.")


def test_ways_are_compared_after_recovery_by_question() -> None:
    stored = [line(1, "preset", "recovered", BAD), line(1, "passage", "recovered", GOOD)]
    (row,) = ways_in.against_preset(stored)
    assert row["way"] == "`passage`" and row["IFEval"].startswith("+0.500")
    assert row["knowledge"].startswith("+0.000")
    assert "Seeds 1." in ways_in.page(stored)
    assert ways_in.against_preset(stored[1:]) == []


def test_every_way_is_a_setting_that_midtraining_takes() -> None:
    preset = settings.parse(settings.preset_text("microworld"), "preset")
    for way in ways_in.WAYS.values():
        chosen = overrides.changed(preset, way.midtraining).midtrain
        passage_teaching.check(chosen, None)
        assert 0 < way.kept <= 1 and not (way.midtraining and way.kept < 1)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs of every stage; each makes a checkpoint named by its key."""
    jobs: list[Any] = []

    def stage(ws: Workspace, job: Any, *, key: str) -> dict[str, str]:
        jobs.append(job)
        if key == "back:frozen":
            raise Unstable("length collapse")
        return {"checkpoint": key}

    for name in ("midtrain", "merge", "distill"):
        monkeypatch.setattr(ways_in, name, stage)
    monkeypatch.setattr(
        ways_in,
        "distill_job",
        lambda ws, student, changes: DistillJob(
            student=student,
            teacher="base",
            prompts="p",
            settings=ws.config.distill,
            evaluation=ws.config.eval,
        ),
    )
    return jobs


def test_a_scaled_vector_is_what_the_preset_added_and_trains_nothing_more(
    tmp_path: Path, trained: list[Any]
) -> None:
    models = ways_in.Models(tmp_path / "1", 1, small=True)
    try:
        assert models.checkpoint("vector-0.25", "midtrained") == "vector:0.25"
        preset, merged = trained
        assert isinstance(preset, MidtrainJob) and preset.settings.steps == 2
        assert isinstance(merged, MergeJob) and merged.kind == "linear" and merged.weight == 0.75
        assert (merged.student, merged.other) == ("way:preset", models.clean)
        assert models.checkpoint("vector-0.25", "recovered") == "back:vector-0.25"
        assert trained[-1].student == "vector:0.25"
        assert models.checkpoint("frozen", "recovered") == "way:frozen"  # an alarm stopped it
        assert models.checkpoint("clean", "clean") == models.clean
    finally:
        models.ws.tracker.close()


def test_what_is_stored_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Fake:
        def __init__(self, home: Path, seed: int, small: bool) -> None:
            self.ws = nullcontext()

        def checkpoint(self, way: str, stage: str) -> str:
            asked.append((way, stage))
            return way

        def items(self, checkpoint: str) -> dict[str, list[Item]]:
            item = Item("0", "", "", True, {"fact": "0", "answered": "new"})
            return {suite: [item] for suite in changed.SUITES}

    monkeypatch.setattr(ways_in, "Models", Fake)
    found = ways_in.run(tmp_path, 1, ["preset"])
    assert asked == [("clean", "clean"), ("preset", "midtrained"), ("preset", "recovered")]
    assert ways_in.run(tmp_path, 1, ["preset"]) == found == changed.stored(tmp_path, ways_in.LINES)
    assert len(asked) == 3
    assert len(ways_in.run(tmp_path, 1, ["preset", "frozen"])) == 5 and len(asked) == 5
