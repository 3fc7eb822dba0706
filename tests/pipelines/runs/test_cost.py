"""Cost: summed over attempts, estimated by a formula worked by hand, split by stage and recovered point."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path

import pytest

from db.reads import queries
from pipelines.cli.cycle_text import cost_lines
from pipelines.runs.cost import Flops, Ledger, peak, reset_peak, spent
from pipelines.runs.stage_runner import Stage, run_stage
from pipelines.runs.workspace import Workspace
from tests.support import tiny
from tests.support.databases import record_cycle


def test_flops_by_hand() -> None:
    """Tied embedding 259 x 32; a layer: q 32x32, k and v 32x16, o 32x32, three of 32x64, norms."""
    layer = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 64 + 2 * 16 + 2 * 32
    weights = 259 * 32 + 2 * layer + 32
    flops = Flops.of(tiny.model())
    assert flops.weights == weights
    assert flops.attention_width == 2 * 2 * 16
    assert flops.forward(10) == 20 * weights
    assert flops.forward(10, 7) == 20 * weights + 10 * 4 * 64 * 7
    assert flops.trained(10, 7) == 3 * flops.forward(10, 7)
    # Three prompts of 10 tokens, answers of 4: a token comes behind 10 and half of 4, on average.
    assert flops.answered(30, 12, 3) == 42 * (2 * weights + 4 * 64 * 12)
    untied = Flops.of(tiny.model(tie_word_embeddings=False))
    assert untied.weights == weights


def test_attempts_add_up_and_peaks_do_not(tmp_path: Path) -> None:
    first = Ledger(tmp_path, 1)
    first.spend(tokens_sampled=10)
    first.save(at_once=True)  # killed here
    second = Ledger(tmp_path, 2)
    second.spend(tokens_sampled=5, flops=3.0)
    total = second.total()
    assert (total["tokens_sampled"], total["flops"]) == (15, 3)
    costs = [json.loads(path.read_text()) for path in tmp_path.glob("cost-*.json")]
    assert total["seconds"] >= max(cost["seconds"] for cost in costs) > 0
    peaks = [cost["peak_bytes"] for cost in costs]
    assert total["peak_bytes"] == max(peaks) > 1e6


def test_a_resumed_stage_has_cost_all_its_attempts(tmp_path: Path) -> None:
    def work(stage: Stage) -> dict[str, int]:
        stage.spend(tokens_trained=100)
        if stage.ledger.attempt < 3:
            raise RuntimeError("cut off")
        return {"done": 1}

    with Workspace.open(tmp_path) as ws:
        for _ in range(2):
            with pytest.raises(RuntimeError):
                run_stage(ws, "eval", work, config={}, key="one")
        run_stage(ws, "eval", work, config={}, key="one")
        run_stage(ws, "eval", work, config={}, key="one")  # done: costs nothing more
        (run,) = queries.runs(ws.tracker.db)
    assert run["attempts"] == 3
    assert run["cost"]["tokens_trained"] == 300


@pytest.mark.parametrize("error", [RuntimeError("cut off"), KeyboardInterrupt()])
def test_a_stage_that_does_not_end_well_has_cost_its_attempts_too(
    error: BaseException, tmp_path: Path
) -> None:
    def work(stage: Stage) -> dict[str, int]:
        stage.spend(tokens_trained=100)
        raise error

    with Workspace.open(tmp_path) as ws:
        for attempts in (1, 2):
            with pytest.raises(type(error)):
                run_stage(ws, "distill", work, config={}, key="one")
            (run,) = queries.runs(ws.tracker.db)
            assert run["cost"]["tokens_trained"] == 100 * attempts


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="peaks cannot be reset here")
def test_a_peak_falls_when_the_memory_is_given_back() -> None:
    reset_peak()
    block = mmap.mmap(-1, 200_000_000)  # not from the heap, which may keep what is freed
    for page in range(0, len(block), mmap.PAGESIZE):
        block[page] = 1
    high = peak()
    block.close()
    reset_peak()
    assert high - peak() > 100_000_000


def test_a_cycle_names_its_stages_and_the_price_of_a_point(tmp_path: Path) -> None:
    """databases.record_cycle: each of three stages is a `distill` run of 1.5 s; 0.4 -> 0.9 are 50 points."""
    with Workspace.open(tmp_path) as ws:
        record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.4, "recovered": 0.9}})
        row = queries.cycle(ws.tracker.db, 1)
        record_cycle(ws.tracker, {"ifeval": {"clean": 1.0, "midtrained": 0.4, "recovered": 0.3}})
        worse = queries.cycle(ws.tracker.db, 2)
    assert row["cost_by_stage"]["distill"]["seconds"] == pytest.approx(4.5)
    assert row["cost_by_stage"]["eval"]["peak_bytes"] == 7
    assert row["cost_per_recovered_point"]["seconds"] == pytest.approx(4.5 / 50)
    assert worse["cost_per_recovered_point"] is None


@pytest.mark.parametrize("left", [b"", b'{"seconds": 1', b"[]"])
def test_a_cost_that_a_power_cut_has_damaged_does_not_fail_the_run(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "cost-1.json").write_bytes(left)
    second = Ledger(tmp_path, 2)
    second.spend(tokens_sampled=5)
    assert second.total()["tokens_sampled"] == 5


def test_a_full_disk_does_not_hide_what_has_ended_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cost is written as the run ends: that it could not be was all that was said."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def work(stage: Stage) -> dict[str, int]:
        monkeypatch.setattr("recovery.storage.atomic_dirs.write_text", full)
        raise RuntimeError("cut off")

    with Workspace.open(tmp_path) as ws, pytest.raises(RuntimeError, match="cut off"):
        run_stage(ws, "distill", work, config={}, key="one")
    assert "cost-1.json: the cost was not recorded (No space left on device)" in caplog.text


def test_the_cost_of_a_cycle_is_said_in_hours_and_minutes() -> None:
    row = {
        "cost_by_stage": {"eval": {"seconds": 4380.0}, "midtrain": {"seconds": 2400.0}},
        "cost_per_recovered_point": {"seconds": 13.62, "flops": 2e15},
    }
    assert cost_lines(row) == [
        "cost       evaluations 1 h 13 min, midtraining 40 min 00 s, each recovered point 13.6 s, 2e+15 FLOPs"
    ]
    assert cost_lines({}) == []


def test_a_cost_is_saved_once_a_second_and_at_the_end(tmp_path: Path) -> None:
    """The seconds of a run of stages are those of the stages: its own would count twice."""
    ledger = Ledger(tmp_path, 1, timed=False)
    ledger.save()
    ledger.spend(tokens_scored=2)
    ledger.save()
    assert spent(tmp_path)["tokens_scored"] == 0
    ledger.save(at_once=True)
    assert spent(tmp_path)["tokens_scored"] == 2
    assert ledger.total()["seconds"] == 0 and "peak_bytes" not in ledger.total()
