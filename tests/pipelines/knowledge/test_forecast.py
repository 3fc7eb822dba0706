"""The forecast: forward KL to the clean model on fixed rows, and what earlier cycles say it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from db.writes.tracker import Tracker
from pipelines.corpus.token_file import Tokens
from pipelines.knowledge.forecast import (
    EXPECTED,
    METRIC,
    Forecast,
    LossPerKL,
    fixed_rows,
    learned_law,
    log_probs,
)
from tests.support import tiny


def test_the_law_goes_through_the_origin() -> None:
    assert LossPerKL().expected(0.3) is None
    assert LossPerKL(((0.5, 0.25),)).expected(0.2) == pytest.approx(0.1)
    # least squares by hand: (1 * 0.4 + 2 * 1.0) / (1 + 4) = 0.48
    assert LossPerKL(((1.0, 0.4), (2.0, 1.0))).expected(1.0) == pytest.approx(0.48)
    assert LossPerKL(((1.0, 0.9),)).expected(5.0) == 1.0
    assert "2 earlier cycles" in LossPerKL(((1.0, 0.4), (2.0, 1.0))).words(1.0)
    assert "the first cycle will tell" in LossPerKL().words(1.0)


def test_it_looks_at_the_same_rows_and_draws_nothing() -> None:
    student, clean = tiny.chat_model(), tiny.chat_model()
    texts = [student.text_ids(f"Document {n} says so.") for n in range(20)]
    documents = Tokens.of([(ids, [True] * len(ids)) for ids in texts])
    rows = fixed_rows(documents, student.pad_id)
    told: list[tuple[int, Mapping[str, float]]] = []
    said: list[str] = []
    look = Forecast(
        student,
        rows,
        log_probs(clean, rows),
        LossPerKL(((1.0, 0.5),)),
        every=2,
        steps=5,
        report=lambda step, metrics: told.append((step, metrics)),
        say=said.append,
    )
    before = torch.random.get_rng_state()
    look(1, {})
    look(2, {})
    with torch.no_grad():
        next(student.model.parameters()).add_(0.3)
    look(5, {})
    assert torch.equal(before, torch.random.get_rng_state())
    assert [step for step, _ in told] == [2, 5]
    assert told[0][1] == {METRIC: pytest.approx(0, abs=1e-6), EXPECTED: pytest.approx(0, abs=1e-6)}
    by_hand = log_probs(clean, rows)
    kl = (by_hand.exp() * (by_hand - log_probs(student, rows))).sum(-1).mean()
    assert told[1][1][METRIC] == pytest.approx(float(kl), rel=1e-4)
    assert "forward KL" in said[-1]


def test_the_slope_is_this_homes_own(tmp_path: Path) -> None:
    with Tracker(tmp_path / "t.db") as tracker:
        assert learned_law(tracker.db) == LossPerKL()
        clean, mid = "c" * 12, "d" * 12
        for name in (clean, mid):
            tracker.record_checkpoint(name, path=tmp_path, kind="full", sha256=name)
        run = tracker.start_run("cycle", key="a")
        taught = tracker.start_run("midtrain", parent=run.id, key="midtrain")
        for step, value in ((10, 0.1), (20, 0.5)):
            tracker.record_metrics(taught.id, step, {METRIC: value})
        tracker.finish_run(taught.id, {"checkpoint": mid})
        tracker.record_cycle(run.id, clean_id=clean, midtrained_id=mid)
        for name, value in ((clean, 0.9), (mid, 0.3)):
            evaluation = tracker.start_run("eval", parent=run.id, key=f"eval:{name}")
            score = {"suite": "ifeval", "metric": "prompt_strict", "value": value, "n": 10}
            tracker.record_score(evaluation.id, name, score)
        (point,) = learned_law(tracker.db).points
        assert point == pytest.approx((0.5, 0.6))
